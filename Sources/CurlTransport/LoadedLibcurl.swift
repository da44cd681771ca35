import CCurl
import Glibc

/// The libcurl that this process has loaded. It can be another version than the one whose header was compiled.
package enum LoadedLibcurl {
  private static var information: curl_version_info_data { curl_version_info(CURLVERSION_SEVENTH).pointee }

  /// The version as libcurl writes it, such as `0x080E01` for 8.14.1.
  package static let version = information.version_num

  /// Whether libcurl tries the next address of a host at once, without being called.
  static let triesNextAddress = version >= 0x08_0400

  /// Whether libcurl has a file with all certificates of the system.
  static let hasCertificateBundle = information.cainfo != nil

  /// Whether libcurl uses OpenSSL for TLS, and nothing else.
  static let usesOpenSSL = information.ssl_version.map { String(cString: $0).hasPrefix("OpenSSL/") } ?? false

  /// Returns the address of a function of libcurl, or of a library that it uses; nil if there is none.
  ///
  /// A process may contain several versions of OpenSSL.
  static func symbol(_ name: String) -> UnsafeMutableRawPointer? {
    dlopen("libcurl.so.4", RTLD_LAZY | RTLD_NOLOAD).flatMap { dlsym($0, name) }
  }

  /// Checks that the loaded libcurl knows the options that the transport sets.
  ///
  /// - Throws: `CurlTransportError` if the library is older than the oldest header that compiles.
  static func check() throws(CurlTransportError) { try check(version: version) }

  static func check(version: UInt32) throws(CurlTransportError) {
    guard version >= ccurl_minimum_version() else {
      let name = { (number: UInt32) in "\(number >> 16).\(number >> 8 & 0xff).\(number & 0xff)" }
      throw CurlTransportError(
        .unavailable,
        "libcurl \(name(version)) is loaded, and at least \(name(ccurl_minimum_version())) is required")
    }
  }
}

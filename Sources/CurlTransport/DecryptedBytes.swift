import CCurl

/// The bytes of a connection that its TLS library has received, and libcurl has not read.
///
/// libcurl reads no more than the length of a response. The rest of the last record stays in the TLS library, where
/// polling the socket cannot find it.
enum DecryptedBytes {
  /// Whether it is proven that a connection has no such bytes. Only OpenSSL can prove that.
  ///
  /// - Parameter object: The TLS library's object of the connection.
  static func areAbsent(from object: UnsafeMutableRawPointer, of library: curl_sslbackend) -> Bool {
    guard library == CURLSSLBACKEND_OPENSSL, let hasPending else { return false }
    return hasPending(object) == 0
  }

  /// OpenSSL's function `SSL_has_pending`; nil if libcurl does not use OpenSSL.
  private static let hasPending: (@Sendable @convention(c) (UnsafeMutableRawPointer) -> CInt)? =
    LoadedLibcurl.symbol("SSL_has_pending").map {
      unsafeBitCast($0, to: (@Sendable @convention(c) (UnsafeMutableRawPointer) -> CInt).self)
    }
}

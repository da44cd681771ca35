import CacheModel
import CurlTransport
import Foundation
import FoundationNetworking
import ResponseStore

/// The part of a partition that separates the client certificates of caches that share a directory.
///
/// An origin that knows its client by a certificate may send each client another `private` response. A partition is
/// `client-certificate:DIGEST:`, followed by that of the program. Without a client certificate it is that of the
/// program alone.
enum ClientPartition {
  private static let marker = "client-certificate:"

  /// Returns the partition of requests with a client certificate.
  ///
  /// - Throws: `StoreError.Code.invalidArgument` if the certificate cannot be read.
  static func prefix(
    for certificate: CurlTransport.Configuration.ClientCertificate, directory: String
  ) throws(StoreError) -> String {
    guard let content = FileManager.default.contents(atPath: certificate.certificateFile) else {
      throw .invalidArgument(
        "the client certificate \(certificate.certificateFile), which separates its responses, cannot be read",
        directory: directory, remedy: "Set the path of a readable file in PEM format as certificateFile")
    }
    let digest = content.withUnsafeBytes { XXHash.digest128($0) }
    return marker + hexadecimal(digest.high) + hexadecimal(digest.low) + ":"
  }

  private static func hexadecimal(_ word: UInt64) -> String {
    let digits = String(word, radix: 16)
    return String(repeating: "0", count: 16 - digits.count) + digits
  }

  /// Returns a program's partition so that it is not that of a client certificate.
  ///
  /// A program that takes its partition from a request could otherwise give it the text of another one.
  static func withoutCertificate(_ partition: String) -> String {
    partition.hasPrefix(marker) ? marker + ":" + partition : partition
  }
}

extension LMDBURLCache.Options {
  /// Returns the options with a partition that separates client certificates.
  ///
  /// - Throws: `StoreError.Code.invalidArgument` if the client certificate cannot be read.
  func separatingClients(directory: String) throws(StoreError) -> LMDBURLCache.Options {
    var options = self
    let program = hasOwnPartition ? partition : nil
    if let certificate = curlConfiguration?.clientCertificate {
      let prefix = try ClientPartition.prefix(for: certificate, directory: directory)
      if let program { options.partition = { prefix + program($0) } } else { options.partition = { _ in prefix } }
    } else if let program {
      options.partition = { ClientPartition.withoutCertificate(program($0)) }
    }
    return options
  }
}

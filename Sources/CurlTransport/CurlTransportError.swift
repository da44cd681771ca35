import CCurl
public import FoundationEssentials
import Glibc

/// The failure of a request or of its response.
///
/// No description contains a query, the value of a field, or content. A cancelled request throws `CancellationError`
/// instead.
public struct CurlTransportError: Error, Sendable, Hashable, CustomStringConvertible {
  /// The kinds of failure, each with the equivalent `URLError` code.
  public enum Code: Sendable, Hashable, CaseIterable {
    /// The URL has no host, has user information, or cannot be parsed (`badURL`).
    case invalidURL
    /// The URL's scheme is neither `http` nor `https` (`unsupportedURL`).
    case unsupportedScheme
    /// The method or a field is malformed, the head has more than 1 MB, or the request has content that its method
    /// forbids (`badURL`).
    case invalidRequest
    /// The name of the host or the proxy was not found (`cannotFindHost`).
    case cannotFindHost
    /// No connection could be made, or the proxy refused the tunnel (`cannotConnectToHost`).
    case cannotConnect
    /// No data arrived within the time limit, or no connection was made in time (`timedOut`).
    case timedOut
    /// The connection ended before the response (`networkConnectionLost`).
    case connectionLost
    /// The response is not valid HTTP/1.1 (`badServerResponse`).
    case badServerResponse
    /// The server's certificate is not valid for the host, or its issuer is not trusted (`serverCertificateUntrusted`).
    case untrustedCertificate
    /// No secure connection could be made for another reason (`secureConnectionFailed`).
    ///
    /// For example, a certificate file cannot be read.
    case secureConnectionFailed
    /// The content does not match its Content-Encoding, or ends early (`cannotDecodeContentData`).
    case undecodableContent
    /// The decoded content exceeds ``CurlTransport/Configuration/maximumExpansionFactor`` (`dataLengthExceedsMaximum`).
    case excessiveExpansion
    /// The process has no thread or memory left, had no descriptor left within the time limit, was forked, or is
    /// exiting (`cannotLoadFromNetwork`).
    case unavailable
  }

  /// The kind of failure.
  public let code: Code
  /// A short description of the failure.
  public let reason: String
  /// libcurl's own code (`CURLcode`); 0 if libcurl reported no error.
  public let curlCode: Int

  /// Creates an error. Its code determines the remedy in the description.
  public init(_ code: Code, _ reason: String, curlCode: Int = 0) {
    self.code = code
    self.reason = reason
    self.curlCode = curlCode
  }

  /// The failure, its reason and the remedy.
  public var description: String {
    let number = curlCode == 0 ? "" : " (libcurl error \(curlCode))"
    return "The request failed: \(reason)\(number). \(remedy)."
  }

  private var remedy: String {
    switch code {
    case .invalidURL, .unsupportedScheme: "Use an http or https URL with a host and without user information"
    case .invalidRequest: "Correct the method, the fields or the content"
    case .cannotFindHost: "Check the host name, the name server and the proxy"
    case .cannotConnect: "Check the address, and whether the server or the proxy accepts connections"
    case .timedOut: "Send the request again, or allow more time"
    case .connectionLost: "Send the request again if that can do no harm"
    case .badServerResponse: "Check the server"
    case .untrustedCertificate: "Check the server's certificate, or trust its issuer by a certificate file"
    case .secureConnectionFailed: "Check the TLS settings of both sides and the certificate files"
    case .undecodableContent: "Check the server, or switch decoding off"
    case .excessiveExpansion: "Raise the limit if the server is trusted"
    case .unavailable: "Free resources; after a fork, use the transport in the parent only"
    }
  }
}

extension CurlTransportError: LocalizedError {
  /// The ``description``.
  public var errorDescription: String? { description }
}

extension CurlTransportError {
  /// Creates the error for libcurl's result of a transfer.
  ///
  /// - Parameters:
  ///   - result: libcurl's code. `CURLE_OK` means that the transfer ended without a final head.
  ///   - systemError: `CURLINFO_OS_ERRNO`. It may be from an earlier address, so only some codes use it.
  ///   - text: The handle's error buffer; empty if libcurl gave no reason.
  init(_ result: CURLcode, systemError: Int, text: String) {
    let reason = text.isEmpty ? String(cString: curl_easy_strerror(result)) : text
    self.init(
      Self.code(result, systemError: systemError), Self.sentence(result, reason), curlCode: Int(result.rawValue))
  }

  private static func sentence(_ result: CURLcode, _ reason: String) -> String {
    switch result {
    case CURLE_OK: "the connection ended within the head of the response"
    // libcurl 7.88 returns this code for fields above 100 KB.
    case CURLE_OUT_OF_MEMORY: "a field of the response is too large"
    default: reason
    }
  }

  private static func code(_ result: CURLcode, systemError: Int) -> Code {
    switch result {
    case CURLE_URL_MALFORMAT: .invalidURL
    case CURLE_COULDNT_RESOLVE_HOST, CURLE_COULDNT_RESOLVE_PROXY: .cannotFindHost
    case CURLE_COULDNT_CONNECT: systemError == Int(ETIMEDOUT) ? .timedOut : .cannotConnect
    case CURLE_PROXY: .cannotConnect
    case CURLE_OPERATION_TIMEDOUT: .timedOut
    case CURLE_PEER_FAILED_VERIFICATION: .untrustedCertificate
    case CURLE_SSL_CONNECT_ERROR, CURLE_SSL_CERTPROBLEM, CURLE_SSL_CACERT_BADFILE, CURLE_SSL_CIPHER,
      CURLE_SSL_ENGINE_NOTFOUND, CURLE_SSL_ISSUER_ERROR, CURLE_USE_SSL_FAILED:
      .secureConnectionFailed
    case CURLE_SEND_ERROR, CURLE_RECV_ERROR, CURLE_PARTIAL_FILE, CURLE_SEND_FAIL_REWIND: .connectionLost
    // CURLE_UNSUPPORTED_PROTOCOL, for an http or https URL, means that the response is not HTTP.
    default: .badServerResponse
    }
  }
}

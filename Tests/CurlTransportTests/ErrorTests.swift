import CCurl
import Glibc
import Testing

// libcurl's codes, most of which no origin can cause.
@testable import CurlTransport

/// Tests of the errors for libcurl's codes.
@Suite("Errors of the curl transport")
struct ErrorTests {
  /// libcurl's code, the `errno` of the transfer, and the error.
  static let codes: [(CURLcode, CInt, CurlTransportError.Code)] = [
    (CURLE_OK, 0, .badServerResponse), (CURLE_UNSUPPORTED_PROTOCOL, 0, .badServerResponse),
    (CURLE_URL_MALFORMAT, 0, .invalidURL), (CURLE_COULDNT_RESOLVE_PROXY, 0, .cannotFindHost),
    (CURLE_COULDNT_RESOLVE_HOST, 0, .cannotFindHost), (CURLE_COULDNT_CONNECT, ECONNREFUSED, .cannotConnect),
    (CURLE_COULDNT_CONNECT, ETIMEDOUT, .timedOut), (CURLE_COULDNT_CONNECT, ENETUNREACH, .cannotConnect),
    (CURLE_WEIRD_SERVER_REPLY, 0, .badServerResponse), (CURLE_PARTIAL_FILE, 0, .connectionLost),
    (CURLE_OUT_OF_MEMORY, 0, .badServerResponse), (CURLE_OPERATION_TIMEDOUT, 0, .timedOut),
    (CURLE_SSL_CONNECT_ERROR, 0, .secureConnectionFailed), (CURLE_GOT_NOTHING, 0, .badServerResponse),
    (CURLE_SEND_ERROR, EPIPE, .connectionLost), (CURLE_RECV_ERROR, ECONNRESET, .connectionLost),
    // The number may be from an address that was tried before.
    (CURLE_RECV_ERROR, ECONNREFUSED, .connectionLost), (CURLE_SSL_CERTPROBLEM, 0, .secureConnectionFailed),
    (CURLE_PEER_FAILED_VERIFICATION, 0, .untrustedCertificate), (CURLE_BAD_CONTENT_ENCODING, 0, .badServerResponse),
    (CURLE_SEND_FAIL_REWIND, 0, .connectionLost), (CURLE_SSL_CACERT_BADFILE, 0, .secureConnectionFailed),
    // 100 is CURLE_TOO_LARGE of later versions.
    (CURLE_PROXY, 0, .cannotConnect), (CURLcode(100), 0, .badServerResponse),
  ]

  @Test("A libcurl that is older than the tested versions is refused, with both versions in the error")
  func oldLibrary() throws {
    try LoadedLibcurl.check()
    try LoadedLibcurl.check(version: 0x07_5801)
    let error = #expect(throws: CurlTransportError.self) { try LoadedLibcurl.check(version: 0x07_5101) }
    #expect(error?.code == .unavailable)
    #expect(error?.reason == "libcurl 7.81.1 is loaded, and at least 7.88.1 is required")
  }

  @Test("Each code has its error, which states libcurl's code")
  func table() {
    for (code, systemError, expected) in Self.codes {
      let error = CurlTransportError(code, systemError: Int(systemError), text: "")
      #expect(error.code == expected, "\(code.rawValue), errno \(systemError)")
      #expect(error.curlCode == Int(code.rawValue))
      #expect(!error.reason.isEmpty)
    }
  }
}

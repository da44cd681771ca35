import CachingClient
import CurlTransport
import Foundation
import FoundationNetworking
import HTTPCaching

/// The transport of a load: libcurl or a session, with the cookies and credentials of the load's configuration.
struct LoadTransport: Transport {
  /// The HTTP client that carries the requests.
  enum Carrier: Sendable {
    case curl(CurlTransport)
    /// A session of this library, which stores cookies itself.
    case session(FoundationTransport)
  }

  let carrier: Carrier
  /// Returns the session for content that only Foundation can read.
  let streamCarrier: @Sendable () -> FoundationTransport
  /// Where received cookies are stored over libcurl; nil if they are not.
  let cookies: HTTPCookieStorage?
  let challenges: ChallengeResponder

  /// Whether there may be credentials for an origin that requests them.
  var hasCredentials: Bool { challenges.hasCredentials }

  func send(_ request: OutgoingRequest) async throws -> IncomingResponse {
    try await challenges.send(request, over: carry)
  }

  private func carry(_ request: OutgoingRequest) async throws -> IncomingResponse {
    switch carrier {
    case .session(let transport): return try await transport.send(request)
    case .curl where request.hasBodyStream: return try await streamCarrier().send(request)
    case .curl(let transport):
      let response = try await transport.send(request.forCurl)
      await cookies?.keep(response.head.fields.values(of: "Set-Cookie"), from: request.head.url)
      return response
    }
  }
}

extension OutgoingRequest {
  /// The request with its content as bytes, and the user of its URL as a field, as libcurl's transport requires.
  ///
  /// The caching client has seen the user in the URL, which is part of the Vary key.
  fileprivate var forCurl: OutgoingRequest {
    var request = self
    if case .inContext? = body, let content = (context as? RequestContext)?.request.httpBody {
      request.body = .bytes(content)
    }
    guard head.url.user != nil || head.url.password != nil,
      var components = URLComponents(url: head.url, resolvingAgainstBaseURL: true)
    else { return request }
    let pair = "\(components.user ?? ""):\(components.password ?? "")"
    components.user = nil
    components.password = nil
    // Without an URL of this form the transport refuses the request.
    guard let url = components.url else { return request }
    request.head.url = url
    if !head.fields.contains("Authorization") {
      request.head.fields.set("Authorization", "Basic " + Data(pair.utf8).base64EncodedString())
    }
    return request
  }
}

extension HTTPCookieStorage {
  private static let queue = DispatchQueue(label: "LMDBURLCache.cookies")

  /// Stores the cookies of a response, which has one line per cookie.
  ///
  /// Runs on a queue, because the storage may write to a file.
  fileprivate func keep(_ lines: [String], from url: URL) async {
    guard !lines.isEmpty else { return }
    await withCheckedContinuation { continuation in
      Self.queue.async {
        for line in lines {
          let cookies = HTTPCookie.cookies(
            withResponseHeaderFields: ["Set-Cookie": FieldText.displayed(line)], for: url)
          self.setCookies(cookies, for: url, mainDocumentURL: nil)
        }
        continuation.resume()
      }
    }
  }
}

extension URLError {
  /// Converts an error of libcurl's transport to the corresponding error of Foundation.
  package init(_ error: CurlTransportError) {
    let code: URLError.Code =
      switch error.code {
      case .invalidURL, .invalidRequest: .badURL
      case .unsupportedScheme: .unsupportedURL
      case .cannotFindHost: .cannotFindHost
      case .cannotConnect: .cannotConnectToHost
      case .timedOut: .timedOut
      case .connectionLost: .networkConnectionLost
      case .badServerResponse: .badServerResponse
      case .untrustedCertificate: .serverCertificateUntrusted
      case .secureConnectionFailed: .secureConnectionFailed
      case .undecodableContent: .cannotDecodeContentData
      case .excessiveExpansion: .dataLengthExceedsMaximum
      case .unavailable: .cannotLoadFromNetwork
      }
    self.init(code, error.description)
  }
}

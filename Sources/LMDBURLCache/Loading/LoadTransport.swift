import CachingClient
import CurlTransport
import Foundation
import FoundationNetworking
import HTTPCaching

/// The transport of a load.
enum LoadTransport: Transport {
  case session(URLSessionTransport)
  /// libcurl, or a session of the context for requests that libcurl's transport refuses.
  ///
  /// Libcurl's transport refuses body streams and URLs with user information.
  case curl(FoundationCurlTransport, else: SessionContext)

  func send(_ request: OutgoingRequest) async throws -> IncomingResponse {
    switch self {
    case .session(let transport): return try await transport.send(request)
    case .curl(let transport, let context):
      guard let carried = transport.carried(request) else {
        return try await context.loadTransport(for: nil).send(request)
      }
      return try await transport.send(carried)
    }
  }

  /// Whether this transport may have credentials for an origin that requests them.
  var hasCredentials: Bool {
    switch self {
    case .session(let transport): transport.hasCredentials
    // libcurl's transport returns a 401 as the response.
    case .curl: false
    }
  }
}

/// Sends requests through the fleet, which may have a shared response, and otherwise over a load's transport.
struct FleetTransport: Transport {
  let fleet: any FleetMembership
  let transport: LoadTransport

  func send(_ request: OutgoingRequest) async throws -> IncomingResponse {
    try await fleet.send(request, over: transport)
  }
}

/// Sends requests over libcurl and stores the received cookies.
final class FoundationCurlTransport: Transport {
  private let curl: CurlTransport
  /// The cookie storage; nil if cookies are not stored.
  private let cookies: HTTPCookieStorage?

  /// - Parameter configuration: The session configuration with the cookie policy and storage.
  init(_ curl: CurlTransport.Configuration, configuration: URLSessionConfiguration) {
    self.curl = CurlTransport(curl)
    cookies = configuration.httpCookieAcceptPolicy == .never ? nil : configuration.httpCookieStorage
  }

  /// Returns the request in the form that libcurl's transport accepts; nil for one that it would refuse.
  func carried(_ request: OutgoingRequest) -> OutgoingRequest? {
    guard request.head.url.user == nil, request.head.url.password == nil else { return nil }
    guard case .inContext? = request.body else { return request }
    guard let content = (request.context as? RequestContext)?.request.httpBody else { return nil }
    var carried = request
    carried.body = .bytes(content)
    return carried
  }

  func send(_ request: OutgoingRequest) async throws -> IncomingResponse {
    let response = try await curl.send(request)
    await cookies?.keep(response.head.fields.values(of: "Set-Cookie"), from: request.head.url)
    return response
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
          let cookies = HTTPCookie.cookies(withResponseHeaderFields: ["Set-Cookie": line], for: url)
          self.setCookies(cookies, for: url, mainDocumentURL: nil)
        }
        continuation.resume()
      }
    }
  }
}

extension URLError {
  /// Converts an error of libcurl's transport to the corresponding error of Foundation.
  init(_ error: CurlTransportError) {
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
    self.init(code, userInfo: [NSLocalizedDescriptionKey: error.description])
  }
}

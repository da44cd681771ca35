import CachingClient
import CurlTransport
import Foundation
import HTTPCaching

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// What carries the requests of a load to the origin.
enum LoadTransport: Transport {
  case session(URLSessionTransport)
  /// libcurl's, and for what that refuses on purpose a session of the context: content from a stream, and URLs with
  /// user information.
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

  /// Whether an origin that asks for credentials may get some.
  var hasCredentials: Bool {
    switch self {
    case .session(let transport): transport.hasCredentials
    // A 401 is the response.
    case .curl: false
    }
  }
}

/// Sends the requests of Foundation's callers over libcurl, and keeps the cookies that come.
final class FoundationCurlTransport: Transport {
  private let curl: CurlTransport
  /// The storage of cookies; nil if none are kept.
  private let cookies: SendableCookieStorage?

  /// - Parameter configuration: What says which cookies are kept.
  init(_ curl: CurlTransport.Configuration, configuration: URLSessionConfiguration) {
    self.curl = CurlTransport(curl)
    let keepsCookies = configuration.httpCookieAcceptPolicy != .never
    cookies = keepsCookies ? configuration.httpCookieStorage.map { SendableCookieStorage(storage: $0) } : nil
  }

  /// The request as libcurl's transport takes it; nil for one that it would refuse.
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

/// A storage of cookies, which may write a file.
///
/// `@unchecked Sendable`: Foundation's storage has a lock of its own.
private struct SendableCookieStorage: @unchecked Sendable {
  let storage: HTTPCookieStorage

  private static let queue = DispatchQueue(label: "LMDBURLCache.cookies")

  /// Keeps the cookies of a response, each of which has a line. Not on this thread, since it may wait for the disk.
  func keep(_ lines: [String], from url: URL) async {
    guard !lines.isEmpty else { return }
    await withCheckedContinuation { continuation in
      Self.queue.async {
        for line in lines {
          let cookies = HTTPCookie.cookies(withResponseHeaderFields: ["Set-Cookie": line], for: url)
          storage.setCookies(cookies, for: url, mainDocumentURL: nil)
        }
        continuation.resume()
      }
    }
  }
}

extension URLError {
  /// The error by which Foundation's callers know one of libcurl's transport.
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

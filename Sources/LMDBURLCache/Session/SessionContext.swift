import CachingClient
import CurlTransport
import Foundation
import FoundationNetworking
import HTTPCaching
import Synchronization

/// The cache and the configuration of a session that caches, and the inner sessions that send its requests.
///
/// `@unchecked Sendable`: `configuration` is a copy that does not change after `init`. Weak references are read
/// atomically, and this one is never set again.
final class SessionContext: @unchecked Sendable {
  private weak var sessionCache: LMDBURLCache?
  /// A copy of the session's configuration without the cache, which the session itself retains.
  let configuration: URLSessionConfiguration
  let additionalFields: [(name: String, value: String)]
  private let sessionPolicy: RequestPolicy
  /// The libcurl transport of loads without a session; nil if these loads use a session.
  private let curlTransport: FoundationCurlTransport?
  private let transportReference = AtomicOnceReference<URLSessionTransport>()
  private let loadTransportReference = AtomicOnceReference<URLSessionTransport>()

  /// - Parameters:
  ///   - configuration: The configuration of the session, or of loads without a session.
  ///   - curl: The libcurl settings of loads without a session; nil if these loads use a session.
  init(configuration: URLSessionConfiguration, curl: CurlTransport.Configuration? = nil) {
    sessionCache = configuration.urlCache as? LMDBURLCache
    let copy = configuration.copied
    copy.urlCache = nil
    if let curl { copy.timeoutIntervalForRequest = curl.timeout / .seconds(1) }
    self.configuration = copy
    curlTransport = curl.map { FoundationCurlTransport($0, configuration: copy) }
    sessionPolicy = RequestPolicy(copy.requestCachePolicy)
    additionalFields = (copy.httpAdditionalHeaders ?? [:]).compactMap { name, value in
      (name.base as? String).map { ($0, value as? String ?? "\(value)") }
    }
  }

  /// The session's cache; nil if it is not an `LMDBURLCache`.
  var cache: LMDBURLCache? { self === Self.unknown ? URLCache.shared as? LMDBURLCache : sessionCache }

  // MARK: Inner sessions

  /// The transport of the session's tasks.
  ///
  /// It does not handle credentials: the outer session receives the 401. It is created on first use. If a session were
  /// created before `installShared`, the shared session would not ask this library's protocol class.
  var transport: URLSessionTransport {
    transportReference.load {
      let inside = insideConfiguration
      inside.urlCredentialStorage = nil
      return URLSessionTransport(configuration: inside)
    }
  }

  /// Returns the transport of requests that no task of the session made.
  ///
  /// It responds to challenges itself, because no outer session receives them.
  ///
  /// - Parameter session: The session of this context, if it has one.
  func loadTransport(for session: URLSession?) -> URLSessionTransport {
    loadTransportReference.load {
      URLSessionTransport(configuration: insideConfiguration, challenges: ChallengeResponder(session: session))
    }
  }

  /// Returns the transport of a load: the one in the cache's options for a load without a session, otherwise a session.
  func loadTransport(of session: URLSession?) -> LoadTransport {
    if let curlTransport { return .curl(curlTransport, else: self) }
    return .session(loadTransport(for: session))
  }

  private var insideConfiguration: URLSessionConfiguration {
    let inside = configuration.copied
    inside.leaveCachingOut()
    // The request already contains these fields and cookies, which the caching client must see for the Vary key.
    inside.httpAdditionalHeaders = nil
    inside.httpShouldSetCookies = false
    return inside
  }

  /// Returns the protocol class that would handle the request without this library.
  func builtInClass(for request: URLRequest) -> URLProtocol.Type? {
    let configured = configuration.protocolClasses ?? []
    let all = configured + (URLSessionConfiguration.default.protocolClasses ?? [])
    for candidate in all where candidate != CachingURLProtocol.self {
      if let candidate = candidate as? URLProtocol.Type, candidate.canInit(with: request) { return candidate }
    }
    return nil
  }

  // MARK: Requests

  /// Returns the request with the session's additional fields, and with its cookies if `addsCookies` is true.
  func complete(_ request: URLRequest, addsCookies: Bool) -> URLRequest {
    var request = request
    for (name, value) in additionalFields where request.value(forHTTPHeaderField: name) == nil {
      request.setValue(value, forHTTPHeaderField: name)
    }
    if addsCookies, configuration.httpShouldSetCookies, request.value(forHTTPHeaderField: "Cookie") == nil,
      let url = request.url, let cookies = cookieField(for: url)
    {
      request.setValue(cookies, forHTTPHeaderField: "Cookie")
    }
    return request
  }

  /// Returns how long a request may wait for data: as long as in the inner session.
  func timeLimit(of request: URLRequest) -> Duration {
    .seconds((request.ownTimeLimit ?? configuration.timeoutIntervalForRequest).asTimeLimit.rounded(.down))
  }

  /// Returns the request that follows a redirect with the present cookies for its URL.
  ///
  /// The redirect itself may have set or deleted cookies.
  ///
  /// - Parameter isFromJar: Whether the `Cookie` field of the redirected request came from the cookie storage and not
  ///   from the caller.
  func refreshingCookies(of next: URLRequest, isFromJar: Bool) -> URLRequest {
    var next = next
    if isFromJar { next.setValue(nil, forHTTPHeaderField: "Cookie") }
    if configuration.httpShouldSetCookies, let url = next.url, let cookies = cookieField(for: url) {
      next.setValue(cookies, forHTTPHeaderField: "Cookie")
    }
    return next
  }

  /// Whether the `Cookie` field of a request equals the cookies in the storage for its URL.
  func hasCookiesFromJar(_ request: URLRequest) -> Bool {
    guard configuration.httpShouldSetCookies, let field = request.value(forHTTPHeaderField: "Cookie"),
      let url = request.url
    else { return false }
    return field == cookieField(for: url)
  }

  private func cookieField(for url: URL) -> String? {
    let cookies = configuration.httpCookieStorage?.cookies(for: url) ?? []
    return cookies.isEmpty ? nil : HTTPCookie.requestHeaderFields(with: cookies)["Cookie"]
  }

  /// Returns a request for the caching client; nil for one without a URL.
  func clientRequest(_ request: URLRequest, context: RequestContext, cache: LMDBURLCache) -> ClientRequest? {
    guard let head = request.head else { return nil }
    var policy = RequestPolicy(request.cachePolicy)
    if policy == .useProtocolCachePolicy { policy = sessionPolicy }
    return ClientRequest(
      head: head, body: request.hasBody ? .inContext : nil, policy: policy,
      partition: cache.core.options.partition(request), overrides: cache.overrides(for: request), context: context)
  }

  /// Returns a task's request as its session sends it: with the additional fields, which Foundation adds when it sends.
  static func request(of task: URLSessionTask) -> URLRequest? {
    guard let request = task.currentRequest else { return nil }
    guard let session = TaskReflection.session(of: task) else { return request }
    let context = of(session)
    return context.additionalFields.isEmpty ? request : context.complete(request, addsCookies: false)
  }

  // MARK: By session

  private struct Known {
    weak var session: URLSession?
    let context: SessionContext
  }

  private static let known = Mutex<[ObjectIdentifier: Known]>([:])

  /// Returns the context of a session. A session has one context during its life.
  static func of(_ session: URLSession) -> SessionContext {
    let id = ObjectIdentifier(session)
    if let known = known.withLock({ $0[id] }), known.session === session { return known.context }
    // Read `configuration` once, because each read makes a copy.
    let context = SessionContext(configuration: session.configuration)
    // Release these outside the lock: releasing the last reference to a context ends its inner sessions.
    var released: [Known] = []
    defer { withExtendedLifetime(released) {} }
    return known.withLock { known in
      if let other = known[id], other.session === session { return other.context }
      released = known.values.filter { $0.session == nil }
      known = known.filter { $0.value.session != nil }
      known[id] = Known(session: session, context: context)
      return context
    }
  }

  /// Returns the context of a task's session.
  static func of(_ task: URLSessionTask) -> SessionContext {
    TaskReflection.session(of: task).map { of($0) } ?? unknown
  }

  /// The context of tasks whose session is unknown: the shared cache and the default configuration.
  private static let unknown = SessionContext(configuration: .default)
}

import CachingClient
import CurlTransport
import Foundation
import HTTPCaching
import Synchronization

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// What belongs to a session that caches: its cache, its configuration, and the sessions inside by which it reaches the
/// origin.
///
/// `@unchecked Sendable`: `configuration` is a copy that nobody changes after `init`; weak references are read atomically, and
/// this one is never set again.
final class SessionContext: @unchecked Sendable {
  private weak var sessionCache: LMDBURLCache?
  /// The session's own, without the cache in it, which the session keeps alive as long as it needs it.
  let configuration: URLSessionConfiguration
  let additionalFields: [(name: String, value: String)]
  private let sessionPolicy: RequestPolicy
  /// What carries loads without a session over libcurl; nil if a session carries them.
  private let curlTransport: FoundationCurlTransport?
  private let transportReference = OnceReference<URLSessionTransport>()
  private let loadTransportReference = OnceReference<URLSessionTransport>()

  /// - Parameters:
  ///   - configuration: That of the session, or of loads without one.
  ///   - curl: How loads without a session go over libcurl; nil if they go over a session.
  init(configuration: URLSessionConfiguration, curl: CurlTransport.Configuration? = nil) {
    sessionCache = configuration.urlCache as? LMDBURLCache
    guard let copy = configuration.copy() as? URLSessionConfiguration else {
      preconditionFailure("A copy of a configuration is a configuration")
    }
    copy.urlCache = nil
    if let curl { copy.timeoutIntervalForRequest = curl.timeout / .seconds(1) }
    self.configuration = copy
    curlTransport = curl.map { FoundationCurlTransport($0, configuration: copy) }
    sessionPolicy = RequestPolicy(copy.requestCachePolicy)
    additionalFields = (copy.httpAdditionalHeaders ?? [:]).compactMap { name, value in
      (name.base as? String).map { ($0, value as? String ?? "\(value)") }
    }
  }

  /// The session's cache; nil if it has none of ours.
  var cache: LMDBURLCache? { self === Self.unknown ? URLCache.shared as? LMDBURLCache : sessionCache }

  // MARK: The sessions inside

  /// Carries the requests of the session's tasks. Credentials are a matter of the session outside, which gets the 401.
  ///
  /// Made on first use: a session made before `installShared` would keep the shared session from asking us.
  var transport: URLSessionTransport {
    if let transport = transportReference.load() { return transport }
    let inside = insideConfiguration
    inside.urlCredentialStorage = nil
    return transportReference.storeIfNil(URLSessionTransport(configuration: inside, challenges: nil))
  }

  /// Carries the requests that no task of the session has made. Nobody outside sees their challenges, so that they are
  /// answered inside.
  ///
  /// - Parameter session: The session of this context, if it has one.
  func loadTransport(for session: URLSession?) -> URLSessionTransport {
    if let transport = loadTransportReference.load() { return transport }
    let challenges = ChallengeResponder(session: session)
    return loadTransportReference.storeIfNil(
      URLSessionTransport(configuration: insideConfiguration, challenges: challenges))
  }

  /// Carries the requests of a load without a session as the options of its cache say, and those of others over a session.
  func loadTransport(of session: URLSession?) -> LoadTransport {
    if let curlTransport { return .curl(curlTransport, else: self) }
    return .session(loadTransport(for: session))
  }

  private var insideConfiguration: URLSessionConfiguration {
    guard let inside = configuration.copy() as? URLSessionConfiguration else {
      preconditionFailure("A copy of a configuration is a configuration")
    }
    inside.leaveCachingOut()
    // Fields and cookies are in the request by then: the engine must see them, since responses may vary by them.
    inside.httpAdditionalHeaders = nil
    inside.httpShouldSetCookies = false
    return inside
  }

  /// The class that would have had the request without us.
  func builtInClass(for request: URLRequest) -> URLProtocol.Type? {
    let configured = configuration.protocolClasses ?? []
    let all = configured + (URLSessionConfiguration.default.protocolClasses ?? [])
    for candidate in all where candidate != CachingURLProtocol.self {
      if let candidate = candidate as? URLProtocol.Type, candidate.canInit(with: request) { return candidate }
    }
    return nil
  }

  // MARK: Requests

  /// The request with what the session adds to each: its additional fields, and with `addsCookies` its cookies.
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

  /// How long a request waits while nothing comes: as long as the session inside would.
  func timeLimit(of request: URLRequest) -> Duration {
    .seconds((request.ownTimeLimit ?? configuration.timeoutIntervalForRequest).asTimeLimit.rounded(.down))
  }

  /// The request to which a redirect leads, with the cookies that the jar has now for its URL. The redirect itself may
  /// have set or deleted some.
  ///
  /// - Parameter isFromJar: Whether the `Cookie` field of the request that was redirected came from the jar, and not
  ///   from its caller.
  func refreshingCookies(of next: URLRequest, isFromJar: Bool) -> URLRequest {
    var next = next
    if isFromJar { next.setValue(nil, forHTTPHeaderField: "Cookie") }
    if configuration.httpShouldSetCookies, let url = next.url, let cookies = cookieField(for: url) {
      next.setValue(cookies, forHTTPHeaderField: "Cookie")
    }
    return next
  }

  /// Whether the `Cookie` field of a request is what the jar has for its URL.
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

  /// The engine's view of a request; nil for one without a URL.
  func clientRequest(_ request: URLRequest, context: RequestContext, cache: LMDBURLCache) -> ClientRequest? {
    guard let head = request.head else { return nil }
    var policy = RequestPolicy(request.cachePolicy)
    if policy == .useProtocolCachePolicy { policy = sessionPolicy }
    let hasBody = request.httpBody != nil || request.httpBodyStream != nil
    return ClientRequest(
      head: head, body: hasBody ? .inContext : nil, policy: policy,
      partition: cache.core.options.partition(request), overrides: cache.overrides(for: request), context: context)
  }

  /// A task's request as its session sends it: with the additional fields, which Foundation adds at the last moment.
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

  /// The context of a session, the same as long as the session lives.
  static func of(_ session: URLSession) -> SessionContext {
    let id = ObjectIdentifier(session)
    if let known = known.withLock({ $0[id] }), known.session === session { return known.context }
    // `configuration` makes a copy, so it is read once.
    let context = SessionContext(configuration: session.configuration)
    // Released outside the lock: the last reference to a context ends the session inside.
    var gone: [Known] = []
    defer { withExtendedLifetime(gone) {} }
    return known.withLock { known in
      if let other = known[id], other.session === session { return other.context }
      gone = known.values.filter { $0.session == nil }
      known = known.filter { $0.value.session != nil }
      known[id] = Known(session: session, context: context)
      return context
    }
  }

  /// The context of a task's session.
  static func of(_ task: URLSessionTask) -> SessionContext {
    TaskReflection.session(of: task).map { of($0) } ?? unknown
  }

  /// For a task whose session cannot be told: the shared cache and the default configuration.
  private static let unknown = SessionContext(configuration: .default)
}

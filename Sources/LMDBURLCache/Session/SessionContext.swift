import CachingClient
import CurlTransport
import Foundation
import FoundationNetworking
import HTTPCaching
import Synchronization

/// The cache and the configuration of a session. The cache of a load owns the transports that send its requests.
///
/// `@unchecked Sendable`: `configuration` is a copy that does not change after `init`. Weak references are read
/// atomically, and this one is never set again.
final class SessionContext: @unchecked Sendable {
  private weak var sessionCache: LMDBURLCache?
  /// A copy of the session's configuration without the cache, which the session itself retains.
  let configuration: URLSessionConfiguration
  private let additionalFields: [(name: String, value: String)]
  private let sessionPolicy: RequestPolicy
  /// Whether the configuration is that of a session, whose limits replace those of the cache's libcurl settings.
  private let isOfSession: Bool
  /// Whether the configuration has protocol classes of its own, such as stubs in tests, which only Foundation asks.
  private let hasOwnProtocolClasses: Bool
  /// Whether the session asks this library's protocol class. Otherwise it asks the cache, but stores nothing.
  let asksCachingProtocol: Bool

  init(of session: URLSession) {
    let configuration = session.configuration.copied
    sessionCache = configuration.urlCache as? LMDBURLCache
    configuration.urlCredentialStorage.map { ProgramCredentials.shared.observe($0) }
    configuration.urlCache = nil
    self.configuration = configuration
    additionalFields = Self.additionalFields(of: configuration)
    sessionPolicy = RequestPolicy(configuration.requestCachePolicy)
    hasOwnProtocolClasses = configuration.hasOwnProtocolClasses
    // Without any class, Foundation asks all registered ones.
    let classes = configuration.protocolClasses ?? []
    asksCachingProtocol = classes.isEmpty || classes.contains { $0 == CachingURLProtocol.self }
    isOfSession = true
  }

  /// Creates the context of loads without a session.
  init(configuration: URLSessionConfiguration, curl: CurlTransport.Configuration? = nil) {
    let copy = configuration.copied
    copy.urlCache = nil
    if let curl { copy.timeoutIntervalForRequest = curl.timeout / .seconds(1) }
    self.configuration = copy
    additionalFields = Self.additionalFields(of: copy)
    sessionPolicy = RequestPolicy(copy.requestCachePolicy)
    hasOwnProtocolClasses = copy.hasOwnProtocolClasses
    asksCachingProtocol = true
    isOfSession = false
  }

  private static func additionalFields(of configuration: URLSessionConfiguration) -> [(name: String, value: String)] {
    (configuration.httpAdditionalHeaders ?? [:]).compactMap { name, value in
      (name.base as? String).map { ($0, value as? String ?? "\(value)") }
    }
  }

  /// The session's cache; nil if it is not an `LMDBURLCache`.
  var cache: LMDBURLCache? { self === Self.unknown ? URLCache.shared as? LMDBURLCache : sessionCache }

  // MARK: Transports

  /// Returns the transport of a load.
  ///
  /// - Parameters:
  ///   - cache: The cache of the load, whose options select the transport.
  ///   - session: The session whose delegate responds to challenges; nil for a load without a session.
  ///   - task: The task of a session that caches; nil for other loads.
  func transport(for cache: LMDBURLCache, _ session: URLSession?, _ task: URLSessionTask?) -> LoadTransport {
    let usesCookies = configuration.httpCookieAcceptPolicy != .never
    return LoadTransport(
      carrier: curlTransport(for: cache).map { .curl($0) } ?? .session(innerTransport(for: cache)),
      streamCarrier: { [self] in innerTransport(for: cache) },
      cookies: usesCookies ? configuration.httpCookieStorage : nil,
      challenges: ChallengeResponder(
        session: { session }, storage: configuration.urlCredentialStorage, task: delegateTask(for: task, cache)))
  }

  /// Returns the task that delegate methods of a load get.
  func delegateTask(for task: URLSessionTask?, _ cache: LMDBURLCache) -> DelegateTask {
    task.map { .running($0) } ?? .idle { [self] in innerTransport(for: cache).session }
  }

  /// Returns the libcurl transport for loads of a cache; nil if these loads use a session.
  private func curlTransport(for cache: LMDBURLCache) -> CurlTransport? {
    guard cache.options.usesCurl, !hasOwnProtocolClasses else { return nil }
    return cache.sessionTransports.curlTransport(of: self) {
      var settings = cache.options.curlConfiguration ?? CurlTransport.Configuration()
      if isOfSession { settings.maximumConnectionsPerOrigin = max(1, configuration.httpMaximumConnectionsPerHost) }
      return settings
    }
  }

  /// The codings that the transport for loads of a cache removes from content.
  private func contentDecoding(for cache: LMDBURLCache) -> ContentDecoding {
    hasOwnProtocolClasses ? .all : cache.contentDecoding
  }

  /// The transport over a session of this library, which sends requests that libcurl's transport cannot send.
  ///
  /// It is created on first use. If a session were created before `installShared`, the shared session would not ask
  /// this library's protocol class.
  private func innerTransport(for cache: LMDBURLCache) -> FoundationTransport {
    cache.sessionTransports.sessionTransport(of: self) {
      let inside = configuration.copied
      inside.leaveCachingOut()
      // The request already contains these fields and cookies, which the caching client must see for the Vary key.
      inside.httpAdditionalHeaders = nil
      inside.httpShouldSetCookies = false
      // The load responds to challenges itself.
      inside.urlCredentialStorage = nil
      return FoundationTransport(configuration: inside)
    }
  }

  /// Returns the session for a cache's loads of URLs that are not HTTP, which are not cached.
  func sessionForOtherSchemes(_ cache: LMDBURLCache) -> URLSession { innerTransport(for: cache).session }

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

  /// Returns a request with the session's additional fields where it has none of its own.
  ///
  /// - Parameter hasLeftOrigin: Whether a redirect has led to another origin, which must not get fields that are for
  ///   the first one.
  func addingFields(to request: URLRequest, hasLeftOrigin: Bool = false) -> URLRequest {
    var request = request
    for (name, value) in additionalFields where request.value(forHTTPHeaderField: name) == nil {
      if hasLeftOrigin, Redirection.isForOneOrigin(name) { continue }
      request.setValue(value, forHTTPHeaderField: name)
    }
    return request
  }

  /// Returns a request without a `Cookie` field with the present cookies for its URL.
  func addingCookies(to request: URLRequest) -> URLRequest {
    guard configuration.httpShouldSetCookies, let url = request.url, let cookies = cookieField(for: url) else {
      return request
    }
    var request = request
    request.setValue(cookies, forHTTPHeaderField: "Cookie")
    return request
  }

  /// Returns a request with the present cookies for its URL in place of its `Cookie` field.
  func settingCookies(of request: URLRequest) -> URLRequest {
    guard configuration.httpShouldSetCookies, let url = request.url else { return request }
    var request = request
    request.setValue(cookieField(for: url), forHTTPHeaderField: "Cookie")
    return request
  }

  /// Whether the `Cookie` field of a request equals the cookies in the storage for its URL.
  func hasStoredCookies(_ request: URLRequest) -> Bool {
    request.url.flatMap { cookieField(for: $0) } == request.value(forHTTPHeaderField: "Cookie")
  }

  private func cookieField(for url: URL) -> String? {
    // Foundation's search for a URL takes as long in an empty storage as in another.
    guard let storage = configuration.httpCookieStorage, storage.cookies?.isEmpty == false else { return nil }
    let cookies = storage.cookies(for: url) ?? []
    return cookies.isEmpty ? nil : HTTPCookie.requestHeaderFields(with: cookies)["Cookie"]
  }

  /// Returns how long a request may wait for data.
  func timeLimit(of request: URLRequest) -> Duration {
    .seconds((request.ownTimeLimit ?? configuration.timeoutIntervalForRequest).asTimeLimit.rounded(.down))
  }

  /// The time limit of a whole load with all redirects; nil for Foundation's default, which is a week.
  ///
  /// Foundation on Linux ignores the limit of a session's configuration.
  var resourceTimeLimit: Duration? {
    let limit = configuration.timeoutIntervalForResource
    return isOfSession && limit > 0 && limit < 604_800 ? .seconds(limit) : nil
  }

  /// Returns a request for the caching client; nil for one without a URL.
  func clientRequest(_ request: URLRequest, context: RequestContext, cache: LMDBURLCache) -> CachingClientRequest? {
    guard let head = request.head else { return nil }
    return clientRequest(request, head, context: context, cache: cache)
  }

  /// Returns a request for the caching client.
  ///
  /// - Parameter head: The head of the request.
  func clientRequest(
    _ request: URLRequest, _ head: consuming RequestHead, context: RequestContext, cache: LMDBURLCache
  ) -> CachingClientRequest {
    head.contentDecoding = contentDecoding(for: cache)
    if head.contentDecoding == .none { head.defaultAcceptEncoding = nil }
    var policy = RequestPolicy(request.cachePolicy)
    if policy == .useProtocolCachePolicy { policy = sessionPolicy }
    return CachingClientRequest(
      head: head, body: request.contentSource, policy: policy,
      partition: cache.options.partition(request), overrides: cache.options.overrides?(request),
      rules: cache.options.rules, context: context)
  }

  /// Returns a task's request as its session sends it: with the additional fields, which Foundation adds when it sends.
  static func request(of task: URLSessionTask) -> URLRequest? { request(of: task, in: known(of: task)) }

  /// Returns a task's request as its session sends it.
  ///
  /// - Parameter context: The context of the task's session; nil if the session is unknown.
  static func request(of task: URLSessionTask, in context: SessionContext?) -> URLRequest? {
    guard let request = task.currentRequest else { return nil }
    return context?.addingFields(to: request) ?? request
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
    let context = SessionContext(of: session)
    // Release these outside the lock: releasing the last reference to a context ends its transports.
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

  static func of(_ task: URLSessionTask) -> SessionContext { known(of: task) ?? unknown }

  /// Returns the context of a task's session; nil if the session is unknown.
  static func known(of task: URLSessionTask) -> SessionContext? { TaskReflection.session(of: task).map { of($0) } }

  /// The context of tasks whose session is unknown: the shared cache and the default configuration.
  private static let unknown = SessionContext(configuration: .default)
}

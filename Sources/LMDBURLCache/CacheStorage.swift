import CachingClient
import Foundation
import HTTPCaching
import ResponseStore
import Synchronization

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// What a Foundation caller's request carries through the engine.
final class RequestContext: Sendable {
  /// The request with what the session adds to it; for a redirect, that of the hop.
  let request: URLRequest
  /// The data task, on the first hop of a session's request: stores are then made by the task's methods.
  let task: URLSessionDataTask?
  /// What the session's own lookup found before the protocol was made; used once.
  private let prefetched: Mutex<Prefetched>

  private enum Prefetched: Sendable {
    case none
    case found(CachedURLResponse)
  }

  init(request: URLRequest, task: URLSessionDataTask? = nil, prefetched: CachedURLResponse? = nil) {
    self.request = request
    self.task = task
    self.prefetched = Mutex(prefetched.map { .found($0) } ?? .none)
  }

  func takePrefetched() -> CachedURLResponse? {
    prefetched.withLock { prefetched in
      defer { prefetched = .none }
      if case .found(let response) = prefetched { return response }
      return nil
    }
  }
}

/// Where the engine looks up and stores: always by the cache's public methods, so that a subclass sees it.
struct CacheStorage: ResponseStorage {
  /// A response as the engine handles it.
  struct Entry: StoredResponseView, Sendable {
    let cached: StoredURLResponse
    /// Whether an override put it in the place of ours, so that only the cache's own methods reach where it is kept.
    let isForeign: Bool

    var record: CachedRecord { cached.record }
    var status: Int { cached.record.status }
    var facts: FreshnessFacts { cached.record.facts }
    var fields: HTTPFields { cached.record.fields }
    var bodyByteCount: Int { cached.record.bodyByteCount }
  }

  private final class CacheReference: @unchecked Sendable {
    // Sendable: weak references are loaded atomically, and this one is never set again.
    weak var cache: LMDBURLCache?
    init(_ cache: LMDBURLCache) { self.cache = cache }
  }

  private let reference: CacheReference

  init(cache: LMDBURLCache) {
    reference = CacheReference(cache)
  }

  private var cache: LMDBURLCache? { reference.cache }

  // MARK: Lookups

  func lookup(_ request: ClientRequest) -> Entry? {
    guard let cache else { return nil }
    let context = request.context as? RequestContext
    if let prefetched = context?.takePrefetched(), let entry = entry(prefetched, for: request, cache) { return entry }
    return cache.cachedResponse(for: storageRequest(request)).flatMap { entry($0, for: request, cache) }
  }

  func body(of entry: Entry) -> Data { entry.record.body }

  func variantCount(of request: ClientRequest) -> Int {
    guard let cache, let key = key(of: request) else { return 0 }
    return cache.core.variantCount(key)
  }

  /// A response that an override put in the place of ours is judged by its own fields, as if received when it was made.
  private func entry(_ cached: CachedURLResponse, for request: ClientRequest, _ cache: LMDBURLCache) -> Entry? {
    if let ours = cached as? StoredURLResponse {
      return ours.record.status > 0 ? Entry(cached: ours, isForeign: false) : nil
    }
    guard let response = cached.response as? HTTPURLResponse, let key = key(of: request) else { return nil }
    let direct = DirectStorage(
      request: request.head, response: request.overrides.judged(response.head), responseTime: cache.core.now,
      options: cache.core.options.caching)
    let record = CachedRecord(
      key: key, status: response.statusCode, fields: direct.fields, body: cached.data,
      facts: request.overrides.applied(to: direct.facts, status: response.statusCode),
      vary: VarySelection(selectors: []), attachment: nil, storedAt: cache.core.now)
    return Entry(cached: StoredURLResponse(record, copying: cached), isForeign: true)
  }

  // MARK: Changes

  func store(_ proposal: StorageProposal, for request: ClientRequest) {
    guard let cache, let key = key(of: request), !proposal.isVoid else { return }
    guard proposal.body.count <= cache.core.largestSessionBodyByteCount else { return }
    let change = proposal.attachment as? ChangedResponse
    let record = CachedRecord(
      key: key, status: proposal.status, fields: proposal.fields, body: proposal.body, facts: proposal.facts,
      vary: proposal.vary,
      attachment: change.flatMap { ResponseAttachment($0.cached, keyURL: key.urlString)?.bytes },
      storedAt: cache.core.now)
    let response = StoredURLResponse(
      record, userInfo: change?.cached.userInfo,
      storagePolicy: proposal.isMemoryOnly ? .allowedInMemoryOnly : .allowed,
      order: .store(askedAt: proposal.removalToken, unless: { proposal.isVoid }))
    hand(response, to: cache, for: request, askedAt: proposal.removalToken)
  }

  func update(_ entry: Entry, fields: HTTPFields, facts: FreshnessFacts, for request: ClientRequest) {
    guard let cache else { return }
    let response = StoredURLResponse(
      entry.record.updated(fields: fields, facts: facts), userInfo: entry.cached.userInfo,
      storagePolicy: entry.cached.storagePolicy,
      order: entry.isForeign ? .store(askedAt: nil, unless: { false }) : .update(entry.cached))
    hand(response, to: cache, for: request, askedAt: nil)
  }

  /// Stores by the task's method where there is a task whose request is the one that is answered.
  private func hand(
    _ response: StoredURLResponse, to cache: LMDBURLCache, for request: ClientRequest, askedAt token: RemovalToken?
  ) {
    let task = (request.context as? RequestContext)?.task
    func store() {
      if let task, request.head.method == "GET", task.currentRequest?.httpMethod ?? "GET" == "GET" {
        cache.storeCachedResponse(response, for: task)
      } else {
        cache.storeCachedResponse(response, for: storageRequest(request))
      }
    }
    guard type(of: cache) != LMDBURLCache.self else { return store() }
    // An override may hand another response on, which does not know where it comes from.
    EngineStore.$current.withValue(EngineStore(token: token), operation: store)
  }

  func remove(_ entry: Entry, for request: ClientRequest) async {
    guard let cache else { return }
    let key = entry.record.key
    guard entry.isForeign || cache.core.holds(key) else { return }
    await onBlockingThread {
      var token = cache.core.removalToken
      if cache.core.holds(key) { cache.core.remove(key, movingPast: &token) }
      if entry.isForeign { cache.removeCachedResponse(for: storageRequest(request)) }
    }
  }

  func invalidate(
    _ invalidation: StorageInvalidation, for request: ClientRequest, movingPast token: inout RemovalToken
  ) async {
    guard let cache else { return }
    // Where nothing is stored the disk is spared the sync.
    let keys = invalidation.urls.compactMap { RequestKey(url: $0, partition: request.partition) }
      .filter { invalidation.overtakesFetches || cache.core.holds($0) }
    let scopes = invalidation.groups.compactMap { RemovalScope.group($0, ofOrigin: request.head.url) }
    // A subclass may keep responses elsewhere.
    let urls = type(of: cache) == LMDBURLCache.self ? [] : invalidation.urls
    guard !keys.isEmpty || !scopes.isEmpty || !urls.isEmpty else { return }
    token = await onBlockingThread { [token] in
      var token = token
      for key in keys { cache.core.remove(key, movingPast: &token) }
      for url in urls {
        var asked = storageRequest(request)
        asked.url = url
        cache.removeCachedResponse(for: asked)
      }
      for scope in scopes { cache.core.remove(scope, movingPast: &token) }
      return token
    }
  }

  var removalToken: RemovalToken { cache?.core.removalToken ?? 0 }

  func wasRemoved(_ url: URL?, _ partition: String, since token: inout RemovalToken) -> Bool {
    cache?.core.mayBeRemoved(url, partition, since: &token) ?? false
  }

  func credentialDigest(_ value: String) -> String {
    cache?.credentialDigest(value) ?? value
  }

  // MARK: Keys

  private func key(of request: ClientRequest) -> RequestKey? {
    RequestKey(url: request.keyURL, partition: request.partition)
  }

  /// The request under which a response is stored: a GET for the URL, with the fields that select a variant. The cache makes
  /// the same key of it as the engine.
  private func storageRequest(_ request: ClientRequest) -> URLRequest {
    let base = (request.context as? RequestContext)?.request
    if let base, request.head.method == "GET", base.httpMethod ?? "GET" == "GET", base.url == request.head.url {
      return base
    }
    var head = request.head
    head.method = "GET"
    var asked = (base ?? URLRequest(url: head.url)).replacing(head)
    asked.httpBody = nil
    asked.httpBodyStream = nil
    return asked
  }
}

/// A store that the engine makes, while an override of a subclass handles it.
struct EngineStore: Sendable {
  /// Of the response that was fetched; nil for one that is only updated.
  let token: RemovalToken?

  @TaskLocal static var current: EngineStore?
}

/// What a delegate made of a response that was about to be stored.
struct ChangedResponse: @unchecked Sendable {
  // Sendable: `CachedURLResponse` is immutable and declared so on Linux.
  let cached: CachedURLResponse
}

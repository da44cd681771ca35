import FoundationEssentials
public import HTTPCaching

extension ReuseDecision {
  /// Whether the stored response satisfies the request without the origin.
  var needsNoOrigin: Bool {
    switch self {
    case .serve, .serveStale, .notModified, .partial, .unsatisfiableRange: true
    case .revalidate, .fetch, .fetchMissingRange, .gatewayTimeout: false
    }
  }

  var revalidatesInBackground: Bool {
    switch self {
    case .serveStale(_, let inBackground, _), .notModified(_, let inBackground, _), .partial(_, _, let inBackground, _):
      inBackground
    default: false
    }
  }
}

extension CachingClient {
  func decideMiss(_ request: CachingClientRequest) -> MissDecision {
    Reuse.decideMiss(request: request.head, policy: request.policy, options: options)
  }

  /// Looks a request up and decides.
  ///
  /// A hit for everybody takes one lookup in the storage. One in a key space takes two, and a miss takes one more if
  /// responses with No-Vary-Search may be stored.
  @inlinable  // For specialization: through protocol witnesses a hit is several times slower.
  package func evaluate(_ request: CachingClientRequest) -> LookupResult<Storage.Entry> {
    let start = lookupStart
    let isQuery = !request.isAnswerableFromStore
    if isQuery, !request.isQuery { return resultWithoutLookup(request) }
    if !isQuery, !request.hasCredentials, let key = request.urlKey, let entry = storage.lookup(request, at: key) {
      return result(from: entry, request, start)
    }
    let (entry, spaceKey) = search(request)
    if !isQuery, let entry { return result(from: entry, request, start, at: spaceKey) }
    if isQuery, spaceKey == nil { return resultWithoutLookup(request) }
    // Decisions about a query are those about a GET.
    let keyed = request.under(spaceKey)
    return entry.map { result(from: $0, keyed, start) } ?? resultOfMiss(keyed, start)
  }

  /// Decides about a stored response.
  ///
  /// - Parameter spaceKey: The key under which the response was found, if it is not the request's.
  @inlinable
  @inline(__always)
  func result(
    from entry: Storage.Entry, _ request: CachingClientRequest, _ start: LookupStart, at spaceKey: KeySpace.Key? = nil
  ) -> LookupResult<Storage.Entry> {
    let now = clock()
    let decision = Reuse.decide(
      request: request.head, stored: entry, policy: request.policy, now: now, options: options)
    guard case .serve(let age, let rule) = decision, request.head.method == "GET", options.cacheStatusName == nil else {
      return result(of: decision, from: entry, spaceKey.map { request.under($0) } ?? request, start, now: now)
    }
    return .response(
      Response(
        status: entry.status, body: wholeBody(of: entry), source: .hit, age: age, reason: rule,
        entry: entry, content: .entry(.whole), cacheStatus: nil), revalidating: nil)
  }

  /// Returns the body of an entry, in memory if it is small.
  @inlinable
  func wholeBody(of entry: Storage.Entry) -> ResponseBodyStream {
    let byteCount = entry.bodyByteCount
    return byteCount > Self.maximumCollectedByteCount
      ? storage.chunks(of: entry, in: 0..<byteCount) : ResponseBodyStream(storage.body(of: entry))
  }

  /// The present point in the orders of fetches and removals.
  ///
  /// Read this before a lookup: a fetch that ends later may have stored its result after the lookup, and a later
  /// removal may cover the response that the lookup finds.
  @inlinable var lookupStart: LookupStart {
    LookupStart(
      endedFetchCount: endedFetchCount, invalidationCount: invalidationCount, removalToken: storage.removalToken)
  }

  @usableFromInline var endedFetchCount: UInt64 { inFlightFetches.endedCount }
  @usableFromInline var invalidationCount: UInt64 { inFlightFetches.invalidationCount }

  /// The result for a request that no stored response can satisfy.
  @usableFromInline
  func resultWithoutLookup(_ request: CachingClientRequest) -> LookupResult<Storage.Entry> {
    var asked = request
    // The directives of a query that goes past the cache count as those of a GET.
    if request.isQuery { asked.head.method = "GET" }
    if case .gatewayTimeout(let rule) = decideMiss(asked) { return .response(unavailable(rule), revalidating: nil) }
    return .bypass(request.reasonToForward)
  }

  /// The result of any decision except a whole, fresh response to a GET.
  @usableFromInline
  func result(
    of decision: ReuseDecision, from entry: Storage.Entry, _ request: CachingClientRequest, _ start: LookupStart,
    now: Date
  ) -> LookupResult<Storage.Entry> {
    if let response = response(to: request, by: decision, from: entry, now: now) {
      return .response(
        response,
        revalidating: decision.revalidatesInBackground
          ? StaleEntry(entry, of: request, start) : nil)
    }
    guard let key = request.fetchKey else { return .bypass(.notHTTP) }
    let isFresh = entry.freshness.isFresh(at: now)
    switch decision {
    case .revalidate(let conditional, let staleOnError, let rule):
      return .fetch(
        FetchPlan(
          request: request, key: key, entry: entry, start: start, conditional: conditional,
          staleOnError: staleOnError, rule: rule, forward: isFresh ? .request : .stale))
    case .fetch(let staleOnError, let rule):
      let forward: CacheStatus.Forward =
        entry.freshness.flags.contains(.incomplete) ? .partial : isFresh ? .request : .stale
      return .fetch(
        FetchPlan(
          request: request, key: key, entry: entry, start: start, staleOnError: staleOnError,
          rule: rule, forward: forward))
    case .fetchMissingRange(let fields, let rule):
      return .fetch(
        FetchPlan(
          request: request, key: key, entry: entry, start: start, conditional: fields, rule: rule, forward: .partial))
    default: return resultOfMiss(request, start)
    }
  }

  /// The result if nothing is stored for a request.
  @usableFromInline
  func resultOfMiss(_ request: CachingClientRequest, _ start: LookupStart) -> LookupResult<Storage.Entry> {
    switch decideMiss(request) {
    case .gatewayTimeout(let rule): return .response(unavailable(rule), revalidating: nil)
    case .bypass(let rule): return .bypass(rule)
    case .fetch(let rule):
      guard let key = request.fetchKey else { return .bypass(.notHTTP) }
      // Only Cache-Status distinguishes the two kinds of miss, so make the second lookup only for it.
      let isVaryMiss = options.cacheStatusName != nil && request.key.map { state.hasVariants($0) } ?? false
      return .fetch(
        FetchPlan(
          request: request, key: key, entry: nil, start: start, rule: rule,
          forward: isVaryMiss ? .varyMiss : .uriMiss))
    }
  }
}

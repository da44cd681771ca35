public import CacheActivity
import CacheModel
public import FoundationEssentials
public import HTTPCaching
import Synchronization

/// An HTTP cache in front of any transport.
///
/// It looks responses up, decides by RFC 9111 (``/HTTPCaching/Reuse``), fetches, revalidates, follows redirects and
/// stores.
///
///     let client = CachingClient(storage: storage)
///     if let response = client.storedResponse(to: request) { return response }   // does not suspend
///     let response = try await client.respond(to: request, over: transport)
///
/// - Concurrent identical misses share one fetch. If the head of its response shows that it is for another variant,
///   requests share a fetch with those of their own variant. If it cannot be shared, they fetch on their own,
///   concurrently. For a minute, requests like the one with such a response then do not wait for each other: those with
///   the same cache key, credentials and variant.
/// - A failed or cancelled request never fails another.
/// - A request follows redirects if it says so (``CachingClientRequest/maximumRedirectCount``). Each hop is cached by
///   itself.
/// - A response is stored only if its body is complete, fits ``maximumBodyByteCount``, and was not invalidated in
///   flight.
///
/// All members can be called from any thread and task. A hit takes no lock of the caching client and creates no task.
public final class CachingClient<Storage: ResponseStorage>: Sendable {
  /// A response, with the storage's entry if it comes from the store.
  public typealias Response = CachingClientResponse<Storage.Entry>

  /// The storage of the responses.
  public let storage: Storage
  /// The choices that RFC 9111 leaves to the cache.
  public let options: CachingOptions
  /// The maximum size in bytes of a body to store; 16 MiB by default.
  ///
  /// A larger body is streamed to its caller and not stored. Its followers fetch on their own as soon as the size is
  /// known.
  public var maximumBodyByteCount: Int { bodyLimit() }

  private let bodyLimit: @Sendable () -> Int
  /// Called with the rule for each response that is not stored because of its size.
  let whenTooLarge: (@Sendable (Rule) -> Void)?
  @usableFromInline let clock: @Sendable () -> Date
  /// The lease of the machine; nil if it needs none.
  let lease: MachineLease?
  /// A layer above each transport.
  private let layer: (any TransportLayer)?
  let inFlightFetches: InFlightFetches
  /// The state that this client shares with other clients of the storage.
  let state: ClientState
  @usableFromInline let spaces: SpaceRecords
  @usableFromInline let counters: RequestCounters

  /// Creates a caching client.
  ///
  /// - Parameters:
  ///   - storage: The storage of the responses.
  ///   - options: Whether the cache is private or shared, and its optional behavior. The default is a private cache
  ///     without optional behavior.
  ///   - maximumBodyByteCount: See ``maximumBodyByteCount``. Negative values trap.
  ///   - clock: Returns the current time; tests can replace it.
  public convenience init(
    storage: Storage, options: CachingOptions = CachingOptions(), maximumBodyByteCount: Int = 16 << 20,
    clock: @escaping @Sendable () -> Date = { Date() }
  ) {
    // The message of `precondition` would be missing in release builds.
    if maximumBodyByteCount < 0 {
      fatalError("LMDBURLCache: the maximum size of a body cannot be negative (\(maximumBodyByteCount)).")
    }
    self.init(storage: storage, options: options, bodyLimit: { maximumBodyByteCount }, clock: clock)
  }

  /// Creates a caching client whose maximum body size can change, for example with a capacity.
  ///
  /// - Parameters:
  ///   - storage: The storage of the responses.
  ///   - options: The options of the cache.
  ///   - bodyLimit: Returns the present ``maximumBodyByteCount``. Called for each body, from any thread.
  ///   - clock: Returns the time; the system clock by default.
  public convenience init(
    storage: Storage, options: CachingOptions = CachingOptions(), bodyLimit: @escaping @Sendable () -> Int,
    clock: @escaping @Sendable () -> Date = { Date() }
  ) {
    self.init(storage: storage, options: options, lease: nil, layer: nil, bodyLimit: bodyLimit, clock: clock)
  }

  /// Creates a caching client of one of several machines.
  ///
  /// - Parameters:
  ///   - lease: The lease of the machine, which the storage checks before each lookup; nil if it needs none.
  ///   - layer: The layer above each transport; nil for none.
  ///   - whenTooLarge: Called with the rule for each response that is not stored because of its size.
  package init(
    storage: Storage, options: CachingOptions, lease: MachineLease?, layer: (any TransportLayer)?,
    bodyLimit: @escaping @Sendable () -> Int, clock: @escaping @Sendable () -> Date,
    whenTooLarge: (@Sendable (Rule) -> Void)? = nil
  ) {
    self.whenTooLarge = whenTooLarge
    self.lease = lease
    self.layer = layer
    self.storage = storage
    self.options = options
    self.bodyLimit = bodyLimit
    self.clock = clock
    state =
      (storage as? any SharesClientState)?.clientState
      ?? ClientState(
        activity: ActivityReference(),
        spaces: SpaceRecords { key in
          CachingClientRequest(forRecordAt: key).flatMap { storage.lookup($0, at: key)?.fields }
        },
        effectOfRemovals: { key, token in storage.effectOfRemovals(on: key, since: &token) })
    counters = state.counters
    spaces = state.spaces
    inFlightFetches = state.inFlightFetches
  }

  /// The counts since the client was created, with those of the other clients of a storage that has one state for all.
  ///
  /// They are read one after another, so they may be from slightly different times.
  public var statistics: ClientStatistics { counters.snapshot() }

  // MARK: Responses

  /// Returns the response to a request if the storage suffices, without suspending.
  ///
  /// Includes 304, 206 and 416 if the stored response decides the request's own conditions and ranges, and 504
  /// (``ResponseSource/unavailable``) if the request forbids the network. `nil` means: call ``respond(to:over:)``, also
  /// for a stored redirect that the request follows.
  ///
  /// - Complexity: One lookup in the storage and one decision; no task, and no lock of the caching client.
  @inlinable
  public func storedResponse(to request: CachingClientRequest) -> Response? {
    var other: LookupResult<Storage.Entry>?
    return storedResponse(to: request, otherwise: &other)
  }

  /// Returns the response to a request if the storage suffices.
  ///
  /// - Parameter other: Set if nil is returned. Pass it to ``respond(to:over:after:)`` to avoid a second lookup.
  @inlinable
  package func storedResponse(
    to request: CachingClientRequest, otherwise other: inout LookupResult<Storage.Entry>?
  ) -> Response? {
    let timer = counters.begin()
    let result = evaluate(request)
    guard case .response(let response, revalidating: nil) = result, !request.follows(response) else {
      other = result
      return nil
    }
    counters.countHit(timer, response.source, byteCount: response.knownByteCount)
    if timer.isWatched { noteHit(response, to: request, since: timer.start) }
    return response
  }

  /// Returns the response to a request and uses the transport if the storage does not suffice.
  ///
  /// A hit never suspends. While another task fetches the same resource, this waits for its result if the request may
  /// share it. Within `stale-while-revalidate` a stale response is returned at once and revalidated in the background
  /// (see ``finishBackgroundWork()``).
  ///
  /// Redirects are followed if ``CachingClientRequest/maximumRedirectCount`` is set. Each hop counts as a request in
  /// ``statistics``.
  ///
  /// - Throws: The transport's error, if no stored response can be served instead; `CancellationError` at once when the
  ///   calling task is cancelled; ``CachingClientError/tooManyRedirects(limit:)``. A 504 with
  ///   ``ResponseSource/unavailable`` is not thrown but returned.
  @inlinable  // For specialization of the hit, like ``evaluate(_:)``.
  nonisolated(nonsending) public func respond(
    to request: CachingClientRequest, over transport: some Transport
  ) async throws -> Response {
    var lookup: LookupResult<Storage.Entry>?
    // A query is looked up once, below.
    if !request.isQuery, let response = storedResponse(to: request, otherwise: &lookup) { return response }
    return try await respondFollowingRedirects(to: request, over: transport, after: lookup)
  }

  /// Returns the response to a request, and counts it.
  ///
  /// - Parameter lookup: The result of a lookup that the caller has just made for the same head and content; nil to
  ///   make one.
  nonisolated(nonsending) package func respond(
    to request: CachingClientRequest, over transport: some Transport, after lookup: LookupResult<Storage.Entry>?
  ) async throws -> Response {
    let start = ActivityReference.nanoseconds
    var isForwarded = false
    do {
      let response: Response
      if let layer {
        let transport = LayeredTransport(layer: layer, transport: transport)
        response = try await respond(to: request, over: transport, after: lookup, isForwarded: &isForwarded)
      } else {
        response = try await respond(to: request, over: transport, after: lookup, isForwarded: &isForwarded)
      }
      if let outcome = counters.countFetch(response.source, isForwarded: isForwarded, since: start),
        counters.activity.isWatched
      {
        note(response, to: request, outcome, since: start)
      }
      return response
    } catch {
      if !(error is CancellationError) {
        counters.activity.countRequest(.failed)
        if counters.activity.isWatched { note(nil, to: request, .failed, since: start) }
      }
      throw error
    }
  }

  /// Returns the response to a request that was counted before, when its first response arrived.
  ///
  /// - Parameter transport: The transport, with the client's layer.
  nonisolated(nonsending) func respondAgain(
    to request: CachingClientRequest, over transport: some Transport
  ) async throws -> Response {
    var isForwarded = false
    return try await respond(to: request, over: transport, after: nil, isForwarded: &isForwarded)
  }

  /// Returns the response to a request.
  ///
  /// - Parameter isForwarded: Set if the request was sent without a lookup.
  nonisolated(nonsending) private func respond(
    to request: CachingClientRequest, over transport: some Transport, after lookup: LookupResult<Storage.Entry>?,
    isForwarded: inout Bool
  ) async throws -> Response {
    var lookup = lookup
    var isUnshared = false
    var failureCount = 0
    var repetitionCount = 0
    // Set when the request waits for another fetch.
    var deadline: ContinuousClock.Instant?
    let begin = lease == nil ? 0 : BootClock.now
    while true {
      let plan: FetchPlan<Storage.Entry>
      // A lookup that was made before cannot be timed.
      let timer = counters.begin(isTimed: lookup == nil)
      switch lookup.take() ?? evaluate(request) {
      case .response(let response, let stale):
        counters.countHit(timer, response.source, byteCount: response.knownByteCount)
        if timer.isWatched { noteHit(response, to: request, since: timer.start) }
        if let stale {
          revalidateInBackground(
            request.under(stale.request.spaceKey), stale.entry, foundAt: stale.start, over: transport)
        }
        return response
      case .bypass(let rule):
        isForwarded = true
        return try await forward(request, over: transport, because: rule)
      // The caller may have changed other members of the request since its lookup.
      case .fetch(let made): plan = made.with(request: request.under(made.request.spaceKey))
      }
      if let response = heldOffResponse(plan) { return response }
      let key = plan.coalescingKey
      guard !isUnshared, plan.request.isShareable else {
        return try await lead(
          inFlightFetches.startUnshared(plan.key, identity: key.key, since: plan.start.removalToken), plan,
          over: transport, until: deadline)
      }

      // Without a valid lease a purge may have returned, and be unknown here, since an earlier fetch began.
      let joinsAny = lease.map { $0.isValid } ?? true
      let earliest = joinsAny ? nil : begin
      let role = inFlightFetches.joinOrLead(
        key, of: plan.key, since: plan.start, now: clock(), after: earliest, stallLimit: options.coalescingTimeout
      ) { varyKey(of: plan.request, by: $0) }
      switch role {
      case .wait(let fetch):
        do { _ = try await outcome(of: fetch, plan, until: &deadline, canUse: nil) } catch let error
          as CachingClientError
        {
          if let deadline, deadline <= .now { throw error }
          isUnshared = true
        }
      case .lead(let fetch): return try await lead(fetch, plan, over: transport, until: deadline)
      case .lookAgain:
        // Under heavy load, a fetch may end during each lookup. After some repetitions, fetch without coalescing.
        repetitionCount += 1
        isUnshared = repetitionCount >= 8
      case .follow(let fetch):
        switch try await follow(fetch, plan, over: transport, until: &deadline) {
        case .response(let response): return response
        case .fetchIndependently: isUnshared = true
        case .leaderFailed:
          // One follower takes over. If it fails too, the others fetch at once. Otherwise each would wait for the
          // timeouts of all before it.
          failureCount += 1
          isUnshared = failureCount >= 2
        case .lookAgain: continue
        case .otherVariant:
          repetitionCount += 1
          isUnshared = repetitionCount >= 8
        }
      }
    }
  }

  /// Returns when no background revalidation is in flight, including those that start during the wait.
  ///
  /// Call this before you close the storage, so that their responses are stored.
  public func finishBackgroundWork() async {
    while true {
      let running = inFlightFetches.backgroundFetches
      guard !running.isEmpty else { return }
      for fetch in running { await fetch.waitUntilEnded() }
      // A fetch that is registered but not yet started has no task to wait for.
      await Task.yield()
    }
  }
}

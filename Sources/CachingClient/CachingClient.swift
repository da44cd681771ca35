public import FoundationEssentials
public import HTTPCaching

/// An HTTP cache between a caller and any transport: it looks up, decides by RFC 9111 (``HTTPCaching/Reuse``), fetches,
/// revalidates and stores.
///
///     let client = CachingClient(storage: storage)
///     if let answer = client.storedAnswer(to: request) { return answer }   // no await, no hop
///     let answer = try await client.respond(to: request, over: transport)
///
/// - Many identical misses at once make one fetch. Requests that cannot use its response fetch on their own, concurrently, as
///   soon as its head shows that; for a minute, further requests for that URL do not wait at all.
/// - A failing or cancelled request never fails another one.
/// - What a fetch brings is stored only if the body is complete, fits ``maximumBodyByteCount``, and no invalidation overtook it.
///
/// Safe to use from any thread and task. A hit takes no lock of the engine's and creates no task.
public final class CachingClient<Storage: ResponseStorage>: Sendable {
  /// An answer, with the storage's own entry where it came from the store.
  public typealias Response = ClientResponse<Storage.Entry>

  /// Where responses are kept.
  public let storage: Storage
  /// The choices RFC 9111 leaves open.
  public let options: CachingOptions
  /// The largest body in bytes that is collected to be stored. The default is 16 MiB.
  ///
  /// A larger one streams through to its caller, in no more memory than a pipe's, and is not kept; those who wait for it are let
  /// go as soon as that is clear.
  public var maximumBodyByteCount: Int { bodyLimit() }

  private let bodyLimit: @Sendable () -> Int
  @usableFromInline let clock: @Sendable () -> Date
  let flights: FlightTable<Storage.Entry>
  @usableFromInline let counters = Counters()

  /// An engine.
  ///
  /// - Parameters:
  ///   - storage: where responses are kept.
  ///   - options: whom the cache serves, and what it may do unasked. The default is a private cache that does nothing unasked.
  ///   - maximumBodyByteCount: see ``maximumBodyByteCount``. Negative values trap.
  ///   - clock: the current time; a test gives its own.
  public convenience init(
    storage: Storage, options: CachingOptions = CachingOptions(), maximumBodyByteCount: Int = 16 << 20,
    clock: @escaping @Sendable () -> Date = { Date() }
  ) {
    precondition(maximumBodyByteCount >= 0, "maximumBodyByteCount is \(maximumBodyByteCount); it counts bytes")
    self.init(storage: storage, options: options, bodyLimit: { maximumBodyByteCount }, clock: clock)
  }

  /// An engine whose largest body follows something else, such as a capacity that can be set.
  ///
  /// - Parameter bodyLimit: what ``maximumBodyByteCount`` is at the moment, asked for each body. Any thread may ask.
  public init(
    storage: Storage, options: CachingOptions = CachingOptions(), bodyLimit: @escaping @Sendable () -> Int,
    clock: @escaping @Sendable () -> Date = { Date() }
  ) {
    self.storage = storage
    self.options = options
    self.bodyLimit = bodyLimit
    self.clock = clock
    flights = FlightTable { key in
      StoreTicket(token: storage.removalToken) {
        storage.wasRemoved(URL(string: key.urlString), key.partition, since: &$0)
      }
    }
  }

  /// What has been done so far. The counts are read one after another, so they need not be of one instant.
  public var statistics: ClientStatistics { counters.snapshot() }

  // MARK: The hit path

  /// The answer to a request, if it can be given from the store right now and nobody has to be asked.
  ///
  /// Also given here: 304, 206 and 416 where the stored response decides the request's own conditions and ranges, and 504
  /// (``ResponseSource/unavailable``) where the request forbids the network. `nil` means: call ``respond(to:over:)``.
  ///
  /// - Complexity: one lookup in the storage and one decision; no task, no lock of the engine's.
  @inlinable  // Compiled for the concrete storage; through witnesses it costs several times as much.
  public func storedAnswer(to request: ClientRequest) -> Response? {
    guard request.isAnswerableFromStore else { return nil }
    guard let entry = storage.lookup(request) else { return answerWithoutEntry(to: request) }
    let now = clock()
    let decision = Reuse.decide(
      request: request.head, stored: entry, policy: request.policy, now: now, options: options)
    guard case .serve(let age, let rule) = decision, request.head.method == "GET", options.cacheStatusName == nil else {
      return specialAnswer(to: request, by: decision, from: entry, now: now)
    }
    counters.countHit()
    return Response(
      status: entry.status, body: ResponseBody(storage.body(of: entry)), source: .store, age: age, reason: rule,
      entry: entry, content: .entry(.whole), cacheStatus: nil)
  }

  @usableFromInline
  func answerWithoutEntry(to request: ClientRequest) -> Response? {
    guard case .gatewayTimeout(let rule) = decideMiss(request) else { return nil }
    return unavailable(rule)
  }

  /// Anything but a plain fresh hit.
  @usableFromInline
  func specialAnswer(
    to request: ClientRequest, by decision: ReuseDecision, from entry: Storage.Entry, now: Date
  ) -> Response? {
    guard !decision.revalidatesInBackground else { return nil }
    guard let answer = answer(to: request, by: decision, from: entry, now: now) else { return nil }
    countHit(answer)
    return answer
  }

  // MARK: The whole way

  /// Answers a request, over the transport where the store does not suffice.
  ///
  /// A hit is answered without suspending. While another task fetches the same resource, this waits for its result if the
  /// request may share it. A stale response inside its `stale-while-revalidate` window is returned at once and checked in the
  /// background (see ``finishBackgroundWork()``).
  ///
  /// - Throws: the transport's error, if nothing stored may stand in; `CancellationError` at once when the calling task is
  ///   cancelled. An answer of 504 with ``ResponseSource/unavailable`` is not an error here.
  public func respond(to request: ClientRequest, over transport: some Transport) async throws -> Response {
    guard request.isAnswerableFromStore else {
      if case .gatewayTimeout(let rule) = decideMiss(request) { return unavailable(rule) }
      return try await forward(request, over: transport, because: request.reasonToForward)
    }
    var goesAlone = !request.isShareable
    var failures = 0
    var looks = 0
    // Set once the request has waited for another's fetch: that time counts as time of its own.
    var deadline: ContinuousClock.Instant?
    while true {
      let endedCount = flights.endedCount
      let plan: FetchPlan<Storage.Entry>
      switch look(for: request) {
      case .answer(let answer, let checked):
        if let checked { revalidateInBackground(request, checked, over: transport) }
        return answer
      case .bypass(let rule): return try await forward(request, over: transport, because: rule)
      case .fetch(let made): plan = made
      }
      guard !goesAlone else {
        return try await lead(flights.enterAlone(plan.key), plan, over: transport, until: deadline)
      }

      switch flights.enter(SharingKey(plan.key, of: request.head), endedCount: endedCount, now: clock()) {
      case .lead(let flight): return try await lead(flight, plan, over: transport, until: deadline)
      case .lookAgain:
        // Only a very busy server ends fetches faster than this one looks; it then takes the risk of one fetch too many.
        looks += 1
        goesAlone = looks >= 8
      case .follow(let flight):
        if deadline == nil, let limit = request.timeLimit { deadline = .now + limit }
        switch try await follow(flight, plan, until: &deadline) {
        case .answer(let answer): return answer
        case .goOnAlone: goesAlone = true
        case .leaderFailed:
          // One of those who waited takes over. If that fails too, the rest try at once: in a queue they would wait for one
          // time-out after another.
          failures += 1
          goesAlone = failures >= 2
        case .lookAgain: continue
        }
      }
    }
  }

  /// Returns when no background revalidation is under way: those that are started meanwhile are waited for too.
  ///
  /// To be called before the storage is closed, so that what they bring is not lost.
  public func finishBackgroundWork() async {
    while true {
      let running = flights.backgroundFlights
      guard !running.isEmpty else { return }
      for flight in running { await flight.waitUntilEnded() }
      // One that is filed but not yet started has nothing to wait for.
      await Task.yield()
    }
  }
}

import HTTPCaching

#if canImport(FoundationEssentials)
  import FoundationEssentials
#else
  import Foundation
#endif

/// A response from the origin and the times from which its age is computed (RFC 9111 section 4.2.3).
struct Arrival: Sendable {
  let response: IncomingResponse
  /// The request as sent.
  let sent: RequestHead
  let requestTime: Date
  let responseTime: Date
}

extension CachingClient {
  typealias Plan = FetchPlan<Storage.Entry>

  /// The result of waiting for another request's fetch.
  enum FollowResult {
    case response(Response)
    /// The request must fetch its own response.
    case fetchIndependently
    /// The response is for another variant. Share a fetch with the requests of the same variant.
    case otherVariant
    /// The fetch failed and no stale response can be served.
    case leaderFailed
    /// The fetch was abandoned. Look the request up again.
    case lookAgain
  }

  /// Fetches a response for the caller and for the followers that join.
  ///
  /// - Parameter deadline: The time limit for the head, if the caller has waited for another fetch before. Nil if only
  ///   the transport's limits apply.
  nonisolated(nonsending) func lead(
    _ fetch: InFlightFetch, _ plan: Plan, over transport: some Transport,
    until deadline: ContinuousClock.Instant? = nil
  ) async throws -> Response {
    if plan.conditional.isEmpty { counters.misses.count() }
    fetch.start { await self.performFetch(plan, in: fetch, over: transport) }
    let watch = deadline.map { fetch.watchLeader(until: $0, limit: min(plan.request.timeLimit ?? .zero, .longest)) }
    let answer = staleTime(plan, of: fetch).map { time in
      fetch.answerLeader(at: time) {
        self.staleResponse(plan, after: .status(504), isRemoved: fetch.permit.isRemoved, because: .staleAfter)
      } whenReleased: { fetch in
        self.counters.activity.add(1, .staleAfter)
        self.recordFailure(.status(504), plan, in: fetch)
        self.inFlightFetches.continueInBackground(fetch)
      }
    }
    defer {
      watch?.cancel()
      answer?.cancel()
    }
    do {
      return try await fetch.response()
    } catch CachingClientError.timedOut {
      recordFailure(.unreachable, plan, in: fetch)
      guard let response = staleResponse(plan, after: .unreachable, isRemoved: fetch.permit.isRemoved) else {
        throw CachingClientError.timedOut
      }
      return response
    }
  }

  /// Returns when a request is served stale if the origin has not responded to a fetch; nil if it goes on waiting.
  private func staleTime(_ plan: Plan, of fetch: InFlightFetch) -> ContinuousClock.Instant? {
    // Usually nothing may be served stale.
    guard let permission = plan.staleOnError,
      let limit = plan.request.overrides.staleAfter.map({ $0.isFinite ? Duration.seconds(min($0, 1e9)) : nil })
        ?? options.staleAfter,
      permission.mayServe(after: .status(504), now: clock())
    else { return nil }
    let elapsed = Duration.nanoseconds(Int64(clamping: BootClock.now &- fetch.startedAt))
    return .now + max(.zero, min(limit, .longest) - elapsed)
  }

  /// Returns the stored response if the origin has failed a moment ago, so that it is not asked again yet.
  func heldOffResponse(_ plan: Plan) -> Response? {
    guard plan.staleOnError != nil, options.holdOff != nil,
      let failure = presentFailure(plan.key, plan.coalescingKey, isSoftPurged: plan.isSoftPurged),
      let response = staleResponse(plan, after: failure, isRemoved: false, because: .heldOff)
    else { return nil }
    counters.activity.add(1, .heldOff)
    return response
  }

  /// Records a failure of the origin, if a stale response may be served because of it.
  private func recordFailure(_ failure: StaleOnError.Failure, _ plan: Plan, in fetch: InFlightFetch) {
    guard let range = options.holdOff,
      fetch.isBackground || plan.staleOnError?.mayServe(after: failure, now: clock()) == true
    else { return }
    // A 500 may concern one user, or the content of one query. The other failures are those of the server.
    let key = failure == .status(500) ? FailingOrigins.Key.requests(plan.coalescingKey) : .url(plan.key)
    state.failingOrigins.recordFailure(failure, of: key, at: plan.key, fetch.permit, range: range)
  }

  /// The failure because of which requests for a URL, or those that share a fetch, do not ask the origin now.
  private func presentFailure(
    _ url: RequestKey, _ requests: CoalescingKey, isSoftPurged: Bool
  ) -> StaleOnError.Failure? {
    guard !state.failingOrigins.isEmpty else { return nil }
    return state.failingOrigins.failure(of: .url(url), isSoftPurged: isSoftPurged)
      ?? state.failingOrigins.failure(of: .requests(requests), isSoftPurged: isSoftPurged)
  }

  /// Waits for another request's fetch.
  ///
  /// - Parameter deadline: As for ``outcome(of:_:until:canUse:)``.
  func follow(
    _ fetch: InFlightFetch, _ plan: Plan, over transport: some Transport,
    until deadline: inout ContinuousClock.Instant?
  ) async throws -> FollowResult {
    let requestedAt = clock()
    let outcome: InFlightFetch.Outcome
    do {
      outcome = try await self.outcome(of: fetch, plan, until: &deadline) {
        self.decideSharing($0, plan.request, requestedAt: requestedAt) != nil
      }
    } catch let error as CachingClientError {
      guard let deadline, deadline <= .now else {
        // The fetch is too slow for those that come later, too. One of those that waited takes over.
        inFlightFetches.close(fetch)
        return .leaderFailed
      }
      // Handle this like a timeout of the request's own fetch.
      guard let response = staleResponse(plan, after: .unreachable, isRemoved: fetch.permit.isRemoved) else {
        throw error
      }
      return .response(response)
    }
    switch outcome {
    case .shared(let shared, let stored):
      guard let response = coalescedResponse(plan, from: shared, stored, of: fetch, requestedAt: requestedAt) else {
        return leave(fetch, of: shared.vary, plan)
      }
      counters.coalesced.count()
      return .response(response)
    case .arriving(let head, let body):
      let response = arrivingResponse(plan, head, body, of: fetch, over: transport, requestedAt: requestedAt)
      guard let response else { return leave(fetch, of: head.vary, plan) }
      counters.coalesced.count()
      return .response(response)
    case .notShareable(let variant): return leave(fetch, of: variant, plan)
    case .failed(let failure):
      guard let response = staleResponse(plan, after: failure, isRemoved: fetch.permit.isRemoved) else {
        return .leaderFailed
      }
      return .response(response)
    case .unanswered:
      let response = staleResponse(
        plan, after: .status(504), isRemoved: fetch.permit.isRemoved, because: .staleAfter)
      guard let response else { return .lookAgain }
      counters.activity.add(1, .staleAfter)
      recordFailure(.status(504), plan, in: fetch)
      return .response(response)
    case .abandoned: return .lookAgain
    }
  }

  /// Returns how a request continues that cannot use the response of a fetch.
  ///
  /// - Parameter variant: The Vary key of the response; nil if it does not distinguish variants.
  private func leave(_ fetch: InFlightFetch, of variant: VaryKey?, _ plan: Plan) -> FollowResult {
    guard let variant, variant.distinguishingNames != nil,
      !variant.matches(plan.request.head, credentialDigest: storage.credentialDigest)
    else { return .fetchIndependently }
    inFlightFetches.separateVariants(by: variant, fetch, now: clock())
    return .otherVariant
  }

  /// Returns the Vary key of a request for the names in a `Vary` field.
  func varyKey(of request: CachingClientRequest, by names: String) -> VaryKey {
    VaryKey(
      request: request.head, response: ["Vary": names], options: options, credentialDigest: storage.credentialDigest)
  }

  /// Waits for the outcome of a fetch, and counts the request as waiting.
  ///
  /// - Parameters:
  ///   - deadline: The time at which the request times out unless the fetch makes progress, which advances it. Nil
  ///     before the first wait of a request: time spent waiting counts towards the request's own time limit.
  ///   - canUse: Returns whether the request can use a response with this head. If not, it does not wait for the body.
  ///     Nil to wait for the end of the fetch and use no response.
  /// - Throws: ``CachingClientError/timedOut`` if the fetch makes no progress until the deadline, or for
  ///   ``/HTTPCaching/CachingOptions/coalescingTimeout``; `CancellationError`.
  func outcome(
    of fetch: InFlightFetch, _ plan: Plan, until deadline: inout ContinuousClock.Instant?,
    canUse: (@Sendable (CacheableResponse) -> Bool)?
  ) async throws -> InFlightFetch.Outcome {
    var isCounted = false
    defer { if isCounted { counters.waiting.wrappingSubtract(1, ordering: .relaxed) } }
    let number = inFlightFetches.makeNumber()
    let seen = fetch.lastProgress
    let limit = plan.request.timeLimit.map { min($0, .longest) }
    if deadline == nil, let limit { deadline = .now + limit }
    // The request needs the other half of its time for its own fetch.
    let wait = [limit.map { $0 / 2 }, options.coalescingTimeout].compactMap { $0 }.min().map { min($0, .longest) }
    let watch = wait.map { fetch.watch(number, until: min(deadline ?? .now + $0, .now + $0), limit: $0) }
    let release = staleTime(plan, of: fetch).map { fetch.releaseFollower(number, at: $0) }
    defer {
      watch?.cancel()
      release?.cancel()
      if let limit, fetch.lastProgress != seen { deadline = .now + limit }
    }
    let readsAlong = plan.request.receivesBodyAsItArrives || plan.request.readsBodyInPieces
    return try await fetch.outcome(
      number: number, readsAlong: readsAlong, limits: WaitLimits(beforeAsking: wait, total: limit), canUse: canUse
    ) {
      // Count the request only now: from here on the fetch continues for it, even if the leader is cancelled.
      counters.waiting.count()
      isCounted = true
    }
  }

  /// Revalidates a stale entry that was served, unless a fetch for it is already in flight (RFC 5861 section 3).
  func revalidateInBackground(
    _ request: CachingClientRequest, _ entry: Storage.Entry, foundAt start: LookupStart, over transport: some Transport
  ) {
    let request = request.unconditional
    guard let key = request.fetchKey else { return }
    let coalescingKey = CoalescingKey(request.identity ?? key, of: request.head)
    let isSoftPurged = entry.freshness.flags.contains(.softPurged)
    guard options.holdOff == nil || presentFailure(key, coalescingKey, isSoftPurged: isSoftPurged) == nil else {
      return
    }
    let started = inFlightFetches.startInBackground(coalescingKey, of: key, since: start, now: clock()) {
      varyKey(of: request, by: $0)
    }
    guard let fetch = started else { return }
    let plan = Plan(
      request: request, key: key, entry: entry, start: start, conditional: Reuse.validation(of: entry),
      rule: .staleWhileRevalidate, forward: .stale, coalescingKey: coalescingKey)
    counters.activity.add(1, .backgroundRevalidations)
    fetch.start { await self.performFetch(plan, in: fetch, over: transport) }
  }

  /// Performs a fetch: sends the request, stores the result, and resumes the leader and all followers.
  nonisolated(nonsending) func performFetch(
    _ plan: Plan, in fetch: InFlightFetch, over transport: some Transport
  ) async {
    var plan = plan
    do {
      var arrival = try await send(plan, over: transport)
      if !StaleOnError.isError(status: arrival.response.head.status) {
        state.failingOrigins.recordSuccess(of: [.url(plan.key), .requests(plan.coalescingKey)])
      }
      if let rule = arrival.response.rule { plan = plan.with(rule: rule) }
      if arrival.response.usedUnseenCredentials {
        // A 304 or a missing range must not be combined with a response that is stored for other users.
        if !plan.conditional.isEmpty, [206, 304, 412, 416].contains(arrival.response.head.status) {
          plan = plan.unconditional
          arrival = try await send(plan, over: transport)
        }
      } else if plan.isCompletion {
        if try await complete(by: arrival, plan, in: fetch, over: transport) { return }
        // Any response except a 200 may be due to the cache's own range and conditions.
        if arrival.response.head.status != 200 {
          plan = plan.unconditional
          arrival = try await send(plan, over: transport)
        }
      } else if arrival.response.head.status == 304, let entry = plan.entry, !plan.conditional.isEmpty {
        if await confirm(entry, by: arrival, plan, in: fetch) { return }
        plan = plan.unconditional
        arrival = try await send(plan, over: transport)
      }
      await receive(arrival, plan, in: fetch, over: transport)
    } catch {
      fail(error, plan, in: fetch)
    }
  }

  nonisolated(nonsending) func send(_ plan: Plan, over transport: some Transport) async throws -> Arrival {
    let requestTime = clock()
    let outgoing = plan.outgoing
    counters.activity.observers.emit(
      .fetchBegan(method: outgoing.head.method, url: plan.request.head.url.textWithoutUserInformation))
    let response = try await transport.send(outgoing)
    var sent = outgoing.head
    // Decisions about a query are those about a GET of its equivalent resource.
    sent.method = plan.request.head.method
    return Arrival(response: response, sent: sent, requestTime: requestTime, responseTime: clock())
  }

  /// Delivers a response that neither updated nor completed a stored response, and stores it if permitted.
  nonisolated(nonsending) private func receive(
    _ arrival: Arrival, _ plan: Plan, in fetch: InFlightFetch, over transport: some Transport
  ) async {
    let incoming = arrival.response
    let status = incoming.head.status
    if status >= 500 { counters.activity.add(1, .originServerErrors) }
    if StaleOnError.isError(status: status) { recordFailure(.status(status), plan, in: fetch) }
    if incoming.usedUnseenCredentials {
      refuse(.unseenCredentials, plan.request, fetch)
      return await passThrough(incoming, plan, refused: .unseenCredentials, in: fetch)
    }
    // Usually nothing may be served stale. To find that out in the generic function would take longer.
    if plan.staleOnError != nil,
      let response = staleResponse(plan, after: .status(status), isRemoved: fetch.permit.isRemoved)
    {
      inFlightFetches.finish(fetch)
      fetch.deliver(.success(response))
      fetch.resolve(.failed(.status(status)))
      return
    }
    let head = plan.request.overrides.applied(to: incoming.head)
    if plan.request.head.method == "HEAD" {
      await freshen(by: head, arrival, plan, in: fetch)
      return await passThrough(incoming, plan, refused: .headOnlyUpdates, in: fetch)
    }
    switch decideStorage(head, arrival, plan.request) {
    case .refuse(let rule):
      refuse(rule, plan.request, fetch)
      // The request's no-store does not make the stored response outdated.
      await passThrough(incoming, plan, refused: rule, outdatesStored: rule != .requestNoStore, in: fetch)
    case .store(let proposal):
      await storeWhileStreaming(incoming, as: proposal, plan, in: fetch, over: transport)
    }
  }

  /// Delivers a response that is not stored. The followers of its variant fetch on their own.
  ///
  /// - Parameter outdatesStored: Whether the response makes the stored one outdated once its end is proven.
  nonisolated(nonsending) func passThrough(
    _ incoming: IncomingResponse, _ plan: Plan, refused refusal: Rule, outdatesStored: Bool = false,
    in fetch: InFlightFetch
  ) async {
    let status = incoming.head.status
    let variant = plan.request.isShareable ? variant(of: incoming.head, plan.request) : nil
    recordUnshareable(plan, variant, status: status)
    fetch.storageReport.decide(.notStored(refusal))
    var body = counters.countingBytes(of: incoming.lengthCheckedBody(for: plan.request))
    let outdated = outdatesStored && !incoming.endsWithConnection ? outdatedEntry(plan, status: status) : nil
    if fetch.isBackground {
      // The followers need not wait for the end of the body, which no reader awaits.
      fetch.resolve(.notShareable(variant: variant))
      if let outdated, await isComplete(body, of: incoming, plan) { await storage.remove(outdated, for: plan.request) }
      return inFlightFetches.finish(fetch)
    }
    inFlightFetches.finish(fetch)
    fetch.resolve(.notShareable(variant: variant))
    if let outdated {
      body = await body.whenComplete(incoming.declaredByteCount(for: plan.request)) { [storage] in
        await storage.remove(outdated, for: plan.request)
      }
    }
    fetch.deliver(.success(networkResponse(incoming, body: body, plan.rule, plan.forward, fetch.storageReport)))
  }

  /// Reads a body that has no reader, unless it is too large to store. Returns whether all of it has arrived.
  private func isComplete(_ body: ResponseBodyStream, of incoming: IncomingResponse, _ plan: Plan) async -> Bool {
    let declared = incoming.declaredByteCount(for: plan.request)
    guard body.bytes != nil || declared.refusal(limit: maximumBodyByteCount) == nil else { return false }
    do {
      return declared.allows(try await body.readToEnd(upTo: maximumBodyByteCount))
    } catch {
      // A body that is cut proves nothing.
      return false
    }
  }

  /// Returns the Vary key of a response; nil if its `Vary` names no fields.
  private func variant(of head: ResponseHead, _ request: CachingClientRequest) -> VaryKey? {
    let fields = request.overrides.applied(to: head).fields
    guard fields.contains("Vary") else { return nil }
    return VaryKey(
      request: request.head, response: fields, options: options, credentialDigest: storage.credentialDigest)
  }

  /// Records that the response to the plan's request, with this Vary key, can be shared.
  func recordShareable(_ plan: Plan, _ variant: VaryKey) {
    guard plan.request.isShareable else { return }
    inFlightFetches.recordShareable(plan.coalescingKey, vary: variant, now: clock())
  }

  /// Records that the response to the plan's request cannot be shared.
  ///
  /// A server error (5xx) or a 429 does not disable coalescing. It says nothing about later responses, and an
  /// overloaded server needs coalescing most.
  func recordUnshareable(_ plan: Plan, _ variant: VaryKey?, status: Int) {
    guard plan.request.isShareable, status < 500, status != 429 else { return }
    inFlightFetches.recordUnshareable(plan.coalescingKey, vary: variant, now: clock()) {
      varyKey(of: plan.request, by: $0)
    }
  }

  /// Ends a fetch that failed before its response was delivered, with a stale response if permitted.
  func fail(_ error: any Error, _ plan: Plan, in fetch: InFlightFetch) {
    // A cancelled fetch does not mean that the origin is unreachable.
    let isCancelled = error is CancellationError || Task.isCancelled
    if !isCancelled {
      counters.activity.add(1, .originFailures)
      recordFailure(.unreachable, plan, in: fetch)
    }
    let stale = isCancelled ? nil : staleResponse(plan, after: .unreachable, isRemoved: fetch.permit.isRemoved)
    inFlightFetches.finish(fetch)
    if let stale { fetch.deliver(.success(stale)) } else { fetch.deliver(.failure(error)) }
    fetch.resolve(.failed(.unreachable))
  }

  /// Removes the stored response that a complete response with this status makes outdated, and that cannot replace it.
  ///
  /// Otherwise later requests would receive the outdated response.
  func dropOutdated(_ plan: Plan, status: Int) async {
    if let entry = outdatedEntry(plan, status: status) { await storage.remove(entry, for: plan.request) }
  }

  /// The stored response, if a complete response with this status makes it outdated.
  private func outdatedEntry(_ plan: Plan, status: Int) -> Storage.Entry? {
    // A 206 does not replace the complete response. Errors other than 404 and 410 do not concern the resource.
    let supersedes =
      (200..<400).contains(status) && status != 206 && status != 304 || status == 404 || status == 410
    return supersedes ? plan.entry : nil
  }
}

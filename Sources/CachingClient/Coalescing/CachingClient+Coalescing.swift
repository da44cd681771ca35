import FoundationEssentials
import HTTPCaching

/// Leading a fetch, and following that of another request.
extension CachingClient {
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
        self.recordUnanswered(plan, in: fetch)
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
      recordUnanswered(plan, in: fetch)
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
    var alarms: [Alarm?] = []
    defer {
      for alarm in alarms { alarm?.cancel() }
      if let limit, fetch.lastProgress != seen { deadline = .now + limit }
    }
    let readsAlong = plan.request.receivesBodyAsItArrives || plan.request.readsBodyInPieces
    return try await fetch.outcome(
      number: number, readsAlong: readsAlong, limits: WaitLimits(beforeAsking: wait, total: limit), canUse: canUse
    ) {
      // Count the request only now: from here on the fetch continues for it, even if the leader is cancelled.
      counters.waiting.count()
      isCounted = true
      // An alarm that goes off before would find no follower.
      alarms = [
        wait.map { fetch.watch(number, until: min(deadline ?? .now + $0, .now + $0), limit: $0) },
        staleTime(plan, of: fetch).map { fetch.releaseFollower(number, at: $0) },
      ]
    }
  }
}

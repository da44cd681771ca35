import CacheModel
import FoundationEssentials
import HTTPCaching

/// Origins that do not respond, or that have failed a moment ago.
extension CachingClient {
  /// Returns when a request is served stale if the origin has not responded to a fetch; nil if it goes on waiting.
  func staleTime(_ plan: Plan, of fetch: InFlightFetch) -> ContinuousClock.Instant? {
    // Usually nothing may be served stale.
    guard let permission = plan.staleOnError,
      let limit = plan.request.overrides.staleAfter.map({ $0.isFinite ? Duration.seconds(max(0, min($0, 1e9))) : nil })
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

  /// Records that the origin has not responded in time. The next request after the hold-off asks the origin again.
  func recordUnanswered(_ plan: Plan, in fetch: InFlightFetch) {
    counters.activity.add(1, .staleAfter)
    recordFailure(.status(504), plan, in: fetch)
    if options.holdOff != nil { inFlightFetches.close(fetch) }
  }

  /// Records a failure of the origin, if a stale response may be served because of it.
  func recordFailure(_ failure: StaleOnError.Failure, _ plan: Plan, in fetch: InFlightFetch) {
    guard let range = options.holdOff,
      fetch.isBackground || plan.staleOnError?.mayServe(after: failure, now: clock()) == true, fetch.countFailure()
    else { return }
    // A 500 may concern one user, or the content of one query. The other failures are those of the server.
    let key = failure == .status(500) ? FailingOrigins.Key.requests(plan.coalescingKey) : .url(plan.key)
    state.failingOrigins.recordFailure(failure, of: key, at: plan.key, fetch.permit, range: range)
  }

  /// The failure because of which requests for a URL, or those that share a fetch, do not ask the origin now.
  func presentFailure(
    _ url: RequestKey, _ requests: CoalescingKey, isSoftPurged: Bool
  ) -> StaleOnError.Failure? {
    guard !state.failingOrigins.isEmpty else { return nil }
    return state.failingOrigins.failure(of: .url(url), isSoftPurged: isSoftPurged)
      ?? state.failingOrigins.failure(of: .requests(requests), isSoftPurged: isSoftPurged)
  }
}

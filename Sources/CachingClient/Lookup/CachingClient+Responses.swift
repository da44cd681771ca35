import FoundationEssentials
import HTTPCaching

extension CachingClient {
  /// Returns the response that a decision selects; `nil` if the decision requires the origin.
  ///
  /// The response's fields are built when they are read.
  func response(
    to request: CachingClientRequest, by decision: ReuseDecision, from entry: Storage.Entry, now: Date
  ) -> Response? {
    if case .gatewayTimeout(let rule) = decision { return unavailable(rule) }
    let prepared = PreparedResponse(decision, of: entry, for: request) { body(of: entry, at: $0) }
    guard let prepared else { return nil }
    let isStale =
      switch decision {
      case .serve: false
      case .serveStale: true
      default: !entry.freshness.isFresh(at: now)
      }
    return Response(
      status: prepared.status, body: prepared.body, source: isStale ? .stale : .hit, age: prepared.age,
      reason: prepared.rule, entry: entry, content: .entry(prepared.form), cacheStatus: hitStatus(entry.freshness, now))
  }

  /// Returns the response from an entry that the origin validated, with the fields and freshness that the 304 updated.
  func revalidatedResponse(
    _ plan: Plan, from freshened: FreshenedResponse<Storage.Entry>, _ rule: Rule, of fetch: InFlightFetch
  ) -> Response? {
    let request = plan.request
    let decision = Reuse.decideResponse(request: request.head, stored: freshened, now: clock(), rule: rule)
    let prepared = PreparedResponse(decision, of: freshened, for: request) { body(of: freshened.base, at: $0) }
    guard let prepared else { return nil }
    return Response(
      status: prepared.status, body: prepared.body, source: .revalidated, age: prepared.age, reason: prepared.rule,
      entry: freshened.base,
      content: .given(
        prepared.form.fields(of: freshened, age: prepared.age), fetch.storageReport,
        isDecoded: freshened.freshness.isOfDecodedContent(freshened.fields)),
      cacheStatus: forwardStatus(plan.forward, status: 304, isStored: true))
  }

  /// Returns the stored response in place of a failed fetch.
  ///
  /// `nil` if stale responses are not permitted, or if the machine has no valid lease: a removal by another machine may
  /// then cover the stored response, which was looked up before.
  ///
  /// - Parameters:
  ///   - isRemoved: Whether a removal since the request was sent covers the stored response. Then it is not served.
  ///   - rule: The reason why the fetch did not decide; nil for a failure of this request's fetch.
  func staleResponse(
    _ plan: Plan, after failure: StaleOnError.Failure, isRemoved: @autoclosure () -> Bool, because rule: Rule? = nil
  ) -> Response? {
    let now = clock()
    guard let entry = plan.entry, let permission = plan.staleOnError, permission.mayServe(after: failure, now: now),
      // In this order: when a lease is renewed, the removals of the time without one are known.
      lease?.isValid != false, !isRemoved()
    else { return nil }
    let decision = Reuse.decideResponse(
      request: plan.request.head, stored: entry, now: now, rule: rule ?? permission.rule)
    let prepared = PreparedResponse(decision, of: entry, for: plan.request) { body(of: entry, at: $0) }
    guard let prepared else { return nil }
    counters.staleServed.count()
    let status: Int? = if rule == nil, case .status(let status) = failure { status } else { nil }
    return Response(
      status: prepared.status, body: prepared.body, source: .staleOnError, age: prepared.age, reason: prepared.rule,
      entry: entry,
      content: .entry(prepared.form), cacheStatus: forwardStatus(plan.forward, status: status, isStored: false))
  }

  /// Returns how a request may use the response to an identical request; `nil` if it may not.
  ///
  /// The decision is for the time at which both the head and the request had arrived. Otherwise a response whose body
  /// took longer than its freshness lifetime would be fetched again.
  ///
  /// - Parameter requestedAt: The time at which the request began to wait.
  func decideSharing(_ shared: CacheableResponse, _ request: CachingClientRequest, requestedAt: Date) -> ReuseDecision?
  {
    guard shared.vary.matches(request.head, credentialDigest: storage.credentialDigest) else { return nil }
    // The fetch may be one for an equivalent URL, if the response still says so.
    guard request.keepsKey(with: shared.fields) else { return nil }
    let decision = Reuse.decide(
      request: request.head, stored: shared, policy: request.policy,
      now: max(requestedAt, shared.freshness.responseTime), options: options)
    return decision.needsNoOrigin ? decision : nil
  }

  /// Returns the response to a request that waited for another request's fetch; `nil` if it may not use that response.
  ///
  /// - Parameter stored: The body, if it is not that of `shared`.
  func coalescedResponse(
    _ plan: Plan, from shared: CacheableResponse, _ stored: ResponseBodyStream?, of fetch: InFlightFetch,
    requestedAt: Date
  ) -> Response? {
    let request = plan.request
    guard let decision = decideSharing(shared, request, requestedAt: requestedAt),
      // Only plain requests share a fetch, so the body is the whole one.
      let prepared = PreparedResponse(decision, of: shared, for: request, body: { stored ?? shared.body.body(at: $0) })
    else { return nil }
    let age = shared.freshness.wholeAge(at: clock())
    return Response(
      status: prepared.status, body: prepared.body, source: .coalesced, age: age, reason: .coalesced, entry: nil,
      content: .given(
        prepared.form.fields(of: shared, age: age), fetch.storageReport,
        isDecoded: shared.freshness.isOfDecodedContent(shared.fields)),
      cacheStatus: forwardStatus(plan.forward, isStored: true, isCollapsed: true))
  }

  /// Returns the response to a request that joined another request's fetch, and reads its body while it arrives; `nil`
  /// if it may not use the response.
  func arrivingResponse(
    _ plan: Plan, _ head: CacheableResponse, _ body: ResponseBodyStream, of fetch: InFlightFetch,
    over transport: some Transport, requestedAt: Date
  ) -> Response? {
    // Only plain requests share a fetch, so the response is the whole one.
    guard case .serve? = decideSharing(head, plan.request, requestedAt: requestedAt) else { return nil }
    let age = head.freshness.wholeAge(at: clock())
    return Response(
      status: head.status,
      // Otherwise those who read along would ask one after the other if each transfer is cut.
      body: recovering(body, of: head, from: fetch, plan, over: transport) { [isForRest = plan.request.isForRest] in
        !isForRest && !($0 is CancellationError)
      },
      source: .coalesced, age: age, reason: .coalesced, entry: nil,
      content: .given(
        ResponseForm.whole.fields(of: head, age: age), fetch.storageReport,
        isDecoded: head.freshness.isOfDecodedContent(head.fields)),
      cacheStatus: forwardStatus(plan.forward, isStored: true, isCollapsed: true))
  }

  /// Returns the response from the network, unchanged.
  ///
  /// - Parameter isStored: Whether the response will be stored, as far as its head says.
  func networkResponse(
    _ incoming: IncomingResponse, body: ResponseBodyStream, _ rule: Rule, _ forward: CacheStatus.Forward,
    _ report: StorageReport, isStored: Bool = false, age: Int = 0
  ) -> Response {
    Response(
      status: incoming.head.status, body: body, source: .miss, age: age, reason: rule, entry: nil,
      content: .given(
        incoming.head.fields, report,
        isDecoded: incoming.isContentDecoded && incoming.head.fields.contains("Content-Encoding")),
      cacheStatus: forwardStatus(forward, isStored: isStored))
  }

  /// Returns the 504 for a request that forbids the network.
  ///
  /// It has no Cache-Status, because the cache generates the response (RFC 9211 section 2).
  func unavailable(_ rule: Rule) -> Response {
    Response(
      status: 504, body: .empty, source: .unavailable, age: 0, reason: rule, entry: nil,
      content: .given(["Content-Length": "0"], StorageReport(.notStored(rule)), isDecoded: false), cacheStatus: nil)
  }

  // MARK: Cache-Status

  private func hitStatus(_ freshness: FreshnessInfo, _ now: Date) -> CacheStatus? {
    guard let name = options.cacheStatusName else { return nil }
    // A corrupt record can contain any lifetime. Leave out a TTL that does not fit in an integer.
    return CacheStatus(name: name, timeToLive: Int(exactly: freshness.timeToLive(at: now).rounded(.down)))
  }

  func forwardStatus(
    _ forward: CacheStatus.Forward, status: Int? = nil, isStored: Bool, isCollapsed: Bool = false
  ) -> CacheStatus? {
    guard let name = options.cacheStatusName else { return nil }
    var member = CacheStatus(name: name, forward: forward)
    member.forwardStatus = status
    member.isStored = isStored
    member.isCollapsed = isCollapsed
    return member
  }
}

import FoundationEssentials
import HTTPCaching

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

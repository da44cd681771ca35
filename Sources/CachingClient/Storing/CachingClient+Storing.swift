import CacheModel
import FoundationEssentials
import HTTPCaching

extension CachingClient {
  /// The response to store, whose body may still be in flight, or the rule that refuses it.
  enum StorageDecision {
    case store(ProposedResponse)
    case refuse(Rule)
  }

  /// Decides whether to store a response.
  ///
  /// - Parameter head: The head of the response after the request's overrides.
  func decideStorage(_ head: ResponseHead, _ arrival: Arrival, _ request: CachingClientRequest) -> StorageDecision {
    let overrides = request.overrides.resolved(forContentType: arrival.response.head.fields["Content-Type"])
    if let rule = overrides.refusal(ofStatus: head.status, to: request.head.url) { return .refuse(rule) }
    // A stream of events is for one subscriber, and storing would wait for an end that may never come.
    if head.isEventStream { return .refuse(.eventStream) }
    let storability = Storability.decide(
      request: arrival.sent, response: head, requestTime: arrival.requestTime, responseTime: arrival.responseTime,
      options: options)
    switch storability {
    case .refuse(let rule): return .refuse(rule)
    case .store where arrival.response.endsWithConnection: return .refuse(.unprovenEnd)
    case .store(let fields, let freshness):
      var freshness = overrides.applied(to: freshness, status: head.status)
      if arrival.response.isContentDecoded { freshness.flags.insert(.decoded) }
      return .store(
        ProposedResponse(
          status: head.status, fields: fieldsToStore(fields), body: Data(), freshness: freshness,
          vary: VaryKey(
            request: request.head, response: head.fields, options: options,
            isContentDecoded: arrival.response.isContentDecoded, credentialDigest: storage.credentialDigest))
      )
    }
  }

  /// Delivers a storable response to its caller, and stores it when its body is complete.
  nonisolated(nonsending) func storeWhileStreaming(
    _ incoming: IncomingResponse, as proposal: ProposedResponse, _ plan: Plan, in fetch: InFlightFetch,
    over transport: some Transport
  ) async {
    let declared = incoming.declaredByteCount(for: plan.request)
    var placement: BodyPlacement?
    if incoming.body.bytes == nil, declared.exceeds(Self.maximumCollectedByteCount) {
      placement = self.placement(ofBody: proposal, plan)
    }
    if let refusal = declared.refusal(limit: bodyLimit(in: placement)) {
      refuse(refusal, plan.request, fetch)
      // Keep the stored response after a malformed length, because it may still be served on error.
      return await passThrough(
        incoming, plan, refused: refusal, outdatesStored: refusal == .bodyTooLarge, in: fetch)
    }
    if proposal.freshness.flags.contains(.incomplete) {
      inFlightFetches.close(fetch)
      fetch.resolve(.notShareable(variant: nil))
    } else {
      announce(proposal.response, plan, in: fetch)
    }
    var incoming = incoming
    do { try await holdBack(&incoming, plan, in: fetch) } catch {
      refuse(.incompleteBody, plan.request, fetch)
      return fail(error, plan, in: fetch)
    }
    let age = proposal.freshness.wholeAge(at: clock())

    if let bytes = incoming.body.bytes {
      let limit = maximumBodyByteCount
      guard bytes.count <= limit, declared.allows(bytes.count) else {
        let refusal: Rule = bytes.count > limit ? .bodyTooLarge(limit: limit) : .incompleteBody
        refuse(refusal, plan.request, fetch)
        return await passThrough(
          incoming, plan, refused: refusal, outdatesStored: refusal == .bodyTooLarge, in: fetch)
      }
      counters.activity.add(bytes.count, .originBytes)
      let isStored = await storeAndShare(proposal, body: bytes, plan, in: fetch)
      return fetch.deliver(
        .success(
          networkResponse(
            incoming, body: incoming.body, plan.rule, plan.forward, fetch.storageReport, isStored: isStored, age: age)))
    }

    let arriving = arrivingBody(of: fetch)
    await streamBody(incoming.body, into: arriving, declared, placement, proposal, plan, in: fetch) {
      fetch.deliver(
        .success(
          networkResponse(
            incoming, body: readerBody(of: arriving, proposal, plan, over: transport), plan.rule, plan.forward,
            fetch.storageReport, isStored: true, age: age)))
    }
  }

  /// Releases the followers that cannot use the response of a fetch, whose head has arrived.
  func announce(_ head: CacheableResponse, _ plan: Plan, in fetch: InFlightFetch) {
    if decideSharing(head, plan.request, requestedAt: head.freshness.responseTime) != nil {
      recordShareable(plan, head.vary)
    } else {
      recordUnshareable(plan, head.vary, status: head.status)
    }
    fetch.releaseFollowers(notServedBy: head)
  }

  /// Waits for the body of a response that a stale response may replace: for its first part if the caller receives the
  /// body as it arrives, and otherwise for all of it, if it is not too large to store.
  ///
  /// A caller that has received nothing can then get the stale response if the body is cut.
  ///
  /// - Throws: The error that ends the body early.
  nonisolated(nonsending) private func holdBack(
    _ incoming: inout IncomingResponse, _ plan: Plan, in fetch: InFlightFetch
  ) async throws {
    guard plan.entry != nil, let permission = plan.staleOnError, permission.mayServe(after: .unreachable, now: clock())
    else { return }
    let declared = incoming.declaredByteCount(for: plan.request)
    // The caller collects a body for which all is awaited. A larger one is delivered as it arrives.
    let limit = min(maximumBodyByteCount, Self.maximumAwaitedByteCount)
    let awaitsAll =
      !plan.request.receivesBodyAsItArrives && !plan.request.readsBodyInPieces
      && declared.refusal(limit: limit) != .bodyTooLarge
    incoming.body = try await incoming.body.awaited(completely: awaitsAll, upTo: limit) { fetch.recordProgress() }
    if let bytes = incoming.body.bytes { try declared.check(bytes.count) }
  }

  /// Ends a fetch whose body has arrived: stores the response and passes it to the followers.
  ///
  /// An incomplete response is combined with the stored one. The stored response is looked up again, because another
  /// fetch may have extended it in the meantime.
  ///
  /// - Parameter body: The body; empty if the storage has received it while it arrived.
  /// - Returns: Whether the response is stored, or will be unless the caller's hook refuses it.
  nonisolated(nonsending) func storeAndShare(
    _ proposal: ProposedResponse, body: Data, _ plan: Plan, in fetch: InFlightFetch
  ) async -> Bool {
    var proposal = proposal
    proposal.body = body
    if proposal.freshness.flags.contains(.incomplete) {
      return await storeAndShare(part: proposal, plan, in: fetch)
    }
    return await storeAndShare(proposal, plan, in: fetch)
  }

  /// Returns the fields to store. A shared cache leaves out Set-Cookie (RFC 9111 section 7.3).
  ///
  /// The cookie is for the user who sent the request. Only the response to that user has it.
  func fieldsToStore(_ fields: HeaderFields) -> HeaderFields {
    guard options.mode == .shared else { return fields }
    var fields = fields
    for name in UnsharedFields.forUser { fields.remove(name) }
    return fields
  }

  /// Ends a fetch whose response is complete: stores the response and passes it to the followers.
  ///
  /// If the caller has a hook, the followers receive the response before the hook decides.
  ///
  /// - Returns: Whether the response is stored, or will be unless the hook refuses it.
  nonisolated(nonsending) func storeAndShare(
    _ proposal: ProposedResponse, _ plan: Plan, in fetch: InFlightFetch
  ) async -> Bool {
    guard let willStore = plan.request.willStore else {
      let key = storeProposal(proposal, plan, in: fetch)
      if let cleanUp = cleanUp(after: proposal, plan, storedAt: key, in: fetch) { await cleanUp() }
      let isInvalidated = fetch.storageReport.isInvalidated
      let isNewest = !isInvalidated && !proposal.freshness.flags.contains(.incomplete)
      inFlightFetches.finish(fetch, storedAs: isNewest ? key.map { ($0, proposal.vary) } : nil)
      share(proposal, in: fetch, isRevoked: isInvalidated || fetch.storageReport.outcome == .notStored(.overtaken))
      return key != nil && !isInvalidated
    }
    inFlightFetches.detach(fetch)
    let isRevoked = fetch.permit.isRevoked
    share(proposal, in: fetch, isRevoked: isRevoked)
    let wait = BoundedWait()
    ask(willStore, about: proposal, PendingStore(self, plan, fetch, wait))
    // The followers have the response. The end of the caller's body waits for the hook, up to this limit.
    await wait.wait(atMost: .milliseconds(200))
    return !isRevoked
  }

  /// Passes a complete response to the followers, unless its permit was revoked.
  ///
  /// Not inlined: copies of the response would be in the frames of asynchronous functions, which take memory of the
  /// task.
  @inline(never)
  private func share(_ proposal: ProposedResponse, in fetch: InFlightFetch, isRevoked: Bool) {
    // The followers of a body that the storage has received while it arrived read along already.
    let isShared = !isRevoked && proposal.arrivedBody == nil
    fetch.resolve(isShared ? .shared(proposal.response) : .notShareable(variant: nil))
  }

  /// Calls the hook.
  ///
  /// A separate function, because the waiting function would retain the callback after the hook has released it.
  private func ask(
    _ willStore: CachingClientRequest.StorageHook, about proposal: ProposedResponse, _ pending: PendingStore<Storage>
  ) {
    willStore(proposal) { pending.decide($0) }
  }

  /// Stores a complete response, unless its permit was revoked. The outcome is in the report of the fetch.
  ///
  /// - Returns: The key under which the storage has received the response; nil if it has not, or refuses it. Call
  ///   ``cleanUp(after:_:storedAt:in:)`` then.
  func storeProposal(_ proposal: ProposedResponse, _ plan: Plan, in fetch: InFlightFetch) -> RequestKey? {
    var proposal = proposal
    proposal.permit = fetch.permit
    proposal.report = fetch.storageReport
    let isRevoked = fetch.permit.isRevoked
    proposal.removalToken = fetch.permit.token
    guard !isRevoked, let destination = destination(of: proposal, plan) else {
      refuse(.invalidatedInFlight, plan.request, fetch)
      return nil
    }
    guard !fetch.isOvertaken(at: destination.key, proposal.vary) else {
      refuse(.overtaken, plan.request, fetch)
      return nil
    }
    // A removal of an equivalent URL by another process does not revoke the permit, whose token is moved past it.
    if destination.spaceKey?.variation != nil { proposal.removalToken = plan.start.removalToken }
    storage.store(proposal, for: destination)
    if case .notStored(let rule) = fetch.storageReport.outcome, rule.isOfStorage {
      refuse(rule, plan.request, fetch)
      return nil
    }
    // If a soft purge has covered the response in the meantime, its older token makes it stale in the storage.
    if fetch.permit.isRemoved {
      refuse(.invalidatedInFlight, plan.request, fetch)
    } else {
      fetch.storageReport.decideStored(proposal.freshness)
      counters.stored.count()
      if proposal.freshness.flags.contains(.incomplete) { counters.activity.add(1, .storedParts) }
      counters.activity.observers.emit(
        .stored(url: plan.request.head.url.textWithoutUserInformation, byteCount: proposal.storedByteCount))
    }
    return destination.key
  }

  /// Returns a function that removes what must not be found after a response was stored; nil if there is nothing.
  ///
  /// That is the response itself, if its permit was revoked meanwhile and the storage does not check that, and the one
  /// that it replaces under another key.
  ///
  /// - Parameter key: The result of ``storeProposal(_:_:in:)``.
  func cleanUp(
    after proposal: ProposedResponse, _ plan: Plan, storedAt key: RequestKey?, in fetch: InFlightFetch
  ) -> (@Sendable () async -> Void)? {
    let isInvalidated = fetch.storageReport.isInvalidated
    let revoked = isInvalidated && !storage.checksRevocation ? key : nil
    let replaced = replacedEntry(by: proposal, plan, storedAt: isInvalidated ? nil : key)
    guard revoked != nil || replaced != nil else { return nil }
    return { [self] in
      if let revoked { await removeIfRevoked(plan, fetch, storedAt: revoked) }
      if let replaced { await storage.remove(replaced, for: plan.request) }
    }
  }
}

import FoundationEssentials
import HTTPCaching

/// Passing a body to its readers while it arrives, and to the storage.
extension CachingClient {
  /// A body of at most this size is stored in one piece. A larger one is stored while it arrives.
  @inlinable static var maximumCollectedByteCount: Int { 1 << 20 }
  /// A hook of the caller receives the body in memory. Larger bodies are not stored for such a request.
  static var maximumHookedByteCount: Int { 64 << 20 }
  /// The maximum size of a body that is awaited before it is delivered, so that a stale response can replace it.
  static var maximumAwaitedByteCount: Int { 64 << 20 }

  /// Returns how the body of a response is stored that is larger than ``maximumCollectedByteCount``.
  func placement(ofBody proposal: ProposedResponse, _ plan: Plan) -> BodyPlacement {
    guard plan.request.willStore == nil else { return .inMemory(maximumByteCount: Self.maximumHookedByteCount) }
    return storage.placement(ofBody: proposal, for: plan.request)
  }

  /// The maximum size of a body that is stored in a placement; without one, the maximum for any body.
  func bodyLimit(in placement: BodyPlacement?) -> Int {
    guard case .inMemory(let limit)? = placement else { return maximumBodyByteCount }
    return min(limit, maximumBodyByteCount)
  }

  /// Passes the chunks from the transport to the readers, and stores the body.
  ///
  /// - Parameters:
  ///   - known: How the body is stored; nil to decide that when it is larger than ``maximumCollectedByteCount``.
  ///   - countsBytes: Whether all bytes of the body come from the origin and are counted here.
  ///   - deliver: Delivers the response to the leader, before the first chunk. It must not be kept here: its release
  ///     shows that the leader has left.
  func streamBody(
    _ body: ResponseBodyStream, into arriving: ArrivingBody, _ declared: DeclaredLength, _ known: BodyPlacement?,
    _ proposal: ProposedResponse, _ plan: Plan, in fetch: InFlightFetch, countsBytes: Bool = true,
    deliver: () -> Void
  ) async {
    var transfer = BodyTransfer(limit: bodyLimit(in: known))
    if case .whileArriving(let destination)? = known {
      begin(&transfer, in: destination, arriving, proposal, fetch)
    } else {
      share(arriving, proposal, with: .readingAlong, in: fetch)
    }
    deliver()
    do {
      for try await chunk in body {
        transfer.receivedByteCount += chunk.count
        if countsBytes { counters.activity.add(chunk.count, .originBytes) }
        fetch.recordProgress()
        if transfer.isStored { extend(&transfer, arriving, proposal, plan, fetch) }
        // Without a reader and a store, the end of the body is not proven, so it does not outdate the stored response.
        if await !arriving.send(chunk) { return arriving.finish(throwing: CancellationError()) }
      }
      // Some sequences end without an error when their task is cancelled. The body is then incomplete.
      try Task.checkCancellation()
      try declared.check(transfer.receivedByteCount)
    } catch {
      await end(&transfer, of: arriving, after: error, declared, proposal, plan, fetch)
      return
    }
    arriving.noteArrival()
    if transfer.isStored, let writing = transfer.writing, await !arriving.waitUntilStored(by: writing) {
      stopStoring(&transfer, because: arriving.isTooSlow ? .storeTooSlow : .writeDropped, proposal, plan, fetch)
    }
    guard transfer.isStored else {
      if declared.allows(transfer.receivedByteCount) { await dropOutdated(plan, status: proposal.status) }
      return arriving.finish()
    }
    guard declared.allows(transfer.receivedByteCount) else {
      refuse(.incompleteBody, plan.request, fetch)
      inFlightFetches.finish(fetch)
      fetch.resolve(.notShareable(variant: nil))
      return arriving.finish()
    }
    // Store the response before the caller's body ends, so that the caller's next request finds it.
    await store(transfer, of: arriving, proposal, plan, in: fetch)
    arriving.finish()
  }

  /// Decides after a chunk how the body is stored, if it has just become large, and whether it is still stored.
  private func extend(
    _ transfer: inout BodyTransfer, _ arriving: ArrivingBody, _ proposal: ProposedResponse, _ plan: Plan,
    _ fetch: InFlightFetch
  ) {
    if !transfer.isPlaced, transfer.receivedByteCount > Self.maximumCollectedByteCount {
      let placement = placement(ofBody: proposal, plan)
      transfer.limit = bodyLimit(in: placement)
      transfer.isPlaced = true
      if case .whileArriving(let destination) = placement {
        begin(&transfer, in: destination, arriving, proposal, fetch)
      }
    }
    if transfer.receivedByteCount > transfer.limit {
      stopStoring(&transfer, because: .bodyTooLarge(limit: transfer.limit), proposal, plan, fetch)
    } else if transfer.writing != nil, !arriving.isStoring {
      stopStoring(&transfer, because: arriving.isTooSlow ? .storeTooSlow : .writeDropped, proposal, plan, fetch)
    }
    if !transfer.isStored { arriving.stopStoring() }
  }

  /// Begins to store a body in a destination. From now on all followers read along.
  private func begin(
    _ transfer: inout BodyTransfer, in destination: any BodyDestination, _ arriving: ArrivingBody,
    _ proposal: ProposedResponse, _ fetch: InFlightFetch
  ) {
    transfer.isPlaced = true
    transfer.destination = destination
    transfer.writing = arriving.store(in: destination)
    share(arriving, proposal, with: .all, in: fetch)
  }

  /// Lets followers read the body while it arrives, unless it is a part, which only its own request can use.
  private func share(
    _ arriving: ArrivingBody, _ proposal: ProposedResponse, with followers: InFlightFetch.BodySharing,
    in fetch: InFlightFetch
  ) {
    guard !proposal.freshness.flags.contains(.incomplete) else { return }
    fetch.share(arriving, of: proposal.response, with: followers)
  }

  /// Stops storing. The readers get the rest; requests that come later fetch on their own.
  private func stopStoring(
    _ transfer: inout BodyTransfer, because rule: Rule, _ proposal: ProposedResponse, _ plan: Plan,
    _ fetch: InFlightFetch
  ) {
    transfer.isStored = false
    refuse(rule, plan.request, fetch)
    if rule == .bodyTooLarge { recordUnshareable(plan, proposal.vary, status: proposal.status) }
    inFlightFetches.finish(fetch)
    fetch.resolve(.notShareable(variant: proposal.vary))
  }

  /// Stores a response whose body has arrived.
  private func store(
    _ transfer: BodyTransfer, of arriving: ArrivingBody, _ proposal: ProposedResponse, _ plan: Plan,
    in fetch: InFlightFetch
  ) async {
    var proposal = proposal
    proposal.arrivedBody = transfer.destination
    _ = await storeAndShare(
      proposal, body: transfer.destination == nil ? arriving.collected() : Data(), plan, in: fetch)
  }

  /// Ends a body that was cut, or whose transfer was cancelled.
  private func end(
    _ transfer: inout BodyTransfer, of arriving: ArrivingBody, after error: any Error, _ declared: DeclaredLength,
    _ proposal: ProposedResponse, _ plan: Plan, _ fetch: InFlightFetch
  ) async {
    arriving.noteArrival()
    let isCancelled = error is CancellationError || Task.isCancelled
    if transfer.isStored {
      var beginning: ProposedResponse?
      let extendsPart = plan.entry?.freshness.flags.contains(.incomplete) == true
      let hasWrongSize = if case CachingClientError.incompleteBody = error { true } else { false }
      if extendsPart, hasWrongSize, let entry = plan.entry {
        // The next request is then for the complete response.
        await storage.remove(entry, for: plan.request)
      } else if !isCancelled, extendsPart || transfer.destination != nil {
        beginning = part(of: proposal, receivedByteCount: transfer.receivedByteCount, declared, plan)
      }
      if let writing = transfer.writing, await !arriving.waitUntilStored(by: writing) { beginning = nil }
      if var beginning {
        beginning.arrivedBody = transfer.destination
        if transfer.destination == nil { beginning.body = arriving.collected() }
        let key = storeProposal(beginning, plan, in: fetch)
        if let cleanUp = cleanUp(after: beginning, plan, storedAt: key, in: fetch) { await cleanUp() }
      } else {
        refuse(.incompleteBody, plan.request, fetch)
      }
    }
    inFlightFetches.finish(fetch)
    arriving.finish(throwing: error)
    fetch.resolve(.failed(.unreachable))
  }

  // MARK: Readers

  /// Creates the body of a fetch's response.
  func arrivingBody(of fetch: InFlightFetch) -> ArrivingBody {
    // Weak, because a reader may keep the body longer than the fetch lasts.
    ArrivingBody(waitLimit: options.storageWaitLimit, whenAbandoned: { [weak fetch] in fetch?.bodyWasAbandoned() })
  }

  /// Returns the body for a reader, which gets the rest from the origin if it cannot get it from the transfer.
  ///
  /// That is the case for a reader that is slower than another one of a body that is not stored, or if the stored
  /// response was removed before it was read.
  func readerBody(
    of arriving: ArrivingBody, _ proposal: ProposedResponse, _ plan: Plan, over transport: some Transport
  ) -> ResponseBodyStream {
    guard let body = arriving.makeBody() else {
      preconditionFailure("The response is delivered before its body begins")
    }
    return recovering(body, of: proposal.response, plan, over: transport) { $0 is ArrivingBodyError }
  }

  /// Returns a body whose reader gets the rest from another request if the body fails, or no longer arrives.
  ///
  /// - Parameters:
  ///   - fetch: The fetch that a follower reads along; nil for the leader.
  ///   - mayRecover: Returns whether an error permits that.
  func recovering(
    _ body: ResponseBodyStream, of head: CacheableResponse, from fetch: InFlightFetch? = nil, _ plan: Plan,
    over transport: some Transport, if mayRecover: @escaping @Sendable (any Error) -> Bool
  ) -> ResponseBodyStream {
    // The fetch is weak, because a reader may keep the body longer than it lasts.
    body.replacedIfItFails { [weak fetch, isFollower = fetch != nil] error, receivedByteCount in
      switch error {
      case ArrivingBodyError.timedOut: throw CachingClientError.timedOut
      case ArrivingBodyError.stalled(let deadline):
        if let fetch { self.inFlightFetches.close(fetch) }
        return try await self.rest(ofShared: head, after: receivedByteCount, plan, over: transport, until: deadline)
      default: break
      }
      guard mayRecover(error) else { throw error }
      let lost = error is ArrivingBodyError ? CachingClientError.storedBodyLost : error
      let rest =
        isFollower
        ? try await self.rest(ofShared: head, after: receivedByteCount, plan, over: transport, until: nil)
        : try await self.rest(of: head, after: receivedByteCount, plan, over: transport)
      guard let rest else { throw lost }
      return rest
    }
  }

  /// Returns the rest of a body that no longer arrives for those who read it along, from another response; `nil` if
  /// there is none, so that they wait on for a body that may still arrive.
  ///
  /// The request begins again, so that one of the readers of the body fetches, and the others join it.
  ///
  /// - Parameter deadline: When the reader times out, unless the head of the other response has arrived; nil for never.
  private func rest(
    ofShared head: CacheableResponse, after receivedByteCount: Int, _ plan: Plan, over transport: some Transport,
    until deadline: ContinuousClock.Instant?
  ) async throws -> ResponseBodyStream? {
    // The same as itself only with a strong validator.
    guard receivedByteCount == 0 || PartialContent.isSameRepresentation(head.fields, head.fields) else { return nil }
    do {
      return try await withThrowingTaskGroup { group in
        group.addTask { () -> ResponseBodyStream? in
          var request = plan.request
          request.isForRest = true
          let other = try await self.respondAgain(to: request, over: transport)
          guard self.isSame(other.head, as: head, after: receivedByteCount),
            other.isContentDecoded == head.freshness.isOfDecodedContent(head.fields)
          else { return nil }
          return other.body.dropping(first: receivedByteCount)
        }
        if let deadline {
          group.addTask {
            try await Task.sleep(until: deadline, clock: .continuous)
            return nil
          }
        }
        defer { group.cancelAll() }
        return try await group.next() ?? nil
      }
    } catch {
      try Task.checkCancellation()
      return nil
    }
  }

  /// Requests a response again, and returns its body from a position on; `nil` if it is another representation.
  private func rest(
    of head: CacheableResponse, after receivedByteCount: Int, _ plan: Plan, over transport: some Transport
  ) async throws -> ResponseBodyStream? {
    let arrival = try await send(plan.unconditional, over: transport)
    let received = plan.request.overrides.applied(to: arrival.response.head)
    guard isSame(received, as: head, after: receivedByteCount), !arrival.response.usedUnseenCredentials,
      head.freshness.flags.contains(.decoded) == arrival.response.isContentDecoded
    else { return nil }
    return counters.countingBytes(of: arrival.response.lengthCheckedBody(for: plan.request))
      .dropping(first: receivedByteCount)
  }

  /// Whether a reader of one response can go on with the body of another one.
  private func isSame(_ received: ResponseHead, as head: CacheableResponse, after receivedByteCount: Int) -> Bool {
    guard received.status == head.status else { return false }
    // The reader has the head already. Without bytes, equal fields suffice.
    return PartialContent.isSameRepresentation(received.fields, head.fields)
      || receivedByteCount == 0
        && ["ETag", "Last-Modified", "Content-Length", "Content-Type", "Content-Encoding"].allSatisfy {
          received.fields[$0] == head.fields[$0]
        }
  }
}

/// The state of a fetch that receives a body.
private struct BodyTransfer {
  /// The maximum size of the body to store.
  var limit: Int
  /// Whether it was decided how the body is stored.
  var isPlaced = false
  var isStored = true
  var receivedByteCount = 0
  var destination: (any BodyDestination)?
  /// Ends when all that has arrived is written, or storing has ended.
  var writing: Task<Void, Never>?
}

extension DeclaredLength {
  /// Whether it is known to be more than a number of bytes.
  func exceeds(_ byteCount: Int) -> Bool {
    if case .exactly(let declared) = self { declared > byteCount } else { false }
  }
}

import FoundationEssentials
import HTTPCaching

extension CachingClient {
  /// Combines a requested range with the stored incomplete response, and delivers a response from the result.
  ///
  /// - Parameter transport: Sends a request for the complete response if the range is cut or has another size while the
  ///   caller reads.
  /// - Returns: `false` if the two cannot be combined, so that the complete response must be requested.
  func complete(
    by arrival: Arrival, _ plan: Plan, in fetch: InFlightFetch, over transport: some Transport
  ) async throws -> Bool {
    guard arrival.response.head.status == 206, let entry = plan.entry else { return false }
    let head = plan.request.overrides.applied(to: arrival.response.head)
    guard case .store(var part) = decideStorage(head, arrival, plan.request),
      let completion = Completion(of: entry, by: part), completion.byteCount <= maximumBodyByteCount,
      arrival.response.declaredByteCount(for: plan.request).allows(completion.missingByteCount)
    else { return false }
    let missing = arrival.response.body.limited(to: completion.missingByteCount)
    if plan.request.readsBodyInPieces || completion.byteCount > Self.maximumCollectedByteCount {
      return await stream(completion, missing, from: entry, part, plan, in: fetch, over: transport)
    }

    do {
      part.body = try await missing.collect(upTo: completion.missingByteCount)
    } catch  where !(error is CancellationError) {
      return false
    }
    try Task.checkCancellation()
    guard let combined = await combine(part, with: entry, plan), combined.status == completion.status else {
      return false
    }

    // Prepare the response before storing, from this object instead of the stored one.
    let shared = combined.response
    let decision = Reuse.decideResponse(request: plan.request.head, stored: shared, now: clock(), rule: plan.rule)
    guard let prepared = PreparedResponse(decision, of: shared, for: plan.request, body: shared.body.body(at:)) else {
      return false
    }
    let isStored = await storeAndShare(combined, plan, in: fetch)
    fetch.deliver(
      .success(
        Response(
          status: prepared.status, body: prepared.body, source: .miss, age: prepared.age, reason: prepared.rule,
          entry: nil,
          content: .given(
            prepared.form.fields(of: shared, age: prepared.age), fetch.storageReport,
            isDecoded: shared.freshness.isOfDecodedContent(shared.fields)),
          cacheStatus: forwardStatus(plan.forward, status: 206, isStored: isStored))))
    return true
  }

  /// Delivers the stored part and then the missing part as it arrives, or the reverse, and stores the complete
  /// response.
  ///
  /// If the missing part is cut, what has arrived of it extends the stored part. If the reader has no byte of it yet,
  /// it receives the rest from a request for the complete response at once: an origin that fails to send a range may
  /// never send it. If neither is possible, or the missing part has another size than it said, the stored part is
  /// removed, so that the next request is for the complete response.
  ///
  /// - Returns: `false` if the request does not receive the complete body, because of its own conditions.
  private func stream(
    _ completion: Completion, _ missing: ResponseBodyStream, from entry: Storage.Entry, _ part: ProposedResponse,
    _ plan: Plan,
    in fetch: InFlightFetch, over transport: some Transport
  ) async -> Bool {
    var whole = part
    whole.status = completion.status
    whole.fields = completion.fields
    whole.freshness = completion.freshness
    let head = whole.response
    let decision = Reuse.decideResponse(request: plan.request.head, stored: head, now: clock(), rule: plan.rule)
    guard case .serve(let age, let rule) = decision else { return false }
    announce(head, plan, in: fetch)
    let stored = storage.chunks(of: entry, in: 0..<entry.bodyByteCount)
    let received = counters.countingBytes(of: missing)
    let arriving = arrivingBody(of: fetch)
    let isAfterStored = completion.beginsWithStoredPart
    let deliveredByteCount = isAfterStored ? entry.bodyByteCount : 0
    let rest = (isAfterStored ? received : ResponseBodyStream(joining: [received, stored])).replacedIfItFails {
      error, receivedByteCount in
      // A request that failed says nothing of the stored part.
      let whole: ResponseBodyStream? =
        receivedByteCount == 0
        ? try await self.rest(of: completion, after: deliveredByteCount, entry, plan, over: transport) : nil
      if let whole { return whole }
      if receivedByteCount == 0 || !isAfterStored { await self.storage.remove(entry, for: plan.request) }
      throw error
    }
    await streamBody(
      isAfterStored ? ResponseBodyStream(joining: [stored, rest]) : rest, into: arriving,
      .exactly(completion.byteCount), nil, whole, plan, in: fetch, countsBytes: false
    ) {
      fetch.deliver(
        .success(
          Response(
            status: whole.status, body: readerBody(of: arriving, whole, plan, over: transport), source: .miss,
            age: age, reason: rule, entry: nil,
            content: .given(
              ResponseForm.whole.fields(of: head, age: age), fetch.storageReport,
              isDecoded: head.freshness.isOfDecodedContent(head.fields)),
            cacheStatus: forwardStatus(plan.forward, status: 206, isStored: true))))
    }
    return true
  }

  /// Requests the complete response, and returns its body from a position on; `nil` if it is another representation
  /// than that of the stored part, or must not be stored.
  private func rest(
    of completion: Completion, after deliveredByteCount: Int, _ entry: Storage.Entry, _ plan: Plan,
    over transport: some Transport
  ) async throws -> ResponseBodyStream? {
    let arrival = try await send(plan.unconditional, over: transport)
    let head = plan.request.overrides.applied(to: arrival.response.head)
    guard head.status == 200, !arrival.response.usedUnseenCredentials,
      case .store(let whole) = decideStorage(head, arrival, plan.request),
      PartialContent.isPart(entry, ofResponseWith: whole.fields, whole.freshness),
      arrival.response.declaredByteCount(for: plan.request).allows(completion.byteCount)
    else { return nil }
    return counters.countingBytes(of: arrival.response.body.limited(to: completion.byteCount))
      .dropping(first: deliveredByteCount)
  }

  /// Returns the response to store after a partial response has arrived (RFC 9111 section 3.4): the partial response
  /// itself, or its combination with the stored one.
  ///
  /// `nil` if the combination is too large; the stored response then stays unchanged.
  func combined(_ part: ProposedResponse, _ plan: Plan) async -> ProposedResponse? {
    guard let key = plan.request.key, let stored = storage.lookup(plan.request, at: key) else { return part }
    return await combine(part, with: stored, plan)
  }

  /// Returns a part or its combination with a stored response; see ``combined(_:_:)``.
  private func combine(
    _ part: ProposedResponse, with stored: Storage.Entry, _ plan: Plan
  ) async -> ProposedResponse? {
    let combination = PartialContent.combine(
      fields: part.fields, freshness: part.freshness, byteCount: part.storedByteCount, stored: stored)
    guard case .combine(let status, let fields, let freshness, let pieces) = combination else { return part }
    var whole = part
    whole.status = status
    whole.fields = fields
    whole.freshness = freshness
    whole.body = Data()
    whole.arrivedBody = nil
    let byteCount = pieces.reduce(0) { $0 + $1.byteCount }
    guard byteCount <= maximumBodyByteCount, byteCount <= Self.maximumCombinedByteCount else {
      // To copy a long part for each range would cost more than it saves.
      return part.storedByteCount > stored.bodyByteCount ? part : nil
    }
    let placement = byteCount > Self.maximumCollectedByteCount ? self.placement(ofBody: whole, plan) : nil
    if case .inMemory(let limit)? = placement, byteCount > limit { return nil }
    do {
      let body = ResponseBodyStream(joining: pieces.map { self.body(of: $0, part, stored) })
      if case .whileArriving(let destination)? = placement {
        // If the store drops it, the part is not stored either.
        whole.arrivedBody = destination
        guard try await write(body, to: destination) else { return nil }
      } else {
        whole.body = try await body.collect(upTo: byteCount)
      }
      // If the stored body is shorter than its metadata declares, do not use it.
      return whole.storedByteCount == byteCount ? whole : part
    } catch {
      // The stored response was removed or evicted meanwhile.
      return part
    }
  }

  /// Ends a fetch whose partial response has arrived: combines it with the stored one, and stores it.
  ///
  /// - Returns: Whether it is stored, or will be unless the caller's hook refuses it.
  func storeAndShare(part: ProposedResponse, _ plan: Plan, in fetch: InFlightFetch) async -> Bool {
    guard let combined = await combined(part, plan) else {
      refuse(
        .bodyTooLarge(limit: min(maximumBodyByteCount, Self.maximumCombinedByteCount)), plan.request, fetch)
      inFlightFetches.finish(fetch)
      fetch.resolve(.notShareable(variant: nil))
      return false
    }
    return await storeAndShare(combined, plan, in: fetch)
  }

  /// Returns the bytes of a piece of a combination.
  private func body(
    of piece: PartialContent.Piece, _ part: ProposedResponse, _ stored: Storage.Entry
  ) -> ResponseBodyStream {
    switch piece {
    case .stored(let range): return storage.chunks(of: stored, in: range)
    case .new(let range):
      guard let arrived = part.arrivedBody else { return ResponseBodyStream(part.body.part(range)) }
      return ResponseBodyStream(readingFrom: arrived, in: range)
    }
  }

  /// Writes a body to a destination. Returns false if the storage cannot store it.
  private func write(_ body: ResponseBodyStream, to destination: any BodyDestination) async throws -> Bool {
    for try await chunk in body {
      guard await onBlockingThread({ destination.write([chunk]) }) else { return false }
    }
    return await onBlockingThread { destination.complete() }
  }

  /// Returns the beginning of a body that was cut, as a response to store; `nil` if the rest cannot be requested.
  func part(
    of proposal: ProposedResponse, receivedByteCount: Int, _ declared: DeclaredLength, _ plan: Plan
  ) -> ProposedResponse? {
    // Another request may have stored a response since this one began.
    let present = plan.request.key.flatMap { storage.lookup(plan.request, at: $0) }
    guard case .exactly(let length) = declared, proposal.status == 200,
      [plan.entry, present].allSatisfy({ $0.map { isReplaced($0, byPartOf: proposal, receivedByteCount) } ?? true }),
      let beginning = PartialContent.beginning(
        ofResponseWith: proposal.fields, proposal.freshness, byteCount: receivedByteCount, completeLength: length)
    else { return nil }
    var part = proposal
    part.status = 206
    part.fields = beginning.fields
    part.freshness = beginning.freshness
    return part
  }

  /// Whether a part of a cut response replaces what is stored.
  private func isReplaced(
    _ entry: Storage.Entry, byPartOf proposal: ProposedResponse, _ receivedByteCount: Int
  ) -> Bool {
    // A complete response can be validated, which may cost less than the rest.
    guard entry.freshness.flags.contains(.incomplete) else { return false }
    return receivedByteCount > entry.bodyByteCount
      || !PartialContent.isPart(entry, ofResponseWith: proposal.fields, proposal.freshness)
  }

  /// A part and a stored response are not combined if the result is larger.
  private static var maximumCombinedByteCount: Int { 64 << 20 }
}

extension PartialContent.Piece {
  fileprivate var byteCount: Int {
    switch self {
    case .stored(let range), .new(let range): range.count
    }
  }
}

extension ResponseBodyStream {
  /// Creates a body that reads a part of what a destination has received.
  fileprivate init(readingFrom destination: any BodyDestination, in range: Range<Int>) {
    self.init(start: {
      var rest = range
      return {
        guard !rest.isEmpty else { return nil }
        let piece = rest.prefix(256 << 10)
        guard let chunk = await onBlockingThread({ destination.read(piece) }) else {
          throw CachingClientError.storedBodyLost
        }
        rest = rest.dropFirst(piece.count)
        return chunk
      }
    })
  }
}

/// A complete response that consists of a stored part and the missing part, whose head has arrived.
private struct Completion {
  let status: Int
  let fields: HeaderFields
  let freshness: FreshnessInfo
  let missingByteCount: Int
  /// The size of the complete body.
  let byteCount: Int
  let beginsWithStoredPart: Bool

  /// Creates the completion; `nil` if the part is not exactly the missing one, or not of the same representation.
  init?(of entry: some StoredResponseMetadata, by part: ProposedResponse) {
    guard let range = part.fields["Content-Range"].flatMap({ ContentRange($0) })?.range,
      case .combine(200, let fields, let freshness, let pieces) = PartialContent.combine(
        fields: part.fields, freshness: part.freshness, byteCount: range.count, stored: entry),
      pieces.count == 2, let storedIndex = pieces.firstIndex(of: .stored(0..<entry.bodyByteCount))
    else { return nil }
    status = 200
    self.fields = fields
    self.freshness = freshness
    missingByteCount = range.count
    byteCount = entry.bodyByteCount + range.count
    beginsWithStoredPart = storedIndex == 0
  }
}

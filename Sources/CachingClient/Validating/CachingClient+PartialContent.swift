import HTTPCaching

#if canImport(FoundationEssentials)
  import FoundationEssentials
#else
  import Foundation
#endif

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
    if plan.request.readsBodyInPieces {
      return await stream(completion, missing, from: entry, part, plan, in: fetch, over: transport)
    }

    do {
      part.body = try await missing.collect(upTo: completion.missingByteCount)
    } catch  where !(error is CancellationError) {
      return false
    }
    try Task.checkCancellation()
    guard let combined = combine(part, with: entry), combined.status == completion.status else { return false }

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
          status: prepared.status, body: prepared.body, source: .network, age: prepared.age, reason: prepared.rule,
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
  /// If the missing part is cut or has another size, the stored part is removed, so that the next request is for the
  /// complete response. An origin that fails to send a range may never send it. If the reader has no byte of the
  /// missing part yet, it receives the rest from such a request at once.
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
    // Weak, because the reader may keep the pipe longer than the fetch lasts.
    let pipe = BodyPipe(whenAbandoned: { [weak fetch] in fetch?.leaderDidCancel() })
    fetch.deliver(
      .success(
        Response(
          status: whole.status, body: pipe.makeBody(), source: .network, age: age, reason: rule, entry: nil,
          content: .given(
            ResponseForm.whole.fields(of: head, age: age), fetch.storageReport,
            isDecoded: head.freshness.isOfDecodedContent(head.fields)),
          cacheStatus: forwardStatus(plan.forward, status: 206, isStored: true))))
    let isAfterStored = completion.beginsWithStoredPart
    let deliveredByteCount = isAfterStored ? entry.bodyByteCount : 0
    let rest = (isAfterStored ? received : ResponseBodyStream(joining: [received, stored])).replacedIfItFails {
      error, hasBegun in
      await self.storage.remove(entry, for: plan.request)
      guard !hasBegun,
        let rest = try await self.rest(of: completion, after: deliveredByteCount, entry, plan, over: transport)
      else { throw error }
      return rest
    }
    await streamBody(
      isAfterStored ? ResponseBodyStream(joining: [stored, rest]) : rest, into: pipe, .exactly(completion.byteCount),
      whole, plan, in: fetch, countsBytes: false)
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

  /// Returns the response to store after a partial response has arrived (RFC 9111 section 3.4).
  ///
  /// This is the partial response itself, or its combination with the stored response. `nil` if the combination is too
  /// large; the stored response then stays unchanged.
  func combine(_ part: ProposedResponse, with stored: Storage.Entry) -> ProposedResponse? {
    let combination = PartialContent.combine(
      fields: part.fields, freshness: part.freshness, byteCount: part.body.count, stored: stored)
    switch combination {
    case .replace: return part
    case .combine(let status, let fields, let freshness, let pieces):
      let old = storage.body(of: stored)
      var body = Data()
      for piece in pieces {
        let (source, range) =
          switch piece {
          case .stored(let range): (old, range)
          case .new(let range): (part.body, range)
          }
        // If the stored body is shorter than its metadata declares, do not use it.
        guard range.lowerBound >= 0, range.upperBound <= source.count else { return part }
        body.append(source.part(range))
      }
      guard body.count <= maximumBodyByteCount else { return nil }
      var whole = part
      whole.status = status
      whole.fields = fields
      whole.freshness = freshness
      whole.body = body
      return whole
    }
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

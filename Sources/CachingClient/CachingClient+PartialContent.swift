import FoundationEssentials
import HTTPCaching

extension CachingClient {
  /// Combines a requested range with the stored incomplete response, and delivers a response from the result.
  ///
  /// - Returns: `false` if the two cannot be combined, so that the complete response must be requested.
  func complete(by arrival: Arrival, _ plan: Plan, in fetch: InFlightFetch) async throws -> Bool {
    guard arrival.response.head.status == 206, let entry = plan.entry else { return false }
    let head = plan.request.overrides.applied(to: arrival.response.head)
    guard case .store(var part) = decideStorage(head, arrival, plan.request) else {
      return false
    }

    // Do not combine a body in memory that is too large to store. The complete response is then requested and streamed.
    let limit = maximumBodyByteCount
    guard arrival.response.declaredByteCount(for: plan.request).refusal(limit: limit) == nil else { return false }
    do {
      part.body = try await arrival.response.lengthCheckedBody(for: plan.request).collect(upTo: limit)
    } catch CachingClientError.bodyTooLarge {
      return false
    }
    try Task.checkCancellation()
    guard let combined = combine(part, with: entry) else { return false }

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
          content: .given(prepared.form.fields(of: shared, age: prepared.age)),
          cacheStatus: forwardStatus(plan.forward, status: 206, isStored: isStored))))
    return true
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
      guard body.count <= maximumBodyByteCount else {
        counters.refuse(.bodyTooLarge)
        return nil
      }
      var whole = part
      whole.status = status
      whole.fields = fields
      whole.freshness = freshness
      whole.body = body
      return whole
    }
  }
}

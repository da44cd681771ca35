import FoundationEssentials
import HTTPCaching

extension CachingClient {
  /// Takes the answer to a request for the rest of a stored part, and answers from what the two make together.
  ///
  /// - Returns: `false` if they do not fit, so that the whole must be asked for.
  func complete(by arrival: Arrival, _ plan: Plan, in flight: Flight<Storage.Entry>) async throws -> Bool {
    guard arrival.response.head.status == 206, let entry = plan.entry else { return false }
    let judged = plan.request.overrides.judged(arrival.response.head)
    guard case .store(var part) = judge(judged, arrival, plan.request, sentAs: plan.outgoing.head) else { return false }

    // What the two make together may be more than is kept, and need not be: the whole then streams through.
    let limit = maximumBodyByteCount
    guard arrival.response.announcedByteCount(for: plan.request).refusal(limit: limit) == nil else { return false }
    do {
      part.body = try await arrival.response.checkedBody(for: plan.request).collect(upTo: limit)
    } catch CachingClientError.bodyTooLarge {
      return false
    }
    try Task.checkCancellation()
    guard let combined = combine(part, with: entry) else { return false }

    // Decided before it is filed: the store may hand out another object than the one at hand.
    let shared = SharedResponse(combined)
    let decision = Reuse.answer(request: plan.request.head, stored: shared, now: clock(), rule: plan.rule)
    guard let shape = AnswerShape(decision, of: shared, for: plan.request, body: { shared.body }) else { return false }
    let isStored = await finish(combined, plan, in: flight)
    flight.deliver(
      .success(
        Response(
          status: shape.status, body: shape.body, source: .network, age: shape.age, reason: shape.rule, entry: nil,
          content: .given(shape.kind.fields(of: shared, age: shape.age)),
          cacheStatus: forwardStatus(plan.forward, status: 206, isStored: isStored))))
    return true
  }

  /// What is to be stored when a part has come: the part, or what it makes together with what is stored (RFC 9111
  /// section 3.4); `nil` if what is stored is to stay.
  func combine(_ part: StorageProposal, with stored: Storage.Entry) -> StorageProposal? {
    let combination = PartialContent.combine(
      fields: part.fields, facts: part.facts, byteCount: part.body.count, stored: stored)
    switch combination {
    case .replace: return part
    case .combine(let status, let fields, let facts, let pieces):
      let old = storage.body(of: stored)
      var body = Data()
      for piece in pieces {
        let (source, range) =
          switch piece {
          case .stored(let range): (old, range)
          case .new(let range): (part.body, range)
          }
        // A record that is not what its head says is no ground to build on.
        guard range.lowerBound >= 0, range.upperBound <= source.count else { return part }
        body.append(source[(source.startIndex + range.lowerBound)..<(source.startIndex + range.upperBound)])
      }
      guard body.count <= maximumBodyByteCount else {
        counters.refuse(.bodyTooLarge)
        return nil
      }
      var whole = part
      whole.status = status
      whole.fields = fields
      whole.facts = facts
      whole.body = body
      return whole
    }
  }
}

import FoundationEssentials
import HTTPCaching

extension CachingClient {
  /// What a 304 to a conditional request leads to.
  enum Confirmation {
    case done
    /// It confirms something that is not here.
    case askAgain
  }

  /// Updates the stored response by a 304 and answers with it (RFC 9111 section 4.3.4).
  func confirm(
    _ entry: Storage.Entry, by arrival: Arrival, _ plan: Plan, in flight: Flight<Storage.Entry>
  ) async -> Confirmation {
    let overrides = plan.request.overrides
    let freshening = Freshening.decide(
      notModified: overrides.judged(arrival.response.head), request: plan.request.head, stored: entry,
      isOnlyEntry: storage.variantCount(of: plan.request) <= 1, requestTime: arrival.requestTime,
      responseTime: arrival.responseTime, options: options)
    switch freshening {
    case .update(let fields, let facts, let rule):
      let view = UpdatedView(base: entry, fields: fields, facts: overrides.applied(to: facts, status: entry.status))
      return await serve(view, rule, plan, in: flight) {
        guard !flight.ticket.isVoid else { return }
        storage.update(entry, fields: kept(view.fields), facts: view.facts, for: plan.request)
        await undoIfOvertaken(plan, flight)
      }
    case .updateAndRemove(let fields, let facts, let rule):
      // What may not be stored is not for those who wait either.
      let view = UpdatedView(base: entry, fields: fields, facts: facts)
      return await serve(view, rule, plan, in: flight, isForOthers: false) {
        await storage.remove(entry, for: plan.request)
      }
    case .reuseUnchanged(let rule):
      return await serve(UpdatedView(base: entry, fields: entry.fields, facts: entry.facts), rule, plan, in: flight) {}
    case .markStale(let facts, _):
      if !flight.ticket.isVoid {
        storage.update(entry, fields: entry.fields, facts: facts, for: plan.request)
        await undoIfOvertaken(plan, flight)
      }
      return .askAgain
    case .unrelated: return .askAgain
    }
  }

  /// Answers with a confirmed response. The store is brought up to date before anybody is let go.
  private func serve(
    _ view: UpdatedView<Storage.Entry>, _ rule: Rule, _ plan: Plan, in flight: Flight<Storage.Entry>,
    isForOthers: Bool = true, updatingStore: () async -> Void
  ) async -> Confirmation {
    guard let answer = confirmedAnswer(plan, from: view, rule) else { return .askAgain }
    counters.revalidations.count()
    await updatingStore()
    let shared = isForOthers ? share(view, plan) : nil
    let isShareable = shared.map { decideSharing($0, plan.request, asked: $0.facts.responseTime) != nil } ?? false
    noteSharing(isShareable, plan, status: answer.status)
    flights.leave(flight)
    flight.deliver(.success(answer))
    let isOpen = flight.sharingKey != nil && !flight.ticket.isVoid
    flight.resolve(isOpen ? shared.map { .shared($0) } ?? .alone : .alone)
    return .done
  }

  private func share(_ view: UpdatedView<Storage.Entry>, _ plan: Plan) -> SharedResponse {
    // The entry suited the request that asked, so that request's own fields are the selection.
    let vary = VarySelection(
      request: plan.request.head, response: view.fields, credentialDigest: storage.credentialDigest)
    return SharedResponse(
      status: view.status, fields: kept(view.fields), facts: view.facts, body: storage.body(of: view.base), vary: vary)
  }

  /// Updates the stored response to GET by the answer to a HEAD, or marks it stale (RFC 9111 section 4.3.5).
  func freshen(by head: ResponseHead, _ arrival: Arrival, _ plan: Plan, in flight: Flight<Storage.Entry>) async {
    guard let entry = plan.entry, !flight.ticket.isVoid else { return }
    let freshening = Freshening.decide(
      head: head, request: plan.request.head, stored: entry, requestTime: arrival.requestTime,
      responseTime: arrival.responseTime, options: options)
    switch freshening {
    case .update(let fields, let facts, _):
      let facts = plan.request.overrides.applied(to: facts, status: entry.status)
      storage.update(entry, fields: kept(fields), facts: facts, for: plan.request)
      await undoIfOvertaken(plan, flight)
    case .markStale(let facts, _):
      storage.update(entry, fields: entry.fields, facts: facts, for: plan.request)
      await undoIfOvertaken(plan, flight)
    case .updateAndRemove: await storage.remove(entry, for: plan.request)
    case .reuseUnchanged, .unrelated: break
    }
  }

  /// An invalidation between the last look at the ticket and the change of the store would be lost, so it is repeated.
  func undoIfOvertaken(_ plan: Plan, _ flight: Flight<Storage.Entry>) async {
    guard flight.ticket.isVoid else { return }
    var token = storage.removalToken
    await storage.invalidate(
      StorageInvalidation(urls: [plan.request.keyURL]), for: plan.request, movingPast: &token)
  }
}

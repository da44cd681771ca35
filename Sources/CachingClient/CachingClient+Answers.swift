import FoundationEssentials
import HTTPCaching

extension CachingClient {
  /// The answer a decision makes of an entry; `nil` if the origin must be asked. Its fields are built when someone reads them.
  func answer(
    to request: ClientRequest, by decision: ReuseDecision, from entry: Storage.Entry, now: Date
  ) -> Response? {
    if case .gatewayTimeout(let rule) = decision { return unavailable(rule) }
    let shape = AnswerShape(decision, of: entry, for: request) { storage.body(of: entry) }
    guard let shape else { return nil }
    let isStale =
      switch decision {
      case .serve: false
      case .serveStale: true
      default: !entry.facts.isFresh(at: now)
      }
    return Response(
      status: shape.status, body: shape.body, source: isStale ? .staleStore : .store, age: shape.age,
      reason: shape.rule, entry: entry, content: .entry(shape.kind), cacheStatus: hitStatus(entry.facts, now))
  }

  /// The answer after the origin confirmed an entry, with the fields and facts that its 304 brought.
  func confirmedAnswer(_ plan: Plan, from view: UpdatedView<Storage.Entry>, _ rule: Rule) -> Response? {
    let request = plan.request
    let decision = Reuse.answer(request: request.head, stored: view, now: clock(), rule: rule)
    let shape = AnswerShape(decision, of: view, for: request) { storage.body(of: view.base) }
    guard let shape else { return nil }
    return Response(
      status: shape.status, body: shape.body, source: .revalidated, age: shape.age, reason: shape.rule,
      entry: view.base, content: .given(shape.kind.fields(of: view, age: shape.age)),
      cacheStatus: forwardStatus(plan.forward, status: 304, isStored: true))
  }

  /// The stored response in place of an answer that did not come, if that is permitted, and nothing has removed it
  /// since the origin was asked.
  func staleAnswer(
    _ plan: Plan, after failure: StaleOnError.Failure, of flight: Flight<Storage.Entry>
  ) -> Response? {
    let now = clock()
    guard let entry = plan.entry, let permission = plan.staleOnError, permission.mayServe(after: failure, now: now),
      !flight.ticket.isVoid
    else { return nil }
    let decision = Reuse.answer(request: plan.request.head, stored: entry, now: now, rule: permission.rule)
    let shape = AnswerShape(decision, of: entry, for: plan.request) { storage.body(of: entry) }
    guard let shape else { return nil }
    counters.staleServed.count()
    let status: Int? = if case .status(let status) = failure { status } else { nil }
    return Response(
      status: shape.status, body: shape.body, source: .staleOnError, age: shape.age, reason: shape.rule, entry: entry,
      content: .entry(shape.kind), cacheStatus: forwardStatus(plan.forward, status: status, isStored: false))
  }

  /// Whether, and how, a request may be answered with the response to an identical one.
  ///
  /// It is decided for the moment at which the head had come and the request was there: a body that takes longer than the
  /// response stays fresh is no reason to ask for it once more.
  ///
  /// - Parameter asked: when the request began to wait.
  func decideSharing(_ shared: SharedResponse, _ request: ClientRequest, asked: Date) -> ReuseDecision? {
    guard shared.vary.matches(request.head, credentialDigest: storage.credentialDigest) else { return nil }
    let decision = decide(request, shared, now: max(asked, shared.facts.responseTime))
    return decision.isAnswer ? decision : nil
  }

  /// The answer to a request that waited for another's fetch; `nil` if its own fields do not permit it.
  func sharedAnswer(_ plan: Plan, from shared: SharedResponse, asked: Date) -> Response? {
    let request = plan.request
    guard let decision = decideSharing(shared, request, asked: asked),
      let shape = AnswerShape(decision, of: shared, for: request, body: { shared.body })
    else { return nil }
    let age = shared.facts.wholeAge(at: clock())
    return Response(
      status: shape.status, body: shape.body, source: .coalesced, age: age, reason: .collapsed, entry: nil,
      content: .given(shape.kind.fields(of: shared, age: age)),
      cacheStatus: forwardStatus(plan.forward, isStored: true, isCollapsed: true))
  }

  /// The answer from the network as it came.
  func networkAnswer(
    _ incoming: IncomingResponse, body: ResponseBody, _ rule: Rule, _ forward: CacheStatus.Forward,
    isStored: Bool = false, refused refusal: Rule? = nil, age: Int = 0
  ) -> Response {
    Response(
      status: incoming.head.status, body: body, source: .network, age: age, reason: rule, entry: nil,
      content: refusal.map { .refused(incoming.head.fields, $0) } ?? .given(incoming.head.fields),
      cacheStatus: forwardStatus(forward, isStored: isStored))
  }

  /// The 504 for a request that forbids the network. It carries no Cache-Status, being based on nothing stored
  /// (RFC 9211 section 2).
  func unavailable(_ rule: Rule) -> Response {
    Response(
      status: 504, body: .empty, source: .unavailable, age: 0, reason: rule, entry: nil,
      content: .given(["Content-Length": "0"]), cacheStatus: nil)
  }

  /// Counts an answer that needed nobody.
  func countHit(_ answer: Response) {
    guard answer.source != .unavailable else { return }
    counters.hits.count()
    if answer.source == .staleStore { counters.staleServed.count() }
  }

  // MARK: Cache-Status

  private func hitStatus(_ facts: FreshnessFacts, _ now: Date) -> CacheStatus? {
    guard let name = options.cacheStatusName else { return nil }
    // Facts read back from a damaged record may hold anything; no number then.
    return CacheStatus(name: name, timeToLive: Int(exactly: facts.remaining(at: now).rounded(.down)))
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

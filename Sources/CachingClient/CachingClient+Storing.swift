import FoundationEssentials
import HTTPCaching

extension CachingClient {
  /// What is to be stored of a response whose body may still be on its way, or why nothing is.
  enum Judgement {
    case store(StorageProposal)
    case refuse(Rule)
  }

  /// Judges a response whose head is as the overrides want it seen.
  func judge(
    _ head: ResponseHead, _ arrival: Arrival, _ request: ClientRequest, sentAs sent: RequestHead
  ) -> Judgement {
    let storability = Storability.decide(
      request: sent, response: head, requestTime: arrival.requestTime, responseTime: arrival.responseTime,
      options: options)
    switch storability {
    case .refuse(let rule): return .refuse(rule)
    case .store(let fields, let facts):
      return .store(
        StorageProposal(
          status: head.status, fields: kept(fields), body: Data(),
          facts: request.overrides.applied(to: facts, status: head.status),
          vary: VarySelection(
            request: request.head, response: head.fields, credentialDigest: storage.credentialDigest)))
    }
  }

  /// Hands a storable response to its caller while gathering its body, and files it when it is complete.
  func collect(
    _ incoming: IncomingResponse, as proposal: StorageProposal, _ plan: Plan, in flight: Flight<Storage.Entry>
  ) async {
    let announced = incoming.announcedByteCount(for: plan.request)
    if let refusal = announced.refusal(limit: maximumBodyByteCount) {
      counters.refuse(refusal)
      // A broken transfer ends nothing: what is stored may still stand in on error.
      if refusal == .bodyTooLarge { await dropOutdated(plan, status: proposal.status) }
      return passThrough(incoming, plan, refused: refusal, in: flight)
    }
    // Whoever the head does not suit need not wait for the body.
    if proposal.facts.flags.contains(.incomplete) {
      flights.close(flight)
      flight.resolve(.alone)
    } else {
      flight.narrow(to: proposal.vary, digest: storage.credentialDigest)
    }
    let age = proposal.facts.wholeAge(at: clock())

    if let bytes = incoming.body.bytes {
      guard bytes.count <= maximumBodyByteCount, announced.allows(bytes.count) else {
        let refusal: Rule = bytes.count > maximumBodyByteCount ? .bodyTooLarge : .incompleteBody
        counters.refuse(refusal)
        if refusal == .bodyTooLarge { await dropOutdated(plan, status: proposal.status) }
        return passThrough(incoming, plan, refused: refusal, in: flight)
      }
      let shared = await file(proposal, body: bytes, plan, in: flight)
      flights.leave(flight)
      flight.deliver(
        .success(
          networkAnswer(incoming, body: incoming.body, plan.rule, plan.forward, isStored: shared != nil, age: age)))
      return flight.resolve(shared.map { .shared($0) } ?? .alone)
    }

    // Weak: the pipe belongs to the reader, who may keep it longer than the fetch lasts.
    let pipe = BodyPipe(whenAbandoned: { [weak flight] in flight?.leaderLeft() })
    flight.deliver(
      .success(networkAnswer(incoming, body: pipe.makeBody(), plan.rule, plan.forward, isStored: true, age: age)))
    await pump(incoming.body, into: pipe, announced, proposal, plan, in: flight)
  }

  /// Moves the chunks from the transport to the caller, gathering them up to the limit.
  private func pump(
    _ body: ResponseBody, into pipe: BodyPipe, _ announced: AnnouncedLength, _ proposal: StorageProposal, _ plan: Plan,
    in flight: Flight<Storage.Entry>
  ) async {
    var collector = BodyCollector(limit: maximumBodyByteCount)
    var isCollecting = true
    var received = 0
    do {
      for try await chunk in body {
        received += chunk.count
        if isCollecting, !collector.append(chunk) {
          isCollecting = false
          counters.refuse(.bodyTooLarge)
          await dropOutdated(plan, status: proposal.status)
          flights.leave(flight)
          flight.resolve(.alone)
        }
        let isRead = await pipe.send(chunk, waitingForRoom: !isCollecting)
        if !isRead, !isCollecting { return }
      }
      // Some sequences just end when their task is cancelled; that is no end of the body.
      try Task.checkCancellation()
      try announced.check(received)
    } catch {
      if isCollecting { counters.refuse(.incompleteBody) }
      flights.leave(flight)
      pipe.finish(throwing: error)
      return flight.resolve(.failed(.unreachable))
    }
    guard isCollecting else { return pipe.finish() }
    guard announced.allows(received) else {
      counters.refuse(.incompleteBody)
      flights.leave(flight)
      flight.resolve(.alone)
      return pipe.finish()
    }
    // The caller's body ends after the store has it, so that his next request finds it.
    let shared = await file(proposal, body: collector.joined(), plan, in: flight)
    flights.leave(flight)
    flight.resolve(shared.map { .shared($0) } ?? .alone)
    pipe.finish()
  }

  /// Files a response whose body has come. A part is put together with what is stored, looked up again because another fetch may
  /// have brought more meanwhile.
  private func file(
    _ proposal: StorageProposal, body: Data, _ plan: Plan, in flight: Flight<Storage.Entry>
  ) async -> SharedResponse? {
    var proposal = proposal
    proposal.body = body
    if proposal.facts.flags.contains(.incomplete), let stored = storage.lookup(plan.request) {
      guard let combined = combine(proposal, with: stored) else { return nil }
      proposal = combined
    }
    return await file(proposal, plan, in: flight)
  }

  /// The fields to keep. A cookie is set for whoever asked: his answer carries it, what a shared cache keeps for others does not
  /// (RFC 9111 section 7.3).
  func kept(_ fields: HTTPFields) -> HTTPFields {
    guard options.mode == .shared else { return fields }
    var fields = fields
    fields.remove("Set-Cookie")
    fields.remove("Set-Cookie2")
    return fields
  }

  /// Stores a complete response, unless its caller does not want it or an invalidation overtook it. What is returned may be
  /// given to those who waited.
  func file(_ proposal: StorageProposal, _ plan: Plan, in flight: Flight<Storage.Entry>) async -> SharedResponse? {
    var proposal = proposal
    if let willStore = plan.request.willStore {
      guard let changed = await willStore(proposal) else {
        counters.refuse(.refusedByCaller)
        return nil
      }
      proposal = changed
    }
    proposal.ticket = flight.ticket
    guard !flight.ticket.isVoid else {
      counters.refuse(.overtaken)
      return nil
    }
    storage.store(proposal, for: plan.request)
    guard !flight.ticket.isVoid else {
      await undoIfOvertaken(plan, flight)
      counters.refuse(.overtaken)
      return nil
    }
    counters.stored.count()
    return SharedResponse(proposal)
  }
}

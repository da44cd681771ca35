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
    // One subscriber's events are not for another, and the stream has no end that storing could wait for.
    if let type = head.fields["Content-Type"]?.lowercased(), type.hasPrefix("text/event-stream") {
      return .refuse(.eventStream)
    }
    let storability = Storability.decide(
      request: sent, response: head, requestTime: arrival.requestTime, responseTime: arrival.responseTime,
      options: options)
    switch storability {
    case .refuse(let rule): return .refuse(rule)
    case .store where arrival.response.endsWithConnection: return .refuse(.unprovenEnd)
    case .store(let fields, let facts):
      var facts = request.overrides.applied(to: facts, status: head.status)
      if arrival.response.isContentDecoded { facts.flags.insert(.decoded) }
      return .store(
        StorageProposal(
          status: head.status, fields: kept(fields), body: Data(), facts: facts,
          vary: VarySelection(
            request: request.head, response: head.fields, credentialDigest: storage.credentialDigest)))
    }
  }

  /// Hands a storable response to its caller while gathering its body, and files it when it is complete.
  func collect(
    _ incoming: IncomingResponse, as proposal: StorageProposal, _ plan: Plan, in flight: Flight<Storage.Entry>
  ) async {
    let arrival = proposal.facts.responseTime
    let announced = incoming.announcedByteCount(for: plan.request)
    if let refusal = announced.refusal(limit: maximumBodyByteCount) {
      counters.refuse(refusal)
      // A broken transfer ends nothing: what is stored may still stand in on error.
      if refusal == .bodyTooLarge { await dropOutdated(plan, status: proposal.status) }
      return passThrough(incoming, plan, refused: refusal, in: flight)
    }
    if proposal.facts.flags.contains(.incomplete) {
      flights.close(flight)
      flight.resolve(.alone)
    } else {
      let head = SharedResponse(proposal)
      let isShareable = decideSharing(head, plan.request, asked: arrival) != nil
      noteSharing(isShareable, plan, status: proposal.status)
      flight.releaseFollowers(notServedBy: head)
    }
    let age = proposal.facts.wholeAge(at: clock())

    if let bytes = incoming.body.bytes {
      guard bytes.count <= maximumBodyByteCount, announced.allows(bytes.count) else {
        let refusal: Rule = bytes.count > maximumBodyByteCount ? .bodyTooLarge : .incompleteBody
        counters.refuse(refusal)
        if refusal == .bodyTooLarge { await dropOutdated(plan, status: proposal.status) }
        return passThrough(incoming, plan, refused: refusal, in: flight)
      }
      let isStored = await finish(proposal, body: bytes, plan, in: flight)
      return flight.deliver(
        .success(networkAnswer(incoming, body: incoming.body, plan.rule, plan.forward, isStored: isStored, age: age)))
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
        flight.noteProgress()
        if isCollecting, !collector.append(chunk) {
          isCollecting = false
          counters.refuse(.bodyTooLarge)
          noteSharing(false, plan, status: proposal.status)
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
    // The caller's body ends after the store has it, so that the caller's next request finds it.
    _ = await finish(proposal, body: collector.joined(), plan, in: flight)
    pipe.finish()
  }

  /// Ends a fetch whose body has come. A part is put together with what is stored, looked up again because another fetch may
  /// have brought more meanwhile.
  ///
  /// - Returns: whether the response is stored, or will be unless its caller's hook has something against it.
  private func finish(
    _ proposal: StorageProposal, body: Data, _ plan: Plan, in flight: Flight<Storage.Entry>
  ) async -> Bool {
    var proposal = proposal
    proposal.body = body
    if proposal.facts.flags.contains(.incomplete), let stored = storage.lookup(plan.request) {
      guard let combined = combine(proposal, with: stored) else {
        flights.leave(flight)
        flight.resolve(.alone)
        return false
      }
      proposal = combined
    }
    return await finish(proposal, plan, in: flight)
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

  /// Ends a fetch whose response is complete: stores it and gives it to those who waited. Only storing waits for the caller's
  /// hook, if there is one.
  ///
  /// - Returns: whether the response is stored, or will be unless the hook has something against it.
  func finish(_ proposal: StorageProposal, _ plan: Plan, in flight: Flight<Storage.Entry>) async -> Bool {
    guard let willStore = plan.request.willStore else {
      let outcome = keep(proposal, plan, in: flight)
      if case .overtaken(whileStoring: true) = outcome { await undoIfOvertaken(plan, flight) }
      flights.leave(flight)
      guard case .stored = outcome else {
        flight.resolve(.alone)
        return false
      }
      flight.resolve(.shared(SharedResponse(proposal)))
      return true
    }
    flights.detach(flight)
    flight.resolve(flight.ticket.isVoid ? .alone : .shared(SharedResponse(proposal)))
    let wait = DecisionWait()
    ask(willStore, about: proposal, PendingStore(self, plan, flight, wait))
    // The followers have the response by now. The caller's body ends a moment later where the hook takes its time.
    await wait.wait(atMost: .milliseconds(200))
    return true
  }

  /// Not within the function that waits, as that would keep a hook's answer alive which the hook has dropped.
  private func ask(
    _ willStore: ClientRequest.StorageHook, about proposal: StorageProposal, _ pending: PendingStore<Storage>
  ) {
    willStore(proposal) { pending.decide($0) }
  }

  /// What became of a response that was to be stored.
  enum StoreOutcome {
    case stored
    /// An invalidation overtook it. If it came while the response was stored, ``undoIfOvertaken(_:_:)`` is to be called.
    case overtaken(whileStoring: Bool)
  }

  /// Stores a complete response, unless an invalidation overtook it.
  func keep(_ proposal: StorageProposal, _ plan: Plan, in flight: Flight<Storage.Entry>) -> StoreOutcome {
    var proposal = proposal
    proposal.ticket = flight.ticket
    guard !flight.ticket.isVoid else {
      counters.refuse(.overtaken)
      return .overtaken(whileStoring: false)
    }
    storage.store(proposal, for: plan.request)
    guard !flight.ticket.isVoid else {
      counters.refuse(.overtaken)
      return .overtaken(whileStoring: true)
    }
    counters.stored.count()
    return .stored
  }
}

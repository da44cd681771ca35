import FoundationEssentials
import HTTPCaching

extension CachingClient {
  typealias Plan = FetchPlan<Storage.Entry>

  /// A response with the times its age is reckoned from (RFC 9111 section 4.2.3).
  struct Arrival: Sendable {
    let response: IncomingResponse
    let requestTime: Date
    let responseTime: Date
  }

  /// What came of waiting for another request's fetch.
  enum Followed {
    case answer(Response)
    case goOnAlone
    case leaderFailed
    case lookAgain
  }

  /// Fetches for the caller, and for whoever joins.
  ///
  /// - Parameter deadline: When a caller that has waited for another's fetch before no longer waits for the head; nil if
  ///   only the transport's limits count.
  func lead(
    _ flight: Flight<Storage.Entry>, _ plan: Plan, over transport: some Transport,
    until deadline: ContinuousClock.Instant? = nil
  ) async throws -> Response {
    if plan.conditional.isEmpty { counters.misses.count() }
    flight.start { await self.carryOut(plan, in: flight, over: transport) }
    let watch = deadline.map { flight.watchLeader(until: $0) }
    defer { watch?.cancel() }
    do {
      return try await flight.answer()
    } catch CachingClientError.timedOut {
      guard let answer = staleAnswer(plan, after: .unreachable, of: flight) else { throw CachingClientError.timedOut }
      return answer
    }
  }

  /// Waits for another request's fetch.
  ///
  /// - Parameter deadline: How long it waits while nothing comes; moved on when something has come.
  func follow(
    _ flight: Flight<Storage.Entry>, _ plan: Plan, until deadline: inout ContinuousClock.Instant?
  ) async throws -> Followed {
    var isCounted = false
    defer { if isCounted { counters.waiting.wrappingSubtract(1, ordering: .relaxed) } }
    let asked = clock()
    let number = flights.makeNumber()
    let seen = flight.progressCount
    let limit = plan.request.timeLimit
    let watch = limit.map { flight.watch(number, until: deadline ?? .now + $0, limit: $0) }
    defer {
      watch?.cancel()
      if let limit, flight.progressCount != seen { deadline = .now + limit }
    }
    let outcome: Flight<Storage.Entry>.Outcome
    do {
      outcome = try await flight.outcome(
        number: number, canUse: { self.decideSharing($0, plan.request, asked: asked) != nil }
      ) {
        // Only now: from here on the fetch is kept up for this request, even if its leader goes.
        counters.waiting.count()
        isCounted = true
      }
    } catch let error as CachingClientError {
      // As if the request's own fetch had timed out.
      guard let answer = staleAnswer(plan, after: .unreachable, of: flight) else { throw error }
      return .answer(answer)
    }
    switch outcome {
    case .shared(let shared):
      guard let answer = sharedAnswer(plan, from: shared, asked: asked) else { return .goOnAlone }
      counters.coalesced.count()
      return .answer(answer)
    case .alone: return .goOnAlone
    case .failed(let failure):
      guard let answer = staleAnswer(plan, after: failure, of: flight) else { return .leaderFailed }
      return .answer(answer)
    case .gone: return .lookAgain
    }
  }

  /// Checks a stale entry that has just been served, unless a fetch of it is under way already (RFC 5861 section 3).
  func revalidateInBackground(_ request: ClientRequest, _ entry: Storage.Entry, over transport: some Transport) {
    let request = request.forWholeResource
    guard let key = request.key, let flight = flights.enterInBackground(SharingKey(key, of: request.head)) else {
      return
    }
    let plan = Plan(
      request: request, key: key, entry: entry, conditional: Reuse.validation(of: entry),
      rule: .staleWhileRevalidate, forward: .stale)
    flight.start { await self.carryOut(plan, in: flight, over: transport) }
  }

  /// The whole life of a fetch. It ends with its result filed and everybody let go.
  func carryOut(_ plan: Plan, in flight: Flight<Storage.Entry>, over transport: some Transport) async {
    var plan = plan
    do {
      var arrival = try await send(plan, over: transport)
      if arrival.response.usedUnseenCredentials {
        // A confirmation, or the rest of a part, must not be joined to what is stored for others.
        if !plan.conditional.isEmpty, [206, 304, 412, 416].contains(arrival.response.head.status) {
          plan = plan.unconditional
          arrival = try await send(plan, over: transport)
        }
      } else if plan.isCompletion {
        if try await complete(by: arrival, plan, in: flight) { return }
        // Only a 200 is an answer to the request as its caller made it.
        if arrival.response.head.status != 200 {
          plan = plan.unconditional
          arrival = try await send(plan, over: transport)
        }
      } else if arrival.response.head.status == 304, let entry = plan.entry, !plan.conditional.isEmpty {
        switch await confirm(entry, by: arrival, plan, in: flight) {
        case .done: return
        case .askAgain:
          plan = plan.unconditional
          arrival = try await send(plan, over: transport)
        }
      }
      await receive(arrival, plan, in: flight)
    } catch {
      fail(error, plan, in: flight)
    }
  }

  private func send(_ plan: Plan, over transport: some Transport) async throws -> Arrival {
    let requestTime = clock()
    let response = try await transport.send(plan.outgoing)
    return Arrival(response: response, requestTime: requestTime, responseTime: clock())
  }

  /// Goes on once a final head other than a confirmation has come.
  private func receive(_ arrival: Arrival, _ plan: Plan, in flight: Flight<Storage.Entry>) async {
    let incoming = arrival.response
    let status = incoming.head.status
    if incoming.usedUnseenCredentials {
      counters.refuse(.unseenCredentials)
      return passThrough(incoming, plan, refused: .unseenCredentials, in: flight)
    }
    if let answer = staleAnswer(plan, after: .status(status), of: flight) {
      flights.leave(flight)
      flight.deliver(.success(answer))
      flight.resolve(.failed(.status(status)))
      return
    }
    let judged = plan.request.overrides.judged(incoming.head)
    if plan.request.head.method == "HEAD" {
      await freshen(by: judged, arrival, plan, in: flight)
      return passThrough(incoming, plan, refused: .headOnlyUpdates, in: flight)
    }
    switch judge(judged, arrival, plan.request, sentAs: plan.outgoing.head) {
    case .refuse(let rule):
      counters.refuse(rule)
      // A request's own no-store says nothing of what is stored.
      if rule != .requestNoStore { await dropOutdated(plan, status: status) }
      passThrough(incoming, plan, refused: rule, in: flight)
    case .store(let proposal): await collect(incoming, as: proposal, plan, in: flight)
    }
  }

  /// Hands a response on that is not kept. Whoever waits for it goes on alone.
  func passThrough(
    _ incoming: IncomingResponse, _ plan: Plan, refused refusal: Rule, in flight: Flight<Storage.Entry>
  ) {
    noteSharing(false, plan, status: incoming.head.status)
    flights.leave(flight)
    let body = incoming.checkedBody(for: plan.request)
    flight.deliver(.success(networkAnswer(incoming, body: body, plan.rule, plan.forward, refused: refusal)))
    flight.resolve(.alone)
  }

  /// Remembers whether what a key is answered with can be shared. An error of the server says nothing of that, and a moment of
  /// them is not the one to give up sharing.
  func noteSharing(_ isShareable: Bool, _ plan: Plan, status: Int) {
    guard plan.request.isShareable, isShareable || status < 500 && status != 429 else { return }
    flights.note(plan.key, isShareable: isShareable, now: clock())
  }

  /// No response came, or it broke off before anything of it was handed on.
  func fail(_ error: any Error, _ plan: Plan, in flight: Flight<Storage.Entry>) {
    // A fetch that was called off says nothing about the origin.
    let isCancelled = error is CancellationError || Task.isCancelled
    let stale = isCancelled ? nil : staleAnswer(plan, after: .unreachable, of: flight)
    flights.leave(flight)
    if let stale { flight.deliver(.success(stale)) } else { flight.deliver(.failure(error)) }
    flight.resolve(.failed(.unreachable))
  }

  /// A successful answer that cannot be stored supersedes what is stored all the same: the old response must not come back.
  func dropOutdated(_ plan: Plan, status: Int) async {
    guard let entry = plan.entry else { return }
    // A 206 says nothing of the rest, other errors nothing of the resource.
    let supersedes = (200..<400).contains(status) && status != 206 && status != 304 || status == 404 || status == 410
    guard supersedes else { return }
    await storage.remove(entry, for: plan.request)
  }
}

import FoundationEssentials
import HTTPCaching
import ResponseStore

/// What is to be asked of the origin for one request, and what may be done with the answer.
struct FetchPlan<Entry: StoredResponseView & Sendable>: Sendable {
  let request: ClientRequest
  let key: RequestKey
  /// The stored response that was looked at; `nil` if there was none.
  let entry: Entry?
  /// The fields that ask the origin to confirm `entry`, or to complete it; empty for a plain fetch.
  var conditional = HTTPFields()
  /// Whether the rest of a stored part is asked for.
  var isCompletion = false
  var staleOnError: StaleOnError?
  let rule: Rule
  let forward: CacheStatus.Forward
  /// Lives until the response is stored or dropped.
  var owner: (any AnyObject & Sendable)?

  /// The request as it is sent.
  var outgoing: OutgoingRequest { request.outgoing(conditional: conditional) }

  /// The same request as its caller made it, for an origin that confirmed something else.
  var unconditional: FetchPlan {
    var plan = self
    plan.conditional = HTTPFields()
    plan.isCompletion = false
    return plan
  }
}

/// What a look into the store says about a request.
enum Look<Entry: StoredResponseView & Sendable> {
  /// This is the answer; the entry, if given, is to be checked in the background.
  case answer(ClientResponse<Entry>, revalidating: Entry?)
  case fetch(FetchPlan<Entry>)
  /// Ask the origin and leave the store out of it.
  case bypass(Rule)
}

extension ReuseDecision {
  /// Whether the stored response answers the request, without the origin.
  var isAnswer: Bool {
    switch self {
    case .serve, .serveStale, .notModified, .partial, .unsatisfiableRange: true
    case .revalidate, .fetch, .complete, .gatewayTimeout: false
    }
  }

  var revalidatesInBackground: Bool {
    switch self {
    case .serveStale(_, let inBackground, _), .notModified(_, let inBackground, _), .partial(_, _, let inBackground, _):
      inBackground
    default: false
    }
  }
}

extension CachingClient {
  func decide(_ request: ClientRequest, _ stored: some StoredResponseView, now: Date) -> ReuseDecision {
    Reuse.decide(request: request.head, stored: stored, policy: request.policy, now: now, options: options)
  }

  func decideMiss(_ request: ClientRequest) -> MissDecision {
    Reuse.decideMiss(request: request.head, policy: request.policy, options: options)
  }

  /// Looks into the store and decides. Counts what it answers.
  func look(for request: ClientRequest) -> Look<Storage.Entry> {
    guard let entry = storage.lookup(request) else { return lookAfterMiss(request) }
    let now = clock()
    let decision = decide(request, entry, now: now)
    if let answer = answer(to: request, by: decision, from: entry, now: now) {
      countHit(answer)
      return .answer(answer, revalidating: decision.revalidatesInBackground ? entry : nil)
    }
    guard let key = request.key else { return .bypass(.notHTTP) }
    switch decision {
    case .revalidate(let conditional, let staleOnError, let rule):
      return .fetch(
        FetchPlan(
          request: request, key: key, entry: entry, conditional: conditional, staleOnError: staleOnError,
          rule: rule, forward: entry.facts.isFresh(at: now) ? .request : .stale))
    case .fetch(let staleOnError, let rule):
      let forward: CacheStatus.Forward =
        entry.facts.flags.contains(.incomplete) ? .partial : entry.facts.isFresh(at: now) ? .request : .stale
      return .fetch(
        FetchPlan(
          request: request, key: key, entry: entry, staleOnError: staleOnError, rule: rule, forward: forward))
    case .complete(let fields, let rule):
      return .fetch(
        FetchPlan(
          request: request, key: key, entry: entry, conditional: fields, isCompletion: true, rule: rule,
          forward: .partial))
    default: return lookAfterMiss(request)
    }
  }

  private func lookAfterMiss(_ request: ClientRequest) -> Look<Storage.Entry> {
    switch decideMiss(request) {
    case .gatewayTimeout(let rule): return .answer(unavailable(rule), revalidating: nil)
    case .bypass(let rule): return .bypass(rule)
    case .fetch(let rule):
      guard let key = request.key else { return .bypass(.notHTTP) }
      // Only Cache-Status tells the two kinds of miss apart; nobody else pays for the question.
      let isVaryMiss = options.cacheStatusName != nil && storage.variantCount(of: request) > 0
      return .fetch(
        FetchPlan(
          request: request, key: key, entry: nil, rule: rule, forward: isVaryMiss ? .varyMiss : .uriMiss))
    }
  }
}

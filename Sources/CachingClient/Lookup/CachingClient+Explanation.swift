import FoundationEssentials
import HTTPCaching

/// The decision for a request at one time, with the checks that led to it.
package struct RequestExplanation: Sendable {
  /// The effect of a request.
  package enum Outcome: Sendable {
    /// A response from the store, without waiting for the origin.
    case stored(status: Int, isStale: Bool, revalidatesInBackground: Bool)
    /// The cache generates a 504, because the request forbids the network.
    case unavailable
    /// The origin validates the stored response: the request is sent with these fields.
    case validate(HeaderFields, staleOnError: StaleOnError?)
    /// The origin sends the missing part of an incomplete response: the request is sent with these fields.
    case complete(HeaderFields)
    /// The origin sends a response, which is stored if that is permitted.
    case fetch(staleOnError: StaleOnError?)
    /// The request bypasses the cache.
    case bypass
  }

  package let outcome: Outcome
  package let rule: Rule
  /// The checks in their order.
  package let checks: [DecisionCheck]
}

extension CachingClient {
  /// Decides like ``evaluate(_:)``, and returns the decision with its checks instead of acting on it.
  ///
  /// - Parameter entry: The stored response that a lookup found; nil if there was none.
  package func explain(_ request: CachingClientRequest, _ entry: Storage.Entry?) -> RequestExplanation {
    let trace = DecisionTrace()
    let result: LookupResult<Storage.Entry>
    if !request.isAnswerableFromStore {
      let miss = Reuse.decideMiss(request: request.head, policy: request.policy, options: options, trace: trace)
      result = resultWithoutLookup(request)
      if case .gatewayTimeout = miss {} else { trace.record(request.reasonToForward) }
    } else if let entry {
      let now = clock()
      let decision = Reuse.decide(
        request: request.head, stored: entry, policy: request.policy, now: now, options: options, trace: trace)
      result = self.result(of: decision, from: entry, request, lookupStart, now: now)
    } else {
      _ = Reuse.decideMiss(request: request.head, policy: request.policy, options: options, trace: trace)
      result = resultOfMiss(request, lookupStart)
    }
    let (outcome, rule) = outcome(of: result)
    return RequestExplanation(outcome: outcome, rule: rule, checks: trace.checks)
  }

  private func outcome(of result: LookupResult<Storage.Entry>) -> (RequestExplanation.Outcome, Rule) {
    switch result {
    case .bypass(let rule): return (.bypass, rule)
    case .response(let response, _) where response.source == .unavailable: return (.unavailable, response.reason)
    case .response(let response, let revalidated):
      let outcome = RequestExplanation.Outcome.stored(
        status: response.status, isStale: response.source == .stale, revalidatesInBackground: revalidated != nil)
      return (outcome, response.reason)
    case .fetch(let plan) where plan.isCompletion: return (.complete(plan.conditional), plan.rule)
    case .fetch(let plan):
      let outcome: RequestExplanation.Outcome =
        plan.conditional.isEmpty
        ? .fetch(staleOnError: plan.staleOnError)
        : .validate(plan.conditional, staleOnError: plan.staleOnError)
      return (outcome, plan.rule)
    }
  }
}

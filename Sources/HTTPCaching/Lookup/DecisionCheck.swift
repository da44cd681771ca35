#if canImport(FoundationEssentials)
  import FoundationEssentials
#else
  import Foundation
#endif

/// A check of a decision: a rule, whether it applied, and the values that it compared.
///
/// A decision is a sequence of checks. The last one that applies names the rule of the decision.
package struct DecisionCheck: Sendable, Hashable {
  /// A value that a check used.
  package struct Figure: Sendable, Hashable {
    /// The kinds of values.
    package enum Value: Sendable, Hashable {
      /// A time or duration in seconds.
      case seconds(Double)
      /// The value of a field, or a name.
      case text(String)
    }

    /// The name of the value, such as `lifetime`.
    package let name: String
    package let value: Value

    static func seconds(_ name: String, _ seconds: Double) -> Figure { Figure(name: name, value: .seconds(seconds)) }

    static func text(_ name: String, _ text: String) -> Figure { Figure(name: name, value: .text(text)) }
  }

  package let rule: Rule
  /// Whether the rule applied.
  package let applies: Bool
  /// The values that the check used; empty if it only tests for a directive or a method.
  package let figures: [Figure]
}

extension [DecisionCheck.Figure] {
  /// Returns a figure for each named number of seconds that is not nil.
  static func given(_ values: (String, Double?)...) -> Self {
    values.compactMap { name, value in value.map { .seconds(name, $0) } }
  }
}

/// Records the checks of a decision that is explained. Other decisions are made without a trace.
package final class DecisionTrace {
  /// The checks in their order.
  package private(set) var checks: [DecisionCheck] = []

  package init() {}

  /// Records a check: by default, a rule that applies without comparing values.
  package func record(_ rule: Rule, _ applies: Bool = true, _ figures: [DecisionCheck.Figure] = []) {
    checks.append(DecisionCheck(rule: rule, applies: applies, figures: figures))
  }
}

extension DecisionTrace? {
  /// Returns `applies`, and records the check if the decision is explained.
  @inline(__always)
  func check(
    _ rule: @autoclosure () -> Rule, _ applies: Bool, _ figures: @autoclosure () -> [DecisionCheck.Figure] = []
  ) -> Bool {
    if let trace = self { trace.record(rule(), applies, figures()) }
    return applies
  }

  /// Records the rule that decides because no check before it applied.
  @inline(__always)
  func conclude(_ rule: @autoclosure () -> Rule, _ figures: @autoclosure () -> [DecisionCheck.Figure] = []) {
    if let trace = self { trace.record(rule(), true, figures()) }
  }
}

extension Reuse {
  /// Makes the decision of ``decide(request:stored:policy:now:options:)``, and records each check.
  package static func decide(
    request: RequestHead, stored: some StoredResponseMetadata, policy: RequestPolicy, now: Date,
    options: CachingOptions, trace: DecisionTrace
  ) -> ReuseDecision {
    let evaluation = ReuseEvaluation(
      request: request, freshness: stored.freshness, status: stored.status, policy: policy, now: now, options: options,
      trace: trace)
    return evaluation.decide(stored)
  }
}

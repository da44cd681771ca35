public import HTTPCaching
import Synchronization

/// Whether a response is stored, and if not, why.
public enum StorageOutcome: Sendable, Hashable {
  /// Not known yet: the body is not complete, or a delegate or hook has not replied.
  case undecided
  /// The response comes from the store, or was accepted by it. What a full disk drops later is counted there.
  case stored
  /// The response is kept in memory only (``HTTPCaching/Rule/memoryOnly``).
  case storedInMemory
  /// The response is not stored, for this reason.
  case notStored(Rule)
}

/// The outcome of storing the response of a fetch, which the leader's and the followers' responses share.
@usableFromInline
package final class StorageReport: Sendable {
  private let state: Mutex<State>

  private struct State {
    var outcome: StorageOutcome
    var freshness: FreshnessInfo?
  }

  package init(_ outcome: StorageOutcome = .undecided) {
    state = Mutex(State(outcome: outcome))
  }

  /// The present outcome. Any thread can read it.
  package var outcome: StorageOutcome { state.withLock { $0.outcome } }

  /// The freshness with which the response is stored; nil if it is not stored.
  package var freshness: FreshnessInfo? { state.withLock { $0.freshness } }

  /// Sets the outcome.
  package func decide(_ outcome: StorageOutcome) {
    state.withLock { $0 = State(outcome: outcome) }
  }

  /// Records that the response is stored, unless the storage keeps it in memory only and has said so.
  func decideStored(_ freshness: FreshnessInfo) {
    state.withLock { state in
      if state.outcome == .undecided { state.outcome = .stored }
      switch state.outcome {
      case .stored, .storedInMemory: state.freshness = freshness
      case .undecided, .notStored: break
      }
    }
  }
}

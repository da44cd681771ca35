import CacheModel
import HTTPCaching
import Synchronization

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

  /// Whether the response is not stored because its permit was revoked.
  var isInvalidated: Bool { outcome == .notStored(.invalidatedInFlight) }

  /// The freshness with which the response is stored; nil if it is not stored.
  package var freshness: FreshnessInfo? { state.withLock { $0.freshness } }

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

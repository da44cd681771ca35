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
  private let state: Mutex<StorageOutcome>

  package init(_ outcome: StorageOutcome = .undecided) {
    state = Mutex(outcome)
  }

  /// The present outcome. Any thread can read it.
  package var outcome: StorageOutcome { state.withLock { $0 } }

  /// Sets the outcome.
  package func decide(_ outcome: StorageOutcome) {
    state.withLock { $0 = outcome }
  }

  /// Sets the outcome if it is undecided.
  func decideIfUndecided(_ outcome: StorageOutcome) {
    state.withLock { if $0 == .undecided { $0 = outcome } }
  }
}

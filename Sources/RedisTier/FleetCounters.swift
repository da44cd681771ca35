import CacheActivity
import Synchronization

/// Counts what a tier does, in the counters of the cache's directory.
final class FleetCounters: Sendable {
  private let activity = Mutex<ActivityReference?>(nil)
  private let lastFailure = Mutex<RedisTierError.Code?>(nil)

  /// Counts for the directory from now on.
  func use(_ directory: ActivityReference) {
    activity.withLock { $0 = directory }
  }

  /// Adds to a counter.
  func count(_ counter: CounterWord, _ number: Int = 1) {
    activity.withLock { $0 }?.add(number, counter)
  }

  /// Returns whether this is the first failure of its kind since the last success, so that it is logged once.
  func noteFailure(_ code: RedisTierError.Code) -> Bool {
    count(.reconnects)
    return lastFailure.withLock { last in
      defer { last = code }
      return last != code
    }
  }

  func noteSuccess() {
    lastFailure.withLock { $0 = nil }
  }
}

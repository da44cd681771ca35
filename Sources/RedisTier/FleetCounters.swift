import ResponseStore
import Synchronization

/// The counters of a tier in this process, and those of the cache's directory.
final class FleetCounters: Sendable {
  let appliedPurges = Atomic<Int>(0)
  /// Includes the first time that a directory joins.
  let lostLogs = Atomic<Int>(0)
  let followerFailures = Atomic<Int>(0)
  let sharedHits = Atomic<Int>(0)
  let sharedMisses = Atomic<Int>(0)
  let sharedStores = Atomic<Int>(0)
  let unusableObjects = Atomic<Int>(0)
  let bypassedLookups = Atomic<Int>(0)
  let fetchWaits = Atomic<Int>(0)
  private let lastFailure = Mutex<RedisTierError.Code?>(nil)
  private let activity = Mutex<ActivityReference?>(nil)

  /// Also counts for the directory from now on.
  func use(_ directory: ActivityReference) {
    activity.withLock { $0 = directory }
  }

  /// Adds to a counter.
  func count(_ counter: CounterWord, _ number: Int = 1) {
    activity.withLock { $0 }?.add(number, counter)
    switch counter {
    case .sharedHits: sharedHits.add(number, ordering: .relaxed)
    case .sharedMisses: sharedMisses.add(number, ordering: .relaxed)
    case .fetchWaits: fetchWaits.add(number, ordering: .relaxed)
    case .failedSharedLookups: bypassedLookups.add(number, ordering: .relaxed)
    case .sharedStores: sharedStores.add(number, ordering: .relaxed)
    case .refusedObjects: unusableObjects.add(number, ordering: .relaxed)
    case .receivedPurges: appliedPurges.add(number, ordering: .relaxed)
    case .reconnects: followerFailures.add(number, ordering: .relaxed)
    case .lostLogs: lostLogs.add(number, ordering: .relaxed)
    default: break
    }
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

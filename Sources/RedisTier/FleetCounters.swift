import Synchronization

/// The counters of a tier in this process.
final class FleetCounters: Sendable {
  let appliedPurges = Atomic<Int>(0)
  let lostLogs = Atomic<Int>(0)
  let followerFailures = Atomic<Int>(0)
  let sharedHits = Atomic<Int>(0)
  let sharedMisses = Atomic<Int>(0)
  let sharedStores = Atomic<Int>(0)
  let unusableObjects = Atomic<Int>(0)
  let bypassedLookups = Atomic<Int>(0)
  let fetchWaits = Atomic<Int>(0)
  private let lastFailure = Mutex<RedisTierError.Code?>(nil)

  func countPurges(_ count: Int) {
    appliedPurges.add(count, ordering: .relaxed)
  }

  /// Returns whether this is the first failure of its kind since the last success, so that it is logged once.
  func noteFailure(_ code: RedisTierError.Code) -> Bool {
    followerFailures.add(1, ordering: .relaxed)
    return lastFailure.withLock { last in
      defer { last = code }
      return last != code
    }
  }

  func noteSuccess() {
    lastFailure.withLock { $0 = nil }
  }

  /// Returns whether a log line is due: not for an empty directory that joins.
  func noteLostLog() -> Bool {
    lostLogs.add(1, ordering: .relaxed)
    return true
  }
}

internal import Glibc

/// The threads that wait for a reader slot. One of them searches, and the others wait for their turn.
final class SlotQueue: @unchecked Sendable {
  // Sendable: `lock` guards the variables.

  /// The maximum wait of a thread, in nanoseconds: a second.
  ///
  /// Reads take microseconds. A long wait means many more threads than processors, or suspended processes with all
  /// slots.
  private static let maximumWait = 1000 * Clock.millisecond
  /// How long no thread waits after an unsuccessful wait, in nanoseconds: ten seconds.
  private static let pause = 10_000 * Clock.millisecond

  private let lock = ConditionLock()
  private var isSearching = false
  /// A time of ``Clock``, before which no thread waits because an earlier wait timed out.
  private var pausedUntil: UInt64 = 0

  /// Repeats `search` until it finds a result; nil if the time runs out.
  func wait<R>(for search: () throws(LMDBError) -> R?) throws(LMDBError) -> R? {
    let deadline = Clock.now + Self.maximumWait
    guard begins(before: deadline) else { return nil }
    defer { end() }
    var pause: UInt32 = 20
    while true {
      if let found = try search() { return found }
      guard Clock.now < deadline else {
        lock.lock()
        pausedUntil = Clock.now + Self.pause
        lock.unlock()
        return nil
      }
      usleep(pause)
      pause = min(2 * pause, 200)
    }
  }

  private func begins(before deadline: UInt64) -> Bool {
    lock.lock()
    defer { lock.unlock() }
    while Clock.now >= pausedUntil {
      if !isSearching {
        isSearching = true
        return true
      }
      guard lock.wait(until: deadline) else { break }
    }
    // A woken thread that does not search wakes the next.
    lock.wakeOne()
    return false
  }

  private func end() {
    lock.lock()
    isSearching = false
    lock.wakeOne()
    lock.unlock()
  }
}

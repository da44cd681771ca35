internal import Glibc

/// The threads that wait for a reader slot: one of them looks for it, the others wait for their turn to look.
///
/// The owner of the pointers destroys them; the queue itself may be copied around.
struct SlotQueue: @unchecked Sendable {
  // Sendable: the pointer is constant, and what it leads to is guarded by `lock`.
  private struct State {
    var isSearching = false
    /// Until then nobody waits, as somebody has waited in vain.
    var pausedUntil: UInt64 = 0
  }

  /// How long a thread waits. Reads take microseconds, so that only many more threads than processors make it wait for long;
  /// or other processes that have all slots and do not go on.
  static let longestWait = 1000 * Clock.millisecond
  /// How long nobody waits after that.
  private static let pause = 10_000 * Clock.millisecond

  private let lock = Lock()
  private let state: UnsafeMutablePointer<State>

  init() {
    state = .allocate(capacity: 1)
    state.initialize(to: State())
  }

  func destroy() {
    state.deallocate()
    lock.destroy()
  }

  /// Calls `search` again and again until it finds something; nil if it does not in time.
  func wait<R>(for search: () throws(LMDBError) -> R?) throws(LMDBError) -> R? {
    let deadline = Clock.now + Self.longestWait
    guard begins(before: deadline) else { return nil }
    defer { end() }
    var pause: UInt32 = 20
    while true {
      if let found = try search() { return found }
      guard Clock.now < deadline else {
        lock.lock()
        state.pointee.pausedUntil = Clock.now + Self.pause
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
    while Clock.now >= state.pointee.pausedUntil {
      if !state.pointee.isSearching {
        state.pointee.isSearching = true
        return true
      }
      guard lock.wait(until: deadline) else { break }
    }
    // Whoever was woken and does not stay wakes the next.
    lock.wakeOne()
    return false
  }

  private func end() {
    lock.lock()
    state.pointee.isSearching = false
    lock.wakeOne()
    lock.unlock()
  }
}

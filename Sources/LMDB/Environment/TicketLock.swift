/// A fair lock: threads get it in the order of their requests.
final class TicketLock: @unchecked Sendable {
  // Sendable: `inner` guards the numbers.
  private let inner = ConditionLock()
  private var next: UInt64 = 0
  private var served: UInt64 = 0

  func lock() {
    inner.lock()
    let mine = next
    next += 1
    while served != mine { inner.wait() }
    inner.unlock()
  }

  /// Takes the lock if no thread has it or waits for it.
  func tryLock() -> Bool {
    inner.lock()
    defer { inner.unlock() }
    guard next == served else { return false }
    next += 1
    return true
  }

  func unlock() {
    inner.lock()
    served += 1
    inner.wakeAll()
    inner.unlock()
  }
}

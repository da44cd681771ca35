/// A fair lock: threads get it in the order of their requests.
///
/// Copies share the pointers; the owner destroys them.
struct TicketLock: @unchecked Sendable {
  // Sendable: the pointer is constant, and `inner` guards its target.
  private let inner = ConditionLock()
  private let numbers: UnsafeMutablePointer<(next: UInt64, served: UInt64)>

  init() {
    numbers = .allocate(capacity: 1)
    numbers.initialize(to: (0, 0))
  }

  func destroy() {
    numbers.deallocate()
    inner.destroy()
  }

  func lock() {
    inner.lock()
    let mine = numbers.pointee.next
    numbers.pointee.next += 1
    while numbers.pointee.served != mine { inner.wait() }
    inner.unlock()
  }

  /// Takes the lock if no thread has it or waits for it.
  func tryLock() -> Bool {
    inner.lock()
    defer { inner.unlock() }
    guard numbers.pointee.next == numbers.pointee.served else { return false }
    numbers.pointee.next += 1
    return true
  }

  func unlock() {
    inner.lock()
    numbers.pointee.served += 1
    inner.wakeAll()
    inner.unlock()
  }
}

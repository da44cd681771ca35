/// A lock that goes to whoever has waited longest: a thread that takes it again and again does not keep others from it.
///
/// The owner of the pointers destroys them; the lock itself may be copied around.
struct FairLock: @unchecked Sendable {
  // Sendable: the pointer is constant, and what it leads to is guarded by `inner`.
  private let inner = Lock()
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

  /// Takes the lock if nobody has it or waits for it.
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

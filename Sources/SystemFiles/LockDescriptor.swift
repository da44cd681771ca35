internal import Glibc
internal import Synchronization

/// An open file for `flock` locks.
///
/// A forked child closes it. The lock belongs to the open file, which parent and child would share. The lock of a
/// parent that closed the file or ended would then last until the child ends.
package final class LockDescriptor: Sendable {
  /// The file descriptor. After ``close()``, and in a forked child, another file may have this number.
  package let number: CInt
  private let openedForkGeneration: UInt
  private let isClosed = Atomic(false)

  /// Opens a file with a descriptor above 2; nil on failure, with the reason in `errno`.
  package init?(_ path: String, _ flags: CInt, mode: UInt32 = 0) {
    // Set this first, because the child's handler depends on it.
    openedForkGeneration = ForkDetection.generation.pointee.load(ordering: .relaxed)
    number = FileDescriptor.open(path, flags, mode: mode)
    guard number >= 0 else { return nil }
    Self.note(number)
  }

  deinit {
    close()
  }

  /// Releases the lock and closes the file, unless it is closed. Does nothing in a forked child.
  package func close() {
    guard number >= 0, openedForkGeneration == ForkDetection.generation.pointee.load(ordering: .relaxed),
      !isClosed.exchange(true, ordering: .relaxed)
    else { return }
    // A child of a bare `clone` system call also has the file, so unlock it explicitly.
    flock(number, LOCK_UN)
    Self.forget(number)
    Glibc.close(number)
  }

  // MARK: Locking

  /// Waits for the exclusive lock without limit. Does nothing without `flock` on the file system.
  ///
  /// Threads of the process share the lock. The kernel releases it when the process ends.
  package func lock() {
    while flock(number, LOCK_EX) != 0, errno == EINTR {}
  }

  /// Releases the lock.
  package func unlock() {
    flock(number, LOCK_UN)
  }

  // MARK: Forked children

  /// The maximum number of files that are tracked. Further files stay open in a child.
  private static let capacity = 1024

  /// The descriptors that a forked child closes; -1 in free elements.
  nonisolated(unsafe) private static let numbers: UnsafeMutablePointer<Atomic<CInt>> = {
    let numbers = UnsafeMutablePointer<Atomic<CInt>>.allocate(capacity: capacity)
    for index in 0..<capacity { (numbers + index).initialize(to: Atomic(-1)) }
    return numbers
  }()

  private static func note(_ number: CInt) { replace(-1, with: number) }
  private static func forget(_ number: CInt) { replace(number, with: -1) }

  private static func replace(_ old: CInt, with new: CInt) {
    for index in 0..<capacity
    where numbers[index].compareExchange(expected: old, desired: new, ordering: .sequentiallyConsistent).exchanged {
      return
    }
  }

  /// Creates the table before a handler may need it.
  static func prepare() { _ = numbers }

  /// Closes the files in a forked child. The handler of ``ForkDetection`` calls this, so it calls only `close`.
  static func closeInForkedChild() {
    for index in 0..<capacity {
      let number = numbers[index].exchange(-1, ordering: .relaxed)
      if number >= 0 { Glibc.close(number) }
    }
  }
}

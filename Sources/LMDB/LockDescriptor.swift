internal import Glibc
internal import Synchronization

/// An open file that locks (`flock`) are taken on.
///
/// A forked child does not keep it: such a lock belongs to the open file, which parent and child would share, so that the lock of a
/// parent that has closed the file, or ended, would last until its child ends.
package final class LockDescriptor: Sendable {
  /// The file's number; another file may have it after ``close()``, and in a forked child.
  package let number: CInt
  private let openedForkGeneration: UInt
  private let isClosed = Atomic(false)

  /// Opens a file, above the standard descriptors; nil where that fails, with the reason in `errno`.
  package init?(_ path: String, _ flags: CInt, mode: UInt32 = 0) {
    // First of all, as the child's handler goes by it.
    openedForkGeneration = ForkDetection.generation.pointee.load(ordering: .relaxed)
    number = FileDescriptor.open(path, flags, mode: mode)
    guard number >= 0 else { return nil }
    Self.note(number)
  }

  deinit {
    close()
  }

  /// Gives the lock back and closes the file, if that was not done before. Does nothing in a forked child.
  package func close() {
    guard number >= 0, openedForkGeneration == ForkDetection.generation.pointee.load(ordering: .relaxed),
      !isClosed.exchange(true, ordering: .relaxed)
    else { return }
    // A child that was made by a bare `clone` system call has the file, too.
    flock(number, LOCK_UN)
    Self.forget(number)
    Glibc.close(number)
  }

  // MARK: Forked children

  /// More are not known, and stay open in a child.
  private static let capacity = 1024

  /// The numbers that a forked child closes; -1 in free places.
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

  /// Makes the table, before any handler may need it.
  static func prepare() { _ = numbers }

  /// For the handler of ``ForkDetection``: only `close` is called.
  static func closeInForkedChild() {
    for index in 0..<capacity {
      let number = numbers[index].exchange(-1, ordering: .relaxed)
      if number >= 0 { Glibc.close(number) }
    }
  }
}

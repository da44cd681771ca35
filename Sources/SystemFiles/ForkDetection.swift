internal import Glibc
package import Synchronization

/// Detects that the process was forked.
///
/// An environment must not be used in a forked child. Its reader slots contain the parent's process ID and would stay
/// taken forever, and closing it would free the slots of the parent's live readers.
///
/// A child also closes the files of ``LockDescriptor``.
package enum ForkDetection {
  /// The number of forks between this process and the first one that used this property.
  ///
  /// It changes only in a child, where only the forking thread exists, so a read path compares it with a plain load. A
  /// child of a bare `clone` system call runs no handlers. Writes and new read transactions therefore also compare the
  /// process ID.
  nonisolated(unsafe) package static let generation: UnsafeMutablePointer<Atomic<UInt>> = {
    let counter = UnsafeMutablePointer<Atomic<UInt>>.allocate(capacity: 1)
    counter.initialize(to: Atomic(0))
    LockDescriptor.prepare()
    pthread_atfork(nil, nil) {
      LockDescriptor.closeInForkedChild()
      ForkDetection.generation.pointee.wrappingAdd(1, ordering: .relaxed)
    }
    return counter
  }()
}

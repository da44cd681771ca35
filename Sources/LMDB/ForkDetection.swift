internal import Glibc
internal import Synchronization

/// Tells a process from the one that forked it.
///
/// A child also closes what locks are taken on; see ``LockDescriptor``.
///
/// An environment must not be used in a forked child: its reader slots carry the parent's process id and would stay
/// taken for ever, and closing it would free the slots of the parent's live readers.
enum ForkDetection {
  /// How many forks lie between this process and the first one that asked. It changes only in a child, where only the
  /// forking thread lives on, so that comparing it costs a read path nothing but a load. A child that was made by a
  /// bare `clone` system call runs no handlers: writes and new read transactions compare the process id as well.
  nonisolated(unsafe) static let generation: UnsafeMutablePointer<Atomic<UInt>> = {
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

import Glibc
import Synchronization

/// A thread that can be joined. Releasing the object detaches a thread that was not joined.
///
/// LMDB binds a write transaction to a thread, so tasks and dispatch queues are unsuitable.
///
/// `@unchecked Sendable`: `thread` is written before the initializer returns, and only read afterwards.
package final class BackgroundThread: @unchecked Sendable {
  private var thread = pthread_t()
  private let hasEnded: Monitor<Bool>
  /// Whether the thread was started, and was neither joined nor detached.
  private let isJoinable = Atomic(false)

  private final class Start {
    let body: @Sendable () -> Void
    init(body: @escaping @Sendable () -> Void) { self.body = body }
  }

  /// Starts a thread; nil if the system cannot create one.
  ///
  /// The thread blocks signals, so that the program's own threads receive them.
  package init?(body: @escaping @Sendable () -> Void) {
    let hasEnded = Monitor(false)
    self.hasEnded = hasEnded
    let start = Unmanaged.passRetained(
      Start {
        body()
        hasEnded.update { $0 = true }
      })
    var all = sigset_t()
    var before = sigset_t()
    sigfillset(&all)
    // The kernel sends these to the thread that caused them.
    for signal in [SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE, SIGABRT] { sigdelset(&all, signal) }
    pthread_sigmask(SIG_BLOCK, &all, &before)
    defer { pthread_sigmask(SIG_SETMASK, &before, nil) }
    let code = pthread_create(
      &thread, nil,
      { argument in
        guard let argument else { return nil }
        Unmanaged<Start>.fromOpaque(argument).takeRetainedValue().body()
        return nil
      }, start.toOpaque())
    guard code == 0 else {
      start.release()
      return nil
    }
    isJoinable.store(true, ordering: .releasing)
  }

  deinit {
    // Otherwise the stack of the thread would never be freed.
    if isJoinable.load(ordering: .acquiring) { pthread_detach(thread) }
  }

  /// Waits until the thread has ended. Returns false if `waiting` timed out; the thread then ends on its own.
  ///
  /// Does not wait when the thread itself calls it.
  ///
  /// - Parameter waiting: Waits until the state is true. Returns whether it became true.
  package func join(waiting: (Monitor<Bool>) -> Bool) -> Bool {
    if pthread_equal(thread, pthread_self()) != 0 { return true }
    guard waiting(hasEnded) else { return false }
    if isJoinable.exchange(false, ordering: .acquiringAndReleasing) { pthread_join(thread, nil) }
    return true
  }
}

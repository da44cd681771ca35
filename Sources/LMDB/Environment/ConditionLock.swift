internal import Glibc

/// A POSIX mutex with a condition variable on the monotonic clock, for slow paths.
///
/// `Synchronization.Mutex` is locked only within a closure, and no thread can wait for a change of its value.
package final class ConditionLock: @unchecked Sendable {
  // Sendable: both pointers are constant, and threads may share their targets.
  private let mutex: UnsafeMutablePointer<pthread_mutex_t>
  private let condition: UnsafeMutablePointer<pthread_cond_t>

  package init() {
    mutex = .allocate(capacity: 1)
    mutex.initialize(to: pthread_mutex_t())
    pthread_mutex_init(mutex, nil)
    condition = .allocate(capacity: 1)
    condition.initialize(to: pthread_cond_t())
    var attributes = pthread_condattr_t()
    pthread_condattr_init(&attributes)
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC)
    pthread_cond_init(condition, &attributes)
    pthread_condattr_destroy(&attributes)
  }

  deinit {
    pthread_cond_destroy(condition)
    condition.deallocate()
    pthread_mutex_destroy(mutex)
    mutex.deallocate()
  }

  package func lock() {
    pthread_mutex_lock(mutex)
  }

  package func unlock() {
    pthread_mutex_unlock(mutex)
  }

  /// Releases the lock until another thread calls ``wakeAll()``. Can return spuriously.
  package func wait() {
    pthread_cond_wait(condition, mutex)
  }

  /// Like ``wait()``, until a time of the monotonic clock at the latest. Returns whether that has not passed.
  package func wait(untilNanoseconds time: Int64) -> Bool {
    var time = timespec(tv_sec: Int(time / 1_000_000_000), tv_nsec: Int(time % 1_000_000_000))
    return pthread_cond_timedwait(condition, mutex, &time) != ETIMEDOUT
  }

  package func wakeAll() {
    pthread_cond_broadcast(condition)
  }
}

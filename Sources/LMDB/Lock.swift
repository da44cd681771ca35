internal import Glibc

/// A mutex with a condition, for the slow paths. `Synchronization.Mutex` lends its lock only to a closure, and a write
/// transaction's lock is held across a caller's closure whose result need not be sendable.
///
/// The owner of the pointers destroys them; the lock itself may be copied around.
struct Lock: @unchecked Sendable {
  // Sendable: both pointers are constant, and what they point to is made for use by many threads.
  private let mutex: UnsafeMutablePointer<pthread_mutex_t>
  private let condition: UnsafeMutablePointer<pthread_cond_t>

  init() {
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

  func destroy() {
    pthread_cond_destroy(condition)
    condition.deallocate()
    pthread_mutex_destroy(mutex)
    mutex.deallocate()
  }

  func lock() {
    pthread_mutex_lock(mutex)
  }

  func unlock() {
    pthread_mutex_unlock(mutex)
  }

  /// Lets go of the lock until another thread calls ``wakeAll()``. Returns for no reason at times.
  func wait() {
    pthread_cond_wait(condition, mutex)
  }

  /// Lets go of the lock until another thread calls ``wakeOne()`` or ``wakeAll()``; false when the time has come, as
  /// ``Clock`` tells it. Returns for no reason at times.
  func wait(until deadline: UInt64) -> Bool {
    var time = timespec(tv_sec: Int(deadline / 1_000_000_000), tv_nsec: Int(deadline % 1_000_000_000))
    return pthread_cond_timedwait(condition, mutex, &time) != ETIMEDOUT
  }

  func wakeOne() {
    pthread_cond_signal(condition)
  }

  func wakeAll() {
    pthread_cond_broadcast(condition)
  }
}

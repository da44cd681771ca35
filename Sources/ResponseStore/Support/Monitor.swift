import CacheModel
import Glibc

/// A value under a lock that threads can wait on: a POSIX mutex with a condition variable on the monotonic clock.
///
/// The writer and the eviction thread need both. `Mutex` has no condition, and a dispatch semaphore guards no value.
///
/// `@unchecked Sendable`: `state` is accessed only with the lock.
package final class Monitor<State>: @unchecked Sendable {
  private let mutex: UnsafeMutablePointer<pthread_mutex_t>
  private let condition: UnsafeMutablePointer<pthread_cond_t>
  private var state: State

  package init(_ state: State) {
    self.state = state
    mutex = .allocate(capacity: 1)
    condition = .allocate(capacity: 1)
    pthread_mutex_init(mutex, nil)
    var attributes = pthread_condattr_t()
    pthread_condattr_init(&attributes)
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC)
    pthread_cond_init(condition, &attributes)
    pthread_condattr_destroy(&attributes)
  }

  deinit {
    pthread_cond_destroy(condition)
    pthread_mutex_destroy(mutex)
    condition.deallocate()
    mutex.deallocate()
  }

  /// Calls `body` with the state and the lock.
  package func withLock<R>(_ body: (inout State) -> R) -> R {
    pthread_mutex_lock(mutex)
    defer { pthread_mutex_unlock(mutex) }
    return body(&state)
  }

  /// Calls `body` with the state and the lock, then wakes all waiting threads.
  package func update<R>(_ body: (inout State) -> R) -> R {
    // After unlocking, because a woken thread takes the lock at once.
    defer { wakeAll() }
    return withLock(body)
  }

  /// Wakes all waiting threads. Call this after a change with the lock.
  package func wakeAll() {
    pthread_cond_broadcast(condition)
  }

  /// Waits until `body` returns a value, and returns it; nil after `timeout`.
  ///
  /// Calls `body` at first and after each ``update(_:)``, with the lock.
  package func wait<R>(timeout: Duration? = nil, for body: (inout State) -> R?) -> R? {
    pthread_mutex_lock(mutex)
    defer { pthread_mutex_unlock(mutex) }
    if let result = body(&state) { return result }
    let deadline = timeout.map { MonotonicTime.now + $0 }
    while true {
      if let deadline {
        var time = deadline.timespec
        if pthread_cond_timedwait(condition, mutex, &time) == ETIMEDOUT { return body(&state) }
      } else {
        pthread_cond_wait(condition, mutex)
      }
      if let result = body(&state) { return result }
    }
  }
}

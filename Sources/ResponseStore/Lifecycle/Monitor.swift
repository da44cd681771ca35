import Glibc

/// A value under a lock that threads can wait on: a POSIX mutex with a condition variable on the monotonic clock.
///
/// `Mutex` has no condition variable, and a dispatch semaphore cannot guard a value. Code that needs no condition uses
/// this, too, because the thread sanitizer knows POSIX locks, but not `Mutex`.
///
/// `@unchecked Sendable`: `state` is accessed only with the lock held.
final class Monitor<State>: @unchecked Sendable {
  private let mutex: UnsafeMutablePointer<pthread_mutex_t>
  private let condition: UnsafeMutablePointer<pthread_cond_t>
  private var state: State

  init(_ state: State) {
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

  /// Runs `body` with the lock held.
  func withLock<R>(_ body: (inout State) -> R) -> R {
    pthread_mutex_lock(mutex)
    defer { pthread_mutex_unlock(mutex) }
    return body(&state)
  }

  /// Runs `body` with the lock held, then wakes all waiting threads.
  func update<R>(_ body: (inout State) -> R) -> R {
    // Wake them after unlocking, because they take the lock at once.
    defer { wakeAll() }
    return withLock(body)
  }

  /// Wakes all waiting threads, so that they examine the state again.
  func wakeAll() {
    pthread_cond_broadcast(condition)
  }

  /// Waits until `body` returns a result. Returns nil on a timeout.
  ///
  /// Calls `body` with the lock held: first at once, then whenever this thread is woken.
  func wait<R>(timeout: Duration? = nil, for body: (inout State) -> R?) -> R? {
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

/// A reading of `CLOCK_MONOTONIC`.
struct MonotonicTime: Comparable {
  var nanoseconds: Int64

  static var now: MonotonicTime {
    var time = Glibc.timespec()
    clock_gettime(CLOCK_MONOTONIC, &time)
    return MonotonicTime(nanoseconds: Int64(time.tv_sec) * 1_000_000_000 + Int64(time.tv_nsec))
  }

  static func + (time: MonotonicTime, duration: Duration) -> MonotonicTime {
    // Limit the duration to a century, so that the sum fits into 64 bits.
    let (seconds, attoseconds) = min(max(duration, .zero), .seconds(3_155_760_000)).components
    return MonotonicTime(nanoseconds: time.nanoseconds + seconds * 1_000_000_000 + attoseconds / 1_000_000_000)
  }

  /// Returns the time until `later`; zero if it has passed.
  func duration(to later: MonotonicTime) -> Duration {
    .nanoseconds(max(0, later.nanoseconds - nanoseconds))
  }

  static func < (left: MonotonicTime, right: MonotonicTime) -> Bool {
    left.nanoseconds < right.nanoseconds
  }

  var timespec: Glibc.timespec {
    Glibc.timespec(tv_sec: Int(nanoseconds / 1_000_000_000), tv_nsec: Int(nanoseconds % 1_000_000_000))
  }
}

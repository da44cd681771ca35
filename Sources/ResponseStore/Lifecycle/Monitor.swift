import Glibc

/// A value under a lock that threads can wait on: a POSIX mutex with a condition variable on the monotonic clock.
///
/// `Mutex` has no condition, and a dispatch semaphore cannot guard a value; the writer and the eviction thread need
/// both. The places that need no condition use it, too: the thread sanitizer knows POSIX locks, and not `Mutex`.
/// `@unchecked Sendable`: `state` is touched only between lock and unlock.
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

  /// Runs `body` alone with the state.
  package func withLock<R>(_ body: (inout State) -> R) -> R {
    pthread_mutex_lock(mutex)
    defer { pthread_mutex_unlock(mutex) }
    return body(&state)
  }

  /// Runs `body` alone with the state, then wakes all that wait.
  package func update<R>(_ body: (inout State) -> R) -> R {
    // Without the lock: who is woken asks for it at once.
    defer { wakeAll() }
    return withLock(body)
  }

  /// Wakes all that wait, to look at what was changed with the lock before.
  package func wakeAll() {
    pthread_cond_broadcast(condition)
  }

  /// Waits until `body` answers, asking it again after each ``update(_:)``; nil when `timeout` passed first.
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

/// A reading of `CLOCK_MONOTONIC`.
struct MonotonicTime: Comparable {
  var nanoseconds: Int64

  /// The time in nanoseconds at the last tick of the kernel, some milliseconds ago. Costs a tenth of ``now``.
  static var coarseNanoseconds: UInt64 {
    var time = Glibc.timespec()
    clock_gettime(CLOCK_MONOTONIC_COARSE, &time)
    return UInt64(time.tv_sec) * 1_000_000_000 + UInt64(time.tv_nsec)
  }

  static var now: MonotonicTime {
    var time = Glibc.timespec()
    clock_gettime(CLOCK_MONOTONIC, &time)
    return MonotonicTime(nanoseconds: Int64(time.tv_sec) * 1_000_000_000 + Int64(time.tv_nsec))
  }

  static func + (time: MonotonicTime, duration: Duration) -> MonotonicTime {
    // A century is for ever, and keeps the sums within 64 bits.
    let (seconds, attoseconds) = min(max(duration, .zero), .seconds(3_155_760_000)).components
    return MonotonicTime(nanoseconds: time.nanoseconds + seconds * 1_000_000_000 + attoseconds / 1_000_000_000)
  }

  /// Not below zero.
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

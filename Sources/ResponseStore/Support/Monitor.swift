import CacheModel
import LMDB

/// A value under a lock that threads can wait on.
///
/// The writer and the eviction thread need both. `Mutex` has no condition, and a dispatch semaphore guards no value.
///
/// `@unchecked Sendable`: `state` is accessed only with the lock.
package final class Monitor<State>: @unchecked Sendable {
  private let lock = ConditionLock()
  private var state: State

  package init(_ state: State) { self.state = state }

  /// Calls `body` with the state and the lock.
  package func withLock<R>(_ body: (inout State) -> R) -> R {
    lock.lock()
    defer { lock.unlock() }
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
    lock.wakeAll()
  }

  /// Waits until `body` returns a value, and returns it; nil after `timeout`.
  ///
  /// Calls `body` at first and after each ``update(_:)``, with the lock.
  package func wait<R>(timeout: Duration? = nil, for body: (inout State) -> R?) -> R? {
    lock.lock()
    defer { lock.unlock() }
    if let result = body(&state) { return result }
    let deadline = timeout.map { MonotonicTime.now + $0 }
    while true {
      if let deadline {
        guard lock.wait(untilNanoseconds: deadline.nanoseconds) else { return body(&state) }
      } else {
        lock.wait()
      }
      if let result = body(&state) { return result }
    }
  }
}

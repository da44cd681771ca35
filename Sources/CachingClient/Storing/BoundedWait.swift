import Synchronization

/// A short wait at the end of a body for the caller's hook, or for the storage.
///
/// If they are prompt, the response is stored before the caller's next request.
final class BoundedWait: Sendable {
  private struct State {
    var isOver = false
    var waiter: CheckedContinuation<Void, Never>?
  }

  private let state = Mutex(State())

  /// Ends the wait, or prevents it if it has not begun. May be called any number of times.
  func end() {
    let waiter = state.withLock { state in
      state.isOver = true
      defer { state.waiter = nil }
      return state.waiter
    }
    waiter?.resume()
  }

  /// Suspends until ``end()`` is called or the limit has passed. Call this once.
  func wait(atMost limit: Duration) async {
    let alarm = Alarm(at: .now + limit) {
      self.end()
      return nil
    }
    await withCheckedContinuation { continuation in
      let isOver = state.withLock { state in
        if !state.isOver { state.waiter = continuation }
        return state.isOver
      }
      if isOver { continuation.resume() }
    }
    alarm.cancel()
  }
}

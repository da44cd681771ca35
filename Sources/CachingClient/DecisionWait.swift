import Synchronization

/// Lets the end of a body wait a moment for a caller's hook, so that the next request finds what a prompt hook has stored.
final class DecisionWait: Sendable {
  private struct State {
    var isOver = false
    var waiter: CheckedContinuation<Void, Never>?
  }

  private let state = Mutex(State())

  /// Ends the wait, now or when it begins. May be called any number of times.
  func end() {
    let waiter = state.withLock { state in
      state.isOver = true
      defer { state.waiter = nil }
      return state.waiter
    }
    waiter?.resume()
  }

  /// Suspends until ``end()``, or until the limit has passed. Called once.
  func wait(atMost limit: Duration) async {
    let timer = Task {
      do { try await Task.sleep(for: limit) } catch { return }
      end()
    }
    await withCheckedContinuation { continuation in
      let isOver = state.withLock { state in
        if !state.isOver { state.waiter = continuation }
        return state.isOver
      }
      if isOver { continuation.resume() }
    }
    timer.cancel()
  }
}

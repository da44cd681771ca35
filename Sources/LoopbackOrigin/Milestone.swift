import Synchronization

/// A count that only grows, and that tasks can wait for without polling.
final class Milestone: Sendable {
  private struct Waiter {
    let threshold: Int
    let continuation: CheckedContinuation<Bool, Never>
  }

  private struct State {
    var count = 0
    var isClosed = false
    var nextWaiter = 0
    var waiters: [Int: Waiter] = [:]
    var cancelled: Set<Int> = []
  }

  private let state = Mutex(State())

  var count: Int { state.withLock { $0.count } }

  /// Adds one and wakes those who waited for the new count.
  func advance() {
    let reached = state.withLock { state in
      state.count += 1
      let reached = state.waiters.filter { $0.value.threshold <= state.count }
      for number in reached.keys { state.waiters[number] = nil }
      return reached.values.map(\.continuation)
    }
    for continuation in reached { continuation.resume(returning: true) }
  }

  /// Ends every wait, present and future, whose count was not reached.
  func close() {
    let left = state.withLock { state in
      state.isClosed = true
      let left = state.waiters.values.map(\.continuation)
      state.waiters = [:]
      return left
    }
    for continuation in left { continuation.resume(returning: false) }
  }

  /// Returns true once the count is at least `threshold`; false when the task was cancelled or the milestone closed before.
  func wait(for threshold: Int) async -> Bool {
    let number = state.withLock { state in
      state.nextWaiter += 1
      return state.nextWaiter
    }
    defer { state.withLock { _ = $0.cancelled.remove(number) } }
    return await withTaskCancellationHandler {
      await withCheckedContinuation { continuation in
        let answer: Bool? = state.withLock { state in
          if state.count >= threshold { return true }
          if state.isClosed || state.cancelled.contains(number) { return false }
          state.waiters[number] = Waiter(threshold: threshold, continuation: continuation)
          return nil
        }
        if let answer { continuation.resume(returning: answer) }
      }
    } onCancel: {
      let waiter = state.withLock { state in
        let waiter = state.waiters.removeValue(forKey: number)
        // Cancelled before the wait began: the wait finds this note.
        if waiter == nil { state.cancelled.insert(number) }
        return waiter
      }
      waiter?.continuation.resume(returning: false)
    }
  }
}

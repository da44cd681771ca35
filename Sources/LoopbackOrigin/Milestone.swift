import Synchronization

/// A count that only increases, and that tasks can wait for without polling.
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

  /// Adds one, and resumes the tasks that wait for the new count.
  func advance() {
    let reached = state.withLock { state in
      state.count += 1
      let reached = state.waiters.filter { $0.value.threshold <= state.count }
      for number in reached.keys { state.waiters[number] = nil }
      return reached.values.map(\.continuation)
    }
    for continuation in reached { continuation.resume(returning: true) }
  }

  /// Ends all present and later waits whose count was not reached.
  func close() {
    let left = state.withLock { state in
      state.isClosed = true
      let left = state.waiters.values.map(\.continuation)
      state.waiters = [:]
      return left
    }
    for continuation in left { continuation.resume(returning: false) }
  }

  /// Waits for a count of at least `threshold`; false if the task was cancelled or the milestone closed first.
  func wait(for threshold: Int) async -> Bool {
    let number = state.withLock { state in
      state.nextWaiter += 1
      return state.nextWaiter
    }
    defer { state.withLock { _ = $0.cancelled.remove(number) } }
    return await withTaskCancellationHandler {
      await withCheckedContinuation { continuation in
        let result: Bool? = state.withLock { state in
          if state.count >= threshold { return true }
          if state.isClosed || state.cancelled.contains(number) { return false }
          state.waiters[number] = Waiter(threshold: threshold, continuation: continuation)
          return nil
        }
        if let result { continuation.resume(returning: result) }
      }
    } onCancel: {
      let waiter = state.withLock { state in
        let waiter = state.waiters.removeValue(forKey: number)
        // The task was cancelled before the wait began. The wait checks this set.
        if waiter == nil { state.cancelled.insert(number) }
        return waiter
      }
      waiter?.continuation.resume(returning: false)
    }
  }
}

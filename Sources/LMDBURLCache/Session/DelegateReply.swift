import Synchronization

/// The reply that a delegate gives through a completion handler.
///
/// The first reply counts. A cancelled caller does not wait for it.
final class DelegateReply<Value: Sendable>: Sendable {
  private enum State {
    case open
    case waiting(CheckedContinuation<Value, any Error>)
    case over(Result<Value, any Error>?)
  }

  private let state = Mutex(State.open)

  /// Calls `ask` and waits for the reply.
  ///
  /// - Throws: `CancellationError` when the calling task is cancelled.
  static func wait(_ ask: (DelegateReply) -> Void) async throws -> Value {
    let reply = DelegateReply()
    return try await withTaskCancellationHandler {
      ask(reply)
      return try await withCheckedThrowingContinuation { continuation in
        let result = reply.state.withLock { state -> Result<Value, any Error>? in
          if case .over(let result) = state {
            state = .over(nil)
            return result
          }
          state = .waiting(continuation)
          return nil
        }
        if let result { continuation.resume(with: result) }
      }
    } onCancel: {
      reply.end(.failure(CancellationError()))
    }
  }

  /// Gives the reply; later replies are ignored.
  func give(_ value: Value) {
    end(.success(value))
  }

  private func end(_ result: Result<Value, any Error>) {
    let waiting = state.withLock { state -> CheckedContinuation<Value, any Error>? in
      switch state {
      case .open: state = .over(result)
      case .waiting(let continuation):
        state = .over(nil)
        return continuation
      case .over: break
      }
      return nil
    }
    waiting?.resume(with: result)
  }
}

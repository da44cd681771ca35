import CachingClient
import Foundation
import FoundationNetworking

/// Runs an operation, which is cancelled when a time limit has passed.
///
/// - Throws: `URLError.timedOut` after the limit; the errors of the operation.
func withTimeLimit<Value: Sendable>(
  _ limit: Duration, _ operation: @escaping @Sendable () async throws -> Value
) async throws -> Value {
  let task = Task { try await operation() }
  let alarm = Alarm(at: .now + limit) {
    task.cancel()
    return nil
  }
  defer { alarm.cancel() }
  do {
    return try await withTaskCancellationHandler {
      try await task.value
    } onCancel: {
      task.cancel()
    }
  } catch {
    guard alarm.hasGoneOff else { throw error }
    throw URLError(
      .timedOut, "The load took longer than the session's timeoutIntervalForResource permits. Set a longer time.")
  }
}

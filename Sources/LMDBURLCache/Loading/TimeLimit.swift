import Foundation
import FoundationNetworking

/// Runs an operation, which is cancelled when a time limit has passed.
///
/// - Throws: `URLError.timedOut` after the limit; the errors of the operation.
func withTimeLimit<Value: Sendable>(
  _ limit: Duration, _ operation: @escaping @Sendable () async throws -> Value
) async throws -> Value {
  try await withThrowingTaskGroup { group in
    group.addTask { try await operation() }
    group.addTask {
      try await Task.sleep(for: limit)
      throw URLError(
        .timedOut, "The load took longer than the session's timeoutIntervalForResource permits. Set a longer time.")
    }
    defer { group.cancelAll() }
    guard let first = try await group.next() else { throw CancellationError() }
    return first
  }
}

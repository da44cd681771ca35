import Foundation

/// Waits for a condition that nothing announces, such as the state of another process. Asks every millisecond.
///
/// Tests of several modules refer to this file through symbolic links. Returns false after the time limit.
@discardableResult
func waitUntil(within limit: Duration = .seconds(60), _ condition: () throws -> Bool) rethrows -> Bool {
  let deadline = ContinuousClock.now + limit
  while try !condition() {
    guard .now < deadline else { return false }
    usleep(1000)
  }
  return true
}

/// The same without blocking the thread of a task.
@discardableResult
func waitInTask(
  within limit: Duration = .seconds(60), isolation: isolated (any Actor)? = #isolation, _ condition: () throws -> Bool
) async throws -> Bool {
  let deadline = ContinuousClock.now + limit
  while try !condition() {
    guard .now < deadline else { return false }
    try await Task.sleep(for: .milliseconds(1))
  }
  return true
}

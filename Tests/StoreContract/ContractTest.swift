import FoundationEssentials
import Glibc

/// The contract test: random operations on a store, of which each result is judged by a ``Ledger``.
package enum ContractTest {
  /// A run that violated the contract.
  package struct Failure: Error, CustomStringConvertible {
    let violation: Ledger.Violation
    /// The operations up to the violation.
    let operations: [ContractOperation]
    let history: [String]

    package var description: String {
      """
      \(violation)
      after \(operations.count) operations:
        \(history.suffix(60).joined(separator: "\n  "))
      as bytes: \(operations.map(\.hexadecimal).joined())
      """
    }
  }

  /// Runs operations on a new store in this process.
  ///
  /// - Parameter directory: The store's directory, which is removed before and afterwards.
  package static func run(
    _ operations: [ContractOperation], _ configuration: ContractRun.Configuration, directory: String
  ) throws(Failure) {
    remove(directory)
    defer { remove(directory) }
    defer { ContractFaults.clear() }
    var run: ContractRun?
    var count = 0
    do throws(Ledger.Violation) {
      let ledger = ContractRun.ledger(isEvicting: configuration.isEvicting)
      let new = try ContractRun(configuration, directory: directory, ledger: ledger)
      run = new
      for operation in operations {
        count += 1
        try new.perform(operation)
      }
      try new.finish()
    } catch {
      ContractFaults.clear()
      run?.abandon()
      throw Failure(violation: error, operations: Array(operations.prefix(count)), history: run?.history ?? [])
    }
  }

  /// Runs random operations on a new store in this process. A failure has the fewest operations that could be found.
  ///
  /// - Parameter shrinkingSeconds: How long to look for fewer operations.
  package static func run(
    seed: UInt64, operationCount: Int, _ configuration: ContractRun.Configuration, directory: String,
    shrinkingSeconds: Int = 20
  ) throws(Failure) {
    var random = SeededRandom(seed)
    let operations = (0..<operationCount).map { _ in ContractOperation.random(&random) }
    do throws(Failure) {
      try run(operations, configuration, directory: directory)
    } catch {
      throw shrink(error, configuration, directory: directory, seconds: shrinkingSeconds)
    }
  }

  /// Leaves operations out as long as the same promise is broken.
  private static func shrink(
    _ failure: Failure, _ configuration: ContractRun.Configuration, directory: String, seconds: Int
  ) -> Failure {
    let deadline = ContinuousClock.now + .seconds(seconds)
    var smallest = failure
    var length = max(1, smallest.operations.count / 2)
    while true {
      var start = 0
      var hasShrunk = false
      while start < smallest.operations.count, .now < deadline {
        var rest = smallest.operations
        rest.removeSubrange(start..<min(start + length, rest.count))
        do throws(Failure) {
          try run(rest, configuration, directory: directory)
          start += length
        } catch {
          guard error.violation.kind == failure.violation.kind else {
            start += length
            continue
          }
          hasShrunk = true
          smallest = error
        }
      }
      if length == 1, !hasShrunk || .now >= deadline { return smallest }
      length = max(1, length / 2)
    }
  }

  /// Returns a path for a new directory, in memory if possible, where syncs cost nothing.
  package static func newDirectory() -> String {
    let parent = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : ProcessInfo.processInfo.environment["TMPDIR"] ?? "/tmp"
    return "\(parent)/contract-\(UUID().uuidString)"
  }

  static func remove(_ directory: String) {
    // It may not exist.
    try? FileManager.default.removeItem(atPath: directory)
  }
}

import CDiskFaults
import Glibc
import Synchronization

/// Injected errors of writes and syncs of this process.
enum ContractFaults {
  private static let operationsBefore = Atomic<Int>(0)
  private static let failuresToCome = Atomic<Int>(0)
  private static let code = Atomic<CInt>(EIO)

  /// Lets writes and syncs fail after some that succeed.
  static func fail(after operationCount: Int, count: Int, with code: CInt) {
    Self.code.store(code, ordering: .relaxed)
    operationsBefore.store(operationCount, ordering: .relaxed)
    failuresToCome.store(count, ordering: .sequentiallyConsistent)
    disk_faults_install(
      { ContractFaults.isFailing ? -1 : disk_faults_real_sync($0) },
      { ContractFaults.isFailing ? -1 : disk_faults_real_write($0, $1, $2, $3) },
      { ContractFaults.isFailing ? -1 : disk_faults_real_write_vector($0, $1, $2) })
  }

  /// Whether errors are still to come.
  static var areActive: Bool { failuresToCome.load(ordering: .sequentiallyConsistent) > 0 }

  /// Ends the errors; returns whether there were any to come.
  @discardableResult
  static func clear() -> Bool { failuresToCome.exchange(0, ordering: .sequentiallyConsistent) > 0 }

  /// Counts an operation; returns whether it fails.
  private static var isFailing: Bool {
    guard areActive, operationsBefore.subtract(1, ordering: .sequentiallyConsistent).newValue < 0,
      failuresToCome.subtract(1, ordering: .sequentiallyConsistent).oldValue > 0
    else { return false }
    errno = code.load(ordering: .relaxed)
    return true
  }
}

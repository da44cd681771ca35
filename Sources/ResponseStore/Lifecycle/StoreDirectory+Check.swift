import Glibc
import LMDB

/// The state of the check of the pages that lead to records, which have no checksums.
///
/// The state is in the ``SharedStatusPage``, so that another process can continue the check.
extension StoreDirectory {
  private enum CheckReason: UInt64 {
    case abandonedTransaction = 1
    case anotherBoot, failedOpening, corruptRecord

    /// The reason as a clause for the log.
    var phrase: String {
      switch self {
      case .abandonedTransaction: "the last process that used it ended within a transaction"
      case .anotherBoot: "the machine has restarted since it was last opened"
      case .failedOpening: "the last opening did not finish"
      case .corruptRecord: "a corrupt record was found in it"
      }
    }
  }

  /// Determines whether the state that the last process left requires a check.
  ///
  /// Call this while no other process uses the directory. A killed process alone is no reason, because it leaves LMDB's
  /// data as of its last commit. But corrupt data may have crashed a process within a transaction, or while it opened
  /// the data. And after a power failure, a disk may lack bytes that it had confirmed.
  func recordCheckReason() {
    guard let flag = statusPage else { return }
    var reason: CheckReason?
    isSameBoot = Boot.known == Boot(high: flag[.bootHigh], low: flag[.bootLow])
    // An index belongs to one boot, because nothing syncs it.
    if !isSameBoot { flag[.indexFile] = 0 }
    if let boot = Boot.known, !isSameBoot {
      reason = .anotherBoot
      (flag[.bootHigh], flag[.bootLow]) = (boot.high, boot.low)
    }
    if access(openingPath, F_OK) == 0 { reason = .failedOpening }
    if AbandonedTransaction.isRecorded(inLockFile: path(of: "lock.mdb")) { reason = .abandonedTransaction }
    if flag.isSuspect { reason = .corruptRecord }
    if let reason { flag[.checkReason] = reason.rawValue }
  }

  /// The reason why the pages must be checked, as a clause; nil if they need not be checked.
  var integrityCheckReason: String? {
    guard let flag = statusPage, flag[.checkReason] != 0 else { return nil }
    return CheckReason(rawValue: flag[.checkReason])?.phrase ?? "an earlier check did not finish"
  }

  /// Records that the pages are valid, or that the data is new.
  func endCheck() {
    statusPage?[.checkReason] = 0
  }

  /// Claims the check for this process. Returns false if there is nothing to check, or another process checks.
  func claimCheck() -> Bool {
    guard let flag = statusPage, flag[.checkReason] != 0 else { return false }
    let checker = flag[.checker]
    let own = UInt64(getpid())
    if checker == own { return true }
    if checker != 0, kill(pid_t(truncatingIfNeeded: checker), 0) == 0 || errno != ESRCH { return false }
    return flag.replaceChecker(checker, with: own)
  }

  /// Leaves a check to other processes.
  func releaseCheck() {
    _ = statusPage?.replaceChecker(UInt64(getpid()), with: 0)
  }

  /// Requests a check because a corrupt record was found. Returns true for the first request of all processes.
  ///
  /// Corruption may also have changed pages without a checksum. This process checks them now, and otherwise the next
  /// open.
  func requestStructureCheck() -> Bool { statusPage?.setSuspect() ?? false }
}

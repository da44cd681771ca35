import Glibc
import LMDB

/// Whether the pages that lead to records need a check, as no checksum guards them. A check outlives the process that
/// began it: the ``SharedStatusPage`` has the state.
extension StoreDirectory {
  private enum CheckReason: UInt64 {
    case abandonedTransaction = 1
    case anotherBoot, failedOpening, damagedRecord

    /// The rest of a sentence that begins with "and".
    var phrase: String {
      switch self {
      case .abandonedTransaction: "its last user ended in the middle of a transaction"
      case .anotherBoot: "the machine was restarted since it was last opened"
      case .failedOpening: "the last opening did not come back"
      case .damagedRecord: "a damaged record was found in it"
      }
    }
  }

  /// Notes the state in which the last process left the data. For a process that is alone.
  ///
  /// A killed process leaves LMDB's data as of its last commit, so this is no reason. But corruption may have ended a
  /// process within a transaction, or while it opened the data. And after a power failure a disk may lack bytes that it
  /// confirmed.
  func noteHowItWasLeft() {
    guard let flag = statusPage else { return }
    var reason: CheckReason?
    if let boot = Self.currentBoot, boot != flag.boot {
      reason = .anotherBoot
      flag.boot = boot
    }
    if access(openingPath, F_OK) == 0 { reason = .failedOpening }
    if AbandonedTransaction.isRecorded(inLockFile: path(of: "lock.mdb")) { reason = .abandonedTransaction }
    if flag.isSuspect { reason = .damagedRecord }
    if let reason { flag.checkReason = reason.rawValue }
  }

  private static let currentBoot: (UInt64, UInt64)? = {
    let descriptor = FileDescriptor.open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC)
    guard descriptor >= 0 else { return nil }
    defer { close(descriptor) }
    // 36 characters, which differ in their first and in their last ones.
    var text = [UInt8](repeating: 0, count: 36)
    guard read(descriptor, &text, text.count) == text.count else { return nil }
    return text.withUnsafeBytes {
      ($0.loadUnaligned(as: UInt64.self), $0.loadUnaligned(fromByteOffset: 28, as: UInt64.self))
    }
  }()

  /// Why the pages are to be checked, as a phrase; nil if they need not be.
  var integrityCheckReason: String? {
    guard let flag = statusPage, flag.checkReason != 0 else { return nil }
    return CheckReason(rawValue: flag.checkReason)?.phrase ?? "an earlier check did not end"
  }

  /// The pages are as they should be, or the data is new.
  func endCheck() {
    statusPage?.checkReason = 0
  }

  /// For the process that is to check them; false if there is nothing to check, or another process does.
  func claimCheck() -> Bool {
    guard let flag = statusPage, flag.checkReason != 0 else { return false }
    let checker = flag.checker
    let own = UInt64(getpid())
    if checker == own { return true }
    if checker != 0, kill(pid_t(truncatingIfNeeded: checker), 0) == 0 || errno != ESRCH { return false }
    return flag.replaceChecker(checker, with: own)
  }

  /// Leaves a check to others.
  func releaseCheck() {
    _ = statusPage?.replaceChecker(UInt64(getpid()), with: 0)
  }

  /// One corrupt record is only missing. But other bytes may have changed, too, in pages without a checksum: the next
  /// open checks them. Returns true for the first request in any process.
  func requestStructureCheck() -> Bool { statusPage?.setSuspect() ?? false }
}

import Glibc
import LMDB

/// Whether the pages that lead to records are to be checked, which no checksum guards. A check outlasts the process that began it:
/// what is still to be checked stands in the ``SharedFlag``.
extension StoreDirectory {
  private enum CheckReason: UInt64 {
    case abandonedTransaction = 1
    case anotherBoot, failedOpening, damagedRecord

    /// The rest of a sentence that begins with "and".
    var phrase: String {
      switch self {
      case .abandonedTransaction: "its last user ended in the middle of a transaction"
      case .anotherBoot: "the machine was started anew since it was last opened"
      case .failedOpening: "the last opening did not come back"
      case .damagedRecord: "a damaged record was found in it"
      }
    }
  }

  /// Notes what happened to the data before this process, which is alone, came to it.
  ///
  /// A process that is killed leaves LMDB's data as its last commit left it, so this is no reason. But damage may have ended one: within
  /// a transaction of LMDB, or while it opened. And after a power cut a disk may not hold what it said it does.
  func noteHowItWasLeft() {
    guard let flag = condemnedFlag else { return }
    var reason: CheckReason?
    if let boot = Self.currentBoot, boot != flag.boot {
      reason = .anotherBoot
      flag.boot = boot
    }
    if access(openingPath, F_OK) == 0 { reason = .failedOpening }
    if AbandonedTransaction.isNoted(inLockFile: path(of: "lock.mdb")) { reason = .abandonedTransaction }
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
  var reasonToCheck: String? {
    guard let flag = condemnedFlag, flag.checkReason != 0 else { return nil }
    return CheckReason(rawValue: flag.checkReason)?.phrase ?? "an earlier check did not end"
  }

  /// The pages are as they should be, or the data is new.
  func endCheck() {
    condemnedFlag?.checkReason = 0
  }

  /// For the process that is to check them; false if there is nothing to check, or another process does.
  func claimCheck() -> Bool {
    guard let flag = condemnedFlag, flag.checkReason != 0 else { return false }
    let checker = flag.checker
    let own = UInt64(getpid())
    if checker == own { return true }
    if checker != 0, kill(pid_t(truncatingIfNeeded: checker), 0) == 0 || errno != ESRCH { return false }
    return flag.replaceChecker(checker, with: own)
  }

  /// Leaves a check to others.
  func releaseCheck() {
    _ = condemnedFlag?.replaceChecker(UInt64(getpid()), with: 0)
  }

  /// One damaged record is only missing. But where bytes have changed, there may be more of them, and in a page that leads to others
  /// no checksum tells: the next opening looks. True for whoever is the first to say so, in any process.
  func suspectDamage() -> Bool { condemnedFlag?.setSuspect() ?? false }
}

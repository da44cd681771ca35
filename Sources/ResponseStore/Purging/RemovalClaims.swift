import Glibc
import LMDB
import SystemFiles

/// The removals that living processes have written to the removal log and not yet put in force.
///
/// A claim is a lock on a byte of the log, far behind its end. It ends with its process, so it tells a removal in
/// progress from one that no process will put in force. Locks of one open file do not conflict, so the claims of this
/// process are also kept here.
final class RemovalClaims: Sendable {
  /// A position behind the end of every log.
  private static let firstByte = 1 << 40

  private let file: LockDescriptor
  private let own = Monitor<Set<UInt64>>([])

  init(_ file: LockDescriptor) {
    self.file = file
  }

  private static func byte(of number: UInt64) -> Range<Int> {
    let byte = firstByte + Int(truncatingIfNeeded: number & 0xFFFF_FFFF)
    return byte..<byte + 1
  }

  /// Claims a removal, before it is written to its frame.
  func claim(_ number: UInt64) throws(RemovalLog.Failure) {
    // On a file system without these locks, every removal counts as claimed.
    guard file.lockBytes(Self.byte(of: number)) || file.mayBeLockedByOthers(Self.byte(of: number)) else {
      throw .system(ENOLCK)
    }
    own.withLock { _ = $0.insert(number) }
  }

  /// Ends the claims on removals that are in force, or have failed.
  func release(_ numbers: ClosedRange<UInt64>) {
    for number in numbers { file.unlockBytes(Self.byte(of: number)) }
    own.withLock { $0.subtract(numbers) }
  }

  /// Whether a living process may still put a removal in force.
  func isClaimed(_ number: UInt64) -> Bool {
    own.withLock { $0.contains(number) } || file.mayBeLockedByOthers(Self.byte(of: number))
  }
}

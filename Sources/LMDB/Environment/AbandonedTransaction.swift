internal import Glibc

/// Detects that a process ended within a transaction. Only then can corrupt data have crashed it.
///
/// The layout of LMDB 0.9's `lock.mdb` on 64-bit Linux, with integers in the machine's byte order:
///
///     offset  bytes  content
///          0      4  magic number
///         56      4  how many reader slots were ever in use
///         64      4  the write lock, a robust mutex; nonzero while it is held, and after its holder has died
///        128         reader slots of 64 bytes: 8 of snapshot, all ones between transactions; 4 of process ID
///
/// The process ID of a free slot is 0.
package enum AbandonedTransaction {
  /// Inspects a lock file. Call this while no process has it open, because the next process that opens it clears it.
  ///
  /// No environment of the directory may be open in this process: closing the file would release its locks.
  /// - Complexity: O(reader slots).
  /// - Returns: Whether a transaction was abandoned; false also for a file that cannot be read or is not an LMDB file.
  package static func isRecorded(inLockFile path: String) -> Bool {
    let descriptor = FileDescriptor.open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)
    guard descriptor >= 0 else { return false }
    defer { close(descriptor) }
    var header = [UInt32](repeating: 0, count: 32)
    guard pread(descriptor, &header, 128, 0) == 128, header[0] == 0xBEEF_C0DE else { return false }
    if header[16] != 0 { return true }
    let slotCount = Int(min(header[14], 1 << 16))
    var slots = [UInt64](repeating: 0, count: slotCount * 8)
    let byteCount = pread(descriptor, &slots, slotCount * 64, 128)
    return (0..<max(byteCount, 0) / 64).contains { index in
      slots[index * 8] != .max && UInt32(truncatingIfNeeded: slots[index * 8 + 1]) != 0
    }
  }
}

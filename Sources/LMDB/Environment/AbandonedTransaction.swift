internal import CLMDB
internal import Glibc
internal import SystemFiles

/// Detects that a process ended within a transaction. Only then can corrupt data have crashed it.
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
    let layout = LockFile.layout
    var header = [UInt32](repeating: 0, count: layout.readers / 4)
    guard pread(descriptor, &header, layout.readers, 0) == layout.readers, header[0] == LockFile.magic else {
      return false
    }
    if header[layout.write_mutex / 4] != 0 { return true }
    let slotCount = Int(min(header[layout.reader_count / 4], 1 << 16))
    var slots = [UInt64](repeating: 0, count: slotCount * LockFile.slotByteCount / 8)
    let byteCount = pread(descriptor, &slots, slotCount * LockFile.slotByteCount, off_t(layout.readers))
    return (0..<max(byteCount, 0) / LockFile.slotByteCount).contains { index in
      slots[index * 8] != .max && UInt32(truncatingIfNeeded: slots[index * 8 + 1]) != 0
    }
  }
}

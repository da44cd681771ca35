internal import CFiles
internal import Glibc

/// The disk blocks of a file that processes map for writing.
///
/// On a full disk, a write to a mapped page that needs a block ends the process with `SIGBUS`. Such a file therefore
/// has a block of its own for each byte. A copy that shares blocks (a reflink) takes that away from both files until
/// they are written again; a snapshot does so for all files. Btrfs writes to another block each time, unless a file has
/// the flag `FS_NOCOW_FL`. The flag suffices from Linux 6.17 on.
package enum MappedFileBlocks {
  package enum State: Sendable {
    /// A write to any byte needs no further block.
    case own
    /// Some bytes have no block. ``allocate(_:byteCount:)`` gives them one.
    case missing
    /// Some blocks are shared. ``rewrite(_:byteCount:)`` replaces them.
    case shared
    /// Some blocks may be older than a snapshot, which Btrfs does not tell. ``rewrite(_:byteCount:)`` replaces them.
    case uncertain
    /// Each write needs another block. Only another file can have the flag against that.
    case copied
  }

  /// Examines the blocks of the first bytes of a file.
  ///
  /// - Complexity: O(pieces of the file on disk).
  package static func state(of descriptor: CInt, byteCount: Int) -> State {
    guard byteCount > 0 else { return .own }
    let copiesOnWrite = cfiles_copies_on_write(descriptor) != 0
    if copiesOnWrite, cfiles_has_flag_against_copies(descriptor) == 0 { return .copied }
    switch cfiles_blocks(descriptor, UInt64(byteCount)) {
    case cfiles_blocks_own: return copiesOnWrite ? .uncertain : .own
    case cfiles_blocks_missing: return .missing
    case cfiles_blocks_shared: return .shared
    default:
      // File systems in memory do not tell, and share no blocks.
      var status = stat()
      let isComplete = fstat(descriptor, &status) == 0 && Int(status.st_blocks) * 512 >= byteCount
      return isComplete ? .own : .missing
    }
  }

  /// Gives each of the first bytes of a file a block of its own, where the file can have one.
  ///
  /// Call this while no process writes to the file.
  ///
  /// - Returns: 0 or an error number.
  package static func takeOwn(_ descriptor: CInt, byteCount: Int) -> CInt {
    switch state(of: descriptor, byteCount: byteCount) {
    case .own, .copied: 0
    case .missing: allocate(descriptor, byteCount: byteCount)
    case .shared, .uncertain: rewrite(descriptor, byteCount: byteCount)
    }
  }

  /// Writes the first bytes of a file again, which gives them blocks of their own.
  ///
  /// Call this while no process writes to the file.
  ///
  /// Bytes that have such blocks already are written to them, also on a full disk.
  ///
  /// - Returns: 0 or an error number.
  package static func rewrite(_ descriptor: CInt, byteCount: Int) -> CInt {
    copy(byteCount, from: descriptor, to: descriptor) && fdatasync(descriptor) == 0 ? 0 : errno
  }

  /// Copies the first bytes of a file by reading and writing, because a copy by the file system can share blocks.
  ///
  /// - Returns: False with the reason in `errno`.
  package static func copy(_ byteCount: Int, from source: CInt, to copy: CInt) -> Bool {
    var buffer = [UInt8](repeating: 0, count: 256 << 10)
    var offset = 0
    while offset < byteCount {
      let count = pread(source, &buffer, min(buffer.count, byteCount - offset), off_t(offset))
      guard count > 0 else {
        if count == 0 { errno = EIO }
        return false
      }
      let written = pwrite(copy, buffer, count, off_t(offset))
      guard written > 0 else { return false }
      offset += written
    }
    return true
  }

  /// Prevents that each write to an empty file needs another block. Does nothing where that is so anyway.
  package static func prepareEmptyFile(_ descriptor: CInt) {
    if cfiles_copies_on_write(descriptor) != 0 { cfiles_set_flag_against_copies(descriptor) }
  }

  /// Allocates blocks for the first bytes of a file, and extends it if necessary.
  ///
  /// - Returns: 0 or an error number. A file system that cannot allocate blocks is no error.
  package static func allocate(_ descriptor: CInt, byteCount: Int) -> CInt {
    while cfiles_allocate(descriptor, off_t(byteCount)) != 0 {
      switch errno {
      case EINTR: continue
      case EOPNOTSUPP, ENOSYS: return 0
      default: return errno
      }
    }
    return 0
  }

  /// Allocates blocks of its own for an empty file, which then has this length.
  ///
  /// - Returns: 0 or an error number.
  package static func allocateEmptyFile(_ descriptor: CInt, byteCount: Int) -> CInt {
    prepareEmptyFile(descriptor)
    return posix_fallocate(descriptor, 0, off_t(byteCount))
  }
}

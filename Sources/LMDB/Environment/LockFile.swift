internal import CFiles
internal import CLMDB
internal import Glibc
internal import SystemFiles

/// LMDB's `lock.mdb`, which all processes map: the write lock, and 64 bytes per reader slot.
///
/// The ``layout`` depends on the processor. The integers are in the machine's byte order:
///
/// | Part | Content |
/// |---|---|
/// | the beginning | 4 bytes of magic number |
/// | `reader_count` | 4 bytes: how many reader slots were ever in use |
/// | `write_mutex` | a robust mutex; the first 4 bytes are not 0 while it is held, and after its holder has died |
/// | `readers` | slots of 64 bytes: 8 of snapshot, all ones between transactions; 4 of process ID, 0 in a free slot |
///
/// LMDB creates it sparse. On a full disk, a write to a page that needs a block would raise a signal instead of an
/// error. The file therefore gets all blocks before LMDB maps it; see ``MappedFileBlocks``.
package enum LockFile {
  static let name = "lock.mdb"
  static let magic: UInt32 = 0xBEEF_C0DE
  static let slotByteCount = 64

  /// The offsets of the file's parts in bytes.
  static let layout = clmdb_make_lock_layout(MemoryLayout<pthread_mutex_t>.size)

  /// Returns the file's length for a number of reader slots.
  static func byteCount(slotCount: Int) -> Int { layout.readers + slotByteCount * slotCount }

  /// Returns the number of reader slots in a file of this length.
  package static func slotCount(byteCount: Int) -> Int { (byteCount - layout.readers) / slotByteCount }

  /// Returns the identity of a directory's lock file; nil if it has none.
  static func identity(inDirectory directory: String) -> DirectoryIdentity? {
    DirectoryIdentity(path: "\(directory)/\(name)")
  }

  /// Whether another process has an environment of a directory open, as any program with LMDB may.
  ///
  /// False without the file, and if this process has an environment of the directory open: closing the file again would
  /// then release LMDB's lock on it.
  package static func isInUse(inDirectory directory: String) -> Bool {
    guard let identity = DirectoryIdentity(path: directory), !EnvironmentRegistry.mayBeOpen(identity) else {
      return false
    }
    // LMDB holds a shared lock on the first byte. O_NONBLOCK: do not wait for the writer of a pipe at this path.
    let file = LockDescriptor("\(directory)/\(name)", O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)
    return file?.areLockedByOthers(0..<1) ?? false
  }

  /// Returns an error if a directory does not have the expected lock file. Nil expects none.
  static func check(inDirectory directory: String, is expected: DirectoryIdentity?) -> LMDBError? {
    guard let expected, identity(inDirectory: directory) != expected else { return nil }
    return LMDBError(code: .lockFileReplaced, function: "stat")
  }

  /// Allocates the file on disk.
  ///
  /// A process that uses the directory alone also sets the file's length, which determines the number of slots. If
  /// other processes use the directory, the length stays, because they have mapped the file.
  ///
  /// No environment of the directory may be open in this process, because closing the file releases the process's POSIX
  /// locks on it. No process may open or close an environment of it at the same time; see ``DirectoryLock``.
  /// - Parameter slotCount: The number of slots; nil for the present number, or 1024 in a new file.
  static func allocate(directoryDescriptor: CInt, slotCount: Int?, mode: mode_t) -> LMDBError? {
    let descriptor = openat(directoryDescriptor, name, O_RDWR | O_CREAT | O_CLOEXEC, mode)
    guard descriptor >= 0 else { return .system("open") }
    defer { close(descriptor) }
    // LMDB holds a shared lock on the first byte while it has the file open.
    var firstByteLock = flock()
    firstByteLock.l_type = Int16(F_WRLCK)
    firstByteLock.l_whence = Int16(SEEK_SET)
    firstByteLock.l_len = 1
    let isAlone = fcntl(descriptor, F_SETLK, &firstByteLock) == 0
    var status = stat()
    guard fstat(descriptor, &status) == 0 else { return .system("fstat") }
    var length = Int(status.st_size)
    if isAlone {
      length = slotCount.map(byteCount(slotCount:)) ?? (length > 0 ? length : byteCount(slotCount: 1024))
      // LMDB initializes the file again, so its content can go.
      let isCopied = MappedFileBlocks.state(of: descriptor, byteCount: Int(status.st_size)) == .copied
      let kept = isCopied ? 0 : min(length, Int(status.st_size))
      if kept < Int(status.st_size), ftruncate(descriptor, off_t(kept)) != 0 { return .system("ftruncate") }
      if kept == 0 { MappedFileBlocks.prepareEmptyFile(descriptor) }
      let code = MappedFileBlocks.takeOwn(descriptor, byteCount: kept)
      guard code == 0 else { return LMDBError(code: .init(rawValue: code), function: "pwrite") }
      status.st_size = off_t(kept)
    }
    guard length > 0,
      Int(status.st_size) < length || MappedFileBlocks.state(of: descriptor, byteCount: length) == .missing
    else { return nil }
    if cfiles_allocate(descriptor, off_t(length)) == 0 { return nil }
    guard errno == EOPNOTSUPP || errno == ENOSYS else { return .system("fallocate") }
    // Overwrite the file only if no other process uses it; LMDB then initializes it again.
    return isAlone ? writeZeros(descriptor, length) : nil
  }

  private static func writeZeros(_ descriptor: CInt, _ length: Int) -> LMDBError? {
    let zeros = [UInt8](repeating: 0, count: 64 << 10)
    var offset = 0
    while offset < length {
      let written = pwrite(descriptor, zeros, min(zeros.count, length - offset), off_t(offset))
      if written < 0, errno == EINTR { continue }
      guard written > 0 else { return .system("pwrite") }
      offset += written
    }
    return nil
  }
}

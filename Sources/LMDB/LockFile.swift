internal import CLMDB
internal import Glibc

/// LMDB's `lock.mdb`, which all processes map: the write lock, and 64 bytes for each reader slot.
///
/// LMDB makes it sparse. A page without a block is then a signal, not an error, when a reader slot on it is first used and
/// the disk is full. So the file is allocated in full before LMDB maps it.
enum LockFile {
  static let name = "lock.mdb"

  /// The length of a file with so many reader slots: LMDB's header has two slots' length more than one slot.
  static func byteCount(slotCount: Int) -> Int { 64 * slotCount + 128 }

  /// Allocates the file on the disk. A process that has the directory alone also gives the file its length; from the length
  /// LMDB takes the number of slots. For others the length stays: they have mapped that much.
  ///
  /// No environment of the directory may be open in this process: closing the file drops the process's POSIX locks on it.
  /// And none may be opened or closed meanwhile, in any process: see ``DirectoryLock``.
  /// - Parameter slotCount: nil for as many as the file has, or 1024 in a new file.
  static func allocate(directoryDescriptor: CInt, slotCount: Int?, mode: mode_t) -> LMDBError? {
    let descriptor = openat(directoryDescriptor, name, O_RDWR | O_CREAT | O_CLOEXEC, mode)
    guard descriptor >= 0 else { return .system("open") }
    defer { close(descriptor) }
    // LMDB holds a shared lock on the first byte as long as it has the file open.
    var wholeUse = flock()
    wholeUse.l_type = Int16(F_WRLCK)
    wholeUse.l_whence = Int16(SEEK_SET)
    wholeUse.l_len = 1
    let isAlone = fcntl(descriptor, F_SETLK, &wholeUse) == 0
    var status = stat()
    guard fstat(descriptor, &status) == 0 else { return .system("fstat") }
    var length = Int(status.st_size)
    if isAlone {
      length = slotCount.map(byteCount(slotCount:)) ?? (length > 0 ? length : byteCount(slotCount: 1024))
      if length < Int(status.st_size), ftruncate(descriptor, off_t(length)) != 0 { return .system("ftruncate") }
    }
    guard length > 0, Int(status.st_blocks) * 512 < length || Int(status.st_size) < length else { return nil }
    if clmdb_allocate(descriptor, off_t(length)) == 0 { return nil }
    guard errno == EOPNOTSUPP || errno == ENOSYS else { return .system("fallocate") }
    // Nobody uses what the file holds, and LMDB begins it again.
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

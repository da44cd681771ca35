internal import CFiles
internal import Glibc
internal import SystemFiles

extension LMDBEnvironment {
  /// Extends the data file to its last page. Call this after a commit.
  ///
  /// A value that is stored and removed within one transaction can leave pages that count as used and were never
  /// written. The file is then shorter than its meta page says, like a truncated file, and
  /// ``DataFile/inspect(path:mapByteCount:)`` cannot distinguish the two. Costs an `fstat`. A short file is extended
  /// within a write transaction, without using disk space. Traps within a write transaction if the file is short.
  /// - Returns: Whether the file was short.
  /// - Throws: ``LMDBError``. `mdb_env_get_fd`, `ftruncate`.
  @discardableResult
  public func extendFileToLastPage() throws(LMDBError) -> Bool {
    guard !isForked else { throw LMDBError(code: .forked, function: "mdb_env_get_fd") }
    try beginCall("mdb_env_get_fd")
    defer { endCall() }
    let descriptor = try dataDescriptor()
    guard try missingByteCount(descriptor) != nil else { return false }
    // The write transaction prevents other writers from extending the file in between. Otherwise ftruncate would cut
    // off their pages.
    return try write { (_) throws(LMDBError) in
      guard let byteCount = try missingByteCount(descriptor) else { return false }
      let rc = WriteSignals.suppressing { ftruncate(descriptor, off_t(byteCount)) }
      guard rc == 0 else { throw .system("ftruncate") }
      return true
    }
  }

  /// Allocates disk space for pages beyond the last one, so that later commits find it even on a full disk.
  ///
  /// Extends the file. ``releaseFreePages(from:maximumPageCount:minimumRunPageCount:)`` takes the space back. Any thread
  /// may call this at any time. Costs a system call. Does nothing on a file system that cannot allocate space.
  /// - Parameter end: The number of the page after the last one to have space.
  /// - Throws: ``LMDBError``: ``LMDBError/Code/noSpace`` or ``LMDBError/Code/quotaExceeded``. `mdb_env_get_fd`,
  ///   `fallocate`.
  public func reserveFileSpace(upToPage end: Int) throws(LMDBError) {
    guard !isForked else { throw LMDBError(code: .forked, function: "mdb_env_get_fd") }
    try beginCall("mdb_env_get_fd")
    defer { endCall() }
    let descriptor = try dataDescriptor()
    let start = (information.lastPageNumber + 1) * pageByteCount
    guard end * pageByteCount > start else { return }
    let length = end * pageByteCount - start
    let rc = WriteSignals.suppressing { cfiles_allocate_range(descriptor, off_t(start), off_t(length)) }
    if rc != 0, errno == ENOSPC || errno == EDQUOT { throw .system("fallocate") }
  }

  /// Returns the length that the file needs, or nil if it is long enough.
  private func missingByteCount(_ descriptor: CInt) throws(LMDBError) -> Int? {
    var status = stat()
    guard fstat(descriptor, &status) == 0 else { throw .system("fstat") }
    let needed = (information.lastPageNumber + 1) * pageByteCount
    return Int(status.st_size) < needed ? needed : nil
  }
}

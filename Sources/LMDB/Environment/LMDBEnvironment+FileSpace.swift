internal import CFiles
internal import CLMDB
internal import Glibc
internal import SystemFiles

extension LMDBEnvironment {
  /// Allocates disk space for pages beyond the last one, so that later commits find it even on a full disk.
  ///
  /// Extends the file. ``releaseFreePages(from:maximumPageCount:minimumRunPageCount:)`` takes the space back. Any
  /// thread may call this at any time. Costs a system call. Does nothing on a file system that cannot allocate space.
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

  /// Returns the descriptor of the data file. Call this within a transaction, which keeps the environment open.
  func dataDescriptor() throws(LMDBError) -> CInt {
    var descriptor: CInt = -1
    let rc = mdb_env_get_fd(pointer, &descriptor)
    guard rc == 0 else { throw LMDBError(rc, "mdb_env_get_fd") }
    return descriptor
  }
}

internal import CLMDB
internal import Glibc

extension Environment {
  /// What ``releaseFreePages(maximumRunCount:)`` did.
  public struct ReleasedPages: Sendable, Hashable {
    /// The bytes that no longer take room on the disk.
    public var byteCount = 0
    /// Whether every free page that could be given back has been.
    public var isComplete = true
  }

  /// Gives pages that hold nothing any more back to the file system, which LMDB never does: the file keeps its length,
  /// and takes fewer blocks on the disk.
  ///
  /// A page is given back only if LMDB itself might overwrite it now: it was freed before the last commit, and before
  /// the snapshot of every reader in every process; so neither a reader nor a recovery after a power cut can look at it.
  /// To have pages count that the last transactions freed, commit something twice before. LMDB writes a page in full
  /// before it reads it again, so the holes need no care; to fill one takes room on the disk again.
  ///
  /// Holds the write lock, and syncs the file first. Costs a walk over the list of free pages and a system call for each
  /// run of neighbouring ones. Where the file system cannot make holes it does nothing.
  /// - Parameter maximumRunCount: how many runs of pages are given back at most; that bounds how long writers wait. The
  ///   default is 1024.
  /// - Throws: ``LMDBError``: ``LMDBError/Code/corrupted`` when the list of free pages cannot be true. `mdb_env_sync`,
  ///   `mdb_reader_list`, `fallocate`.
  @discardableResult
  public func releaseFreePages(maximumRunCount: Int = 1024) throws(LMDBError) -> ReleasedPages {
    // A write transaction that writes nothing keeps others from taking the pages meanwhile. Its own view of the list of
    // free pages cannot be walked; the last commit's is the same.
    try write { (_) throws(LMDBError) in
      try synchronize()
      let oldest = oldestSnapshot()
      let pages = try read { (transaction) throws(LMDBError) in
        try freePages(olderThan: min(oldest, transaction.id), in: transaction)
      }
      return try punch(pages, maximumRunCount: maximumRunCount)
    }
  }

  /// The oldest snapshot that a reader of any process looks at; the greatest number if there is none.
  private func oldestSnapshot() -> UInt64 {
    var oldest = UInt64.max
    withUnsafeMutablePointer(to: &oldest) { context in
      // One line for each reader: process, thread, and snapshot, which is "-" for one that looks at nothing.
      _ = mdb_reader_list(
        pointer,
        { line, context in
          guard let line, let oldest = context?.assumingMemoryBound(to: UInt64.self) else { return 0 }
          let columns = String(cString: line).split(whereSeparator: { $0 == " " || $0 == "\n" })
          if columns.count == 3, let snapshot = UInt64(columns[2]) { oldest.pointee = min(oldest.pointee, snapshot) }
          return 0
        }, context)
    }
    return oldest
  }

  /// The pages in the list of free pages that transactions before `limit` freed, in ascending order.
  private func freePages(
    olderThan limit: UInt64, in transaction: borrowing ReadTransaction
  ) throws(LMDBError) -> [Int] {
    let end = information.lastPageNumber + 1
    let cursor = try openCursor(transaction.handle.pointer, 0)
    defer { closeCursor(cursor) }
    let nowhere = UnsafeRawBufferPointer(start: nil, count: 0)
    var pages: [Int] = []
    var entry = try moveCursor(cursor, .first, nowhere)
    while let found = entry {
      // Key: the transaction, in the machine's byte order. Value: a count, and so many page numbers.
      guard found.key.count == 8, found.value.count >= 8 else { throw Self.badFreeList }
      guard found.key.loadUnaligned(as: UInt64.self) < limit else { break }
      let count = found.value.loadUnaligned(as: Int.self)
      guard count >= 0, count <= found.value.count / 8 - 1 else { throw Self.badFreeList }
      for index in 0..<count {
        let page = found.value.loadUnaligned(fromByteOffset: (index + 1) * 8, as: Int.self)
        guard (2..<end).contains(page) else { throw Self.badFreeList }
        pages.append(page)
      }
      entry = try moveCursor(cursor, .next, nowhere)
    }
    pages.sort()
    return pages
  }

  private static var badFreeList: LMDBError { LMDBError(code: .corrupted, function: "mdb_cursor_get") }

  private func punch(_ pages: [Int], maximumRunCount: Int) throws(LMDBError) -> ReleasedPages {
    var descriptor: CInt = -1
    let rc = mdb_env_get_fd(pointer, &descriptor)
    guard rc == 0 else { throw LMDBError(rc, "mdb_env_get_fd") }
    let before = try blockByteCount(descriptor)
    var released = ReleasedPages()
    var runCount = 0
    var start = 0
    while start < pages.count {
      var end = start + 1
      while end < pages.count, pages[end] == pages[end - 1] + 1 { end += 1 }
      let offset = off_t(pages[start] * pageByteCount)
      let length = off_t((end - start) * pageByteCount)
      start = end
      // The file's offset is ours while no one else writes; LMDB sets it before each use.
      let data = clmdb_next_data(descriptor, offset)
      if data < 0 || data >= offset + length { continue }
      if runCount == maximumRunCount {
        released.isComplete = false
        break
      }
      runCount += 1
      guard clmdb_punch_hole(descriptor, offset, length) == 0 else {
        if errno == EINTR { released.isComplete = false }
        // No holes on this file system, or none now.
        break
      }
    }
    released.byteCount = max(0, before - (try blockByteCount(descriptor)))
    return released
  }

  private func blockByteCount(_ descriptor: CInt) throws(LMDBError) -> Int {
    var status = stat()
    guard fstat(descriptor, &status) == 0 else { throw .system("fstat") }
    return Int(status.st_blocks) * 512
  }
}

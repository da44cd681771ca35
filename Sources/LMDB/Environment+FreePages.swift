internal import CLMDB
internal import Glibc

extension Environment {
  /// A place in the list of free pages.
  public struct FreePagePosition: Sendable, Hashable {
    /// The transaction that freed the page.
    var transactionID: UInt64
    /// The page's place among those that it freed.
    var index: Int

    /// The beginning of the list.
    public static let start = FreePagePosition(transactionID: 0, index: 0)
  }

  /// What ``releaseFreePages(from:maximumPageCount:)`` did.
  public struct ReleasedPages: Sendable, Hashable {
    /// The bytes that no longer take room on the disk.
    public var byteCount = 0
    /// Where to go on; nil when every free page has been looked at that could be given back.
    public var next: FreePagePosition?
  }

  /// Gives pages that hold nothing any more back to the file system, which LMDB never does: the file keeps its length,
  /// and takes fewer blocks on the disk.
  ///
  /// A page is given back only if LMDB itself might overwrite it now: it was freed before the last commit, and before
  /// the snapshot of every reader in every process; so neither a reader nor a recovery after a power cut can look at it.
  /// To have pages count that the last transactions freed, commit something twice before. LMDB writes a page in full
  /// before it reads it again, so the holes need no care; to fill one takes room on the disk again.
  ///
  /// Holds the write lock, and syncs the file first. Costs a system call or two for each run of neighbouring pages. Where the
  /// file system cannot make holes it does nothing.
  /// - Parameters:
  ///   - position: where to begin in the list of free pages, which is in the order in which they were freed.
  ///   - maximumPageCount: how many pages are looked at; that bounds how long writers wait. No limit by default.
  /// - Throws: ``LMDBError``: ``LMDBError/Code/corrupted`` when the list of free pages cannot be true. `mdb_env_sync`,
  ///   `mdb_reader_list`, `fallocate`.
  @discardableResult
  public func releaseFreePages(
    from position: FreePagePosition = .start, maximumPageCount: Int = .max
  ) throws(LMDBError) -> ReleasedPages {
    // A write transaction that writes nothing keeps others from taking the pages meanwhile. Its own view of the list of
    // free pages cannot be walked; the last commit's is the same.
    try write { (_) throws(LMDBError) in
      try synchronize()
      let oldest = oldestSnapshot()
      let (pages, next) = try read { (transaction) throws(LMDBError) in
        try freePages(
          olderThan: min(oldest, transaction.id), from: position, maximumCount: maximumPageCount, in: transaction)
      }
      return ReleasedPages(byteCount: try punch(pages), next: next)
    }
  }

  /// By how many pages those in use and the free ones do not add up to the file's: 0, unless the list of free pages is damaged. What
  /// is missing from the list can never be used again.
  ///
  /// Holds the write lock. To be called when all tables are open.
  /// - Throws: ``LMDBError``: ``LMDBError/Code/corrupted`` when the list cannot be true.
  /// - Complexity: O(free pages).
  public func lostPageCount() throws(LMDBError) -> Int {
    try write { (_) throws(LMDBError) in
      try read { (transaction) throws(LMDBError) in
        let (free, _) = try freePages(olderThan: .max, from: .start, maximumCount: .max, in: transaction)
        return abs(information.lastPageNumber + 1 - (try livePageCount(in: transaction)) - free.count)
      }
    }
  }

  /// The oldest snapshot that a reader of any process looks at, as the transaction that made it; the greatest number if there
  /// is none. Pages that were freed since cannot be used anew. `mdb_reader_list`.
  public func oldestSnapshot() -> UInt64 {
    var oldest = UInt64.max
    do throws(LMDBError) {
      try beginCall("mdb_reader_list")
    } catch {
      // It was closed: nobody of this process looks at anything.
      return oldest
    }
    defer { endCall() }
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

  /// The pages in the list of free pages that transactions before `limit` freed, in ascending order, and where to go on.
  private func freePages(
    olderThan limit: UInt64, from position: FreePagePosition, maximumCount: Int,
    in transaction: borrowing ReadTransaction
  ) throws(LMDBError) -> (pages: [Int], next: FreePagePosition?) {
    let end = information.lastPageNumber + 1
    let cursor = try openCursor(transaction.handle.pointer, 0)
    defer { closeCursor(cursor) }
    var start = position.transactionID
    var pages: [Int] = []
    var next: FreePagePosition?
    // Key: the transaction, in the machine's byte order. Value: a count, and so many page numbers.
    var entry = try withUnsafeBytes(of: &start) { (key) throws(LMDBError) in try moveCursor(cursor, .atOrAfter, key) }
    while let found = entry, next == nil {
      guard found.key.count == 8, found.value.count >= 8 else { throw Self.badFreeList }
      let freedBy = found.key.loadUnaligned(as: UInt64.self)
      guard freedBy < limit else { break }
      let count = found.value.loadUnaligned(as: Int.self)
      guard count >= 0, count <= found.value.count / 8 - 1 else { throw Self.badFreeList }
      var index = freedBy == position.transactionID ? min(position.index, count) : 0
      while index < count {
        if pages.count == maximumCount {
          next = FreePagePosition(transactionID: freedBy, index: index)
          break
        }
        index += 1
        let page = found.value.loadUnaligned(fromByteOffset: index * 8, as: Int.self)
        guard (2..<end).contains(page) else { throw Self.badFreeList }
        pages.append(page)
      }
      entry = try moveCursor(cursor, .next, UnsafeRawBufferPointer(start: nil, count: 0))
    }
    pages.sort()
    return (pages, next)
  }

  private static var badFreeList: LMDBError { LMDBError(code: .corrupted, function: "mdb_cursor_get") }

  /// Makes holes of pages; returns the bytes that came free.
  private func punch(_ pages: [Int]) throws(LMDBError) -> Int {
    var descriptor: CInt = -1
    let rc = mdb_env_get_fd(pointer, &descriptor)
    guard rc == 0 else { throw LMDBError(rc, "mdb_env_get_fd") }
    let before = try blockByteCount(descriptor)
    for run in Self.runs(of: pages) {
      let offset = off_t(run.lowerBound * pageByteCount)
      let length = off_t(run.count * pageByteCount)
      // The file's offset is ours while no one else writes; LMDB sets it before each use.
      let data = clmdb_next_data(descriptor, offset)
      if data < 0 || data >= offset + length { continue }
      // No holes on this file system, or none now.
      guard clmdb_punch_hole(descriptor, offset, length) == 0 else { break }
    }
    return max(0, before - (try blockByteCount(descriptor)))
  }

  /// Neighbouring pages, the longest runs first: each costs a system call, however long it is.
  private static func runs(of pages: [Int]) -> [Range<Int>] {
    var runs: [Range<Int>] = []
    for page in pages {
      if let last = runs.last, last.upperBound == page {
        runs[runs.count - 1] = last.lowerBound..<(page + 1)
      } else {
        runs.append(page..<(page + 1))
      }
    }
    return runs.sorted { $0.count > $1.count }
  }

  private func blockByteCount(_ descriptor: CInt) throws(LMDBError) -> Int {
    var status = stat()
    guard fstat(descriptor, &status) == 0 else { throw .system("fstat") }
    return Int(status.st_blocks) * 512
  }
}

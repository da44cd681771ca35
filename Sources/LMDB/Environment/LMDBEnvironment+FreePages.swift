internal import CFiles
internal import CLMDB
internal import Glibc

extension LMDBEnvironment {
  /// A position in LMDB's free list.
  public struct FreePagePosition: Sendable, Hashable {
    /// The transaction that freed the page.
    var transactionID: UInt64
    /// The index of the page among the pages that this transaction freed.
    var index: Int

    /// The beginning of the free list.
    public static let start = FreePagePosition(transactionID: 0, index: 0)
  }

  /// The result of ``releaseFreePages(from:maximumPageCount:minimumRunPageCount:)``.
  public struct ReleasedPages: Sendable, Hashable {
    /// The disk space that was released, in bytes.
    public var byteCount = 0
    /// The position to continue from; nil when all free pages were examined.
    public var next: FreePagePosition?
  }

  /// Punches holes for free pages, so that the data file uses fewer disk blocks and keeps its length.
  ///
  /// LMDB never does this. A page is released only if LMDB itself could overwrite it now: it was freed before the last
  /// commit, and before the snapshot of every reader in every process. Neither a reader nor a recovery after a power
  /// failure can then read it. To include the pages that the last transactions freed, commit twice before the call.
  /// LMDB writes a page completely before it reads the page again, so holes need no special care. Writing to a hole
  /// takes disk space again.
  ///
  /// From the start of the list, also releases the pages at the end of the file that no commit has counted, and those
  /// of ``reserveFileSpace(upToPage:)``.
  ///
  /// Holds the write lock, and syncs the file first. Costs one or two system calls for each run of adjacent pages. Does
  /// nothing on a file system without hole punching.
  /// - Parameters:
  ///   - position: The position to begin at in the free list, whose order is the order of freeing.
  ///   - maximumPageCount: The maximum number of pages to examine, which limits how long writers wait. No limit by
  ///     default.
  ///   - minimumRunPageCount: Shorter runs of adjacent pages are skipped. 1 by default.
  /// - Throws: ``LMDBError``: ``LMDBError/Code/corrupted`` if the free list is invalid. `mdb_env_sync`,
  ///   `mdb_reader_list`, `fallocate`.
  @discardableResult
  public func releaseFreePages(
    from position: FreePagePosition = .start, maximumPageCount: Int = .max, minimumRunPageCount: Int = 1
  ) throws(LMDBError) -> ReleasedPages {
    // An empty write transaction prevents writers from taking the pages. Its own view of the free list cannot be
    // scanned, but the last commit's free list is the same.
    try write { (_) throws(LMDBError) in
      try synchronize()
      let oldest = oldestReaderTransactionID()
      let (pages, next) = try read { (transaction) throws(LMDBError) in
        try freePages(
          olderThan: min(oldest, transaction.id), from: position, maximumCount: maximumPageCount, in: transaction)
      }
      let descriptor = try dataDescriptor()
      let before = try blockByteCount(descriptor)
      if position == .start { try punchBeyondLastCommit(descriptor) }
      punch(pages, minimumRunPageCount: minimumRunPageCount, descriptor)
      return ReleasedPages(byteCount: max(0, before - (try blockByteCount(descriptor))), next: next)
    }
  }

  /// Returns the pages that transactions before `limit` freed, in ascending order, and the position to continue from.
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
    // Key: the transaction ID in the machine's byte order. Value: a count, followed by as many page numbers.
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
      entry = try moveCursor(cursor, .next)
    }
    pages.sort()
    return (pages, next)
  }

  /// Punches a hole for the pages at the end of the file that no commit has counted: reserved ones, and those that a
  /// process wrote before it was killed.
  private func punchBeyondLastCommit(_ descriptor: CInt) throws(LMDBError) {
    let offset = off_t((information.lastPageNumber + 1) * pageByteCount)
    let length = off_t(try fileStatus(descriptor).st_size) - offset
    if length > 0 { cfiles_punch_hole(descriptor, offset, length) }
  }

  private static var badFreeList: LMDBError { LMDBError(code: .corrupted, function: "mdb_cursor_get") }

  /// Punches holes for pages.
  private func punch(_ pages: [Int], minimumRunPageCount: Int, _ descriptor: CInt) {
    // Longest first, because each run costs a system call regardless of its length.
    let runs = Self.runs(of: pages).filter { $0.count >= minimumRunPageCount }.sorted { $0.count > $1.count }
    for run in runs {
      let offset = off_t(run.lowerBound * pageByteCount)
      let length = off_t(run.count * pageByteCount)
      // Looking for data moves the descriptor's file offset. That is safe: no other thread or process writes now, and
      // LMDB sets the offset before each use.
      let data = cfiles_next_data(descriptor, offset)
      // Skip a run that is already a hole.
      if data < 0 || data >= offset + length { continue }
      // The file system does not support hole punching, or cannot punch holes now.
      guard cfiles_punch_hole(descriptor, offset, length) == 0 else { break }
    }
  }

  /// Groups adjacent pages into runs.
  ///
  /// - Parameter pages: The numbers of pages in ascending order.
  static func runs(of pages: [Int]) -> [Range<Int>] {
    var runs: [Range<Int>] = []
    for page in pages {
      if let last = runs.last, last.upperBound == page {
        runs[runs.count - 1] = last.lowerBound..<(page + 1)
      } else {
        runs.append(page..<(page + 1))
      }
    }
    return runs
  }

  private func blockByteCount(_ descriptor: CInt) throws(LMDBError) -> Int {
    Int(try fileStatus(descriptor).st_blocks) * 512
  }

  private func fileStatus(_ descriptor: CInt) throws(LMDBError) -> stat {
    var status = stat()
    guard fstat(descriptor, &status) == 0 else { throw .system("fstat") }
    return status
  }
}

internal import CLMDB
internal import Glibc
internal import SystemFiles

extension DataFile {
  /// The progress of a stepwise walk over the trees.
  public struct StructurePosition: Sendable, Hashable {
    /// The beginning of a walk.
    public static let start = StructurePosition(tree: 0, key: nil)

    /// 0 for the free list, 1 for the main table, then the named tables in order.
    var tree: Int
    /// The last key that was checked.
    var key: [UInt8]?
  }

  /// The result of a walk over the trees, or of a step of it.
  public enum StructureFinding: Sendable, Hashable {
    /// liblmdb can follow all pointers.
    case sound
    /// The error, as a phrase.
    case broken(String)
    /// No error so far; the walk continues from this position.
    case unfinished(StructurePosition)
  }

  /// Checks all trees of a data file and its free list with plain reads.
  ///
  /// liblmdb trusts every page that it maps, and crashes the process on a truncated, zeroed or overwritten one. Call
  /// this while no process has the file open, after ``inspect(path:mapByteCount:)`` found it healthy. Values in
  /// overflow pages are not read, except for their page header; use checksums for them.
  /// - Parameters:
  ///   - path: The path of the data file itself.
  ///   - maximumPageCount: The maximum number of pages of the file. A larger file is not checked.
  /// - Complexity: O(branch and leaf pages), one read of the file for each.
  public static func findBrokenStructure(path: String, maximumPageCount: Int) -> StructureFinding {
    let descriptor = FileDescriptor.open(path, O_RDONLY | O_CLOEXEC)
    guard descriptor >= 0 else { return .broken("it cannot be read") }
    defer { close(descriptor) }
    return withWalk(descriptor: descriptor) { (walk: inout StructureWalk) throws(BrokenStructure) -> StructureFinding in
      let meta = try walk.newestMeta()
      guard try meta.load(136, as: UInt64.self) < maximumPageCount else { return .unfinished(.start) }
      try walk.run(from: meta)
      return .sound
    }
  }

  /// Extends a file to its last page, if the missing pages are free.
  ///
  /// liblmdb may count pages at the end that it never wrote, and a process may die before
  /// ``LMDBEnvironment/extendFileToLastPage()``. Call this while no process has the file open.
  /// - Parameters:
  ///   - path: The path of the data file.
  ///   - maximumPageCount: The maximum number of pages of the free list to read, newest first.
  /// - Returns: Whether the file is long enough now. False if pages in use are missing, or if the free list is longer.
  public static func extendFileToLastPage(path: String, maximumPageCount: Int) -> Bool {
    let descriptor = FileDescriptor.open(path, O_RDWR | O_CLOEXEC)
    guard descriptor >= 0 else { return false }
    defer { close(descriptor) }
    var walk = StructureWalk(descriptor: descriptor, pageByteCount: Int(getpagesize()))
    do throws(BrokenStructure) {
      let meta = try walk.newestMeta()
      guard let byteCount = try walk.neededByteCount(meta, maximumPageCount: maximumPageCount) else { return false }
      return ftruncate(descriptor, off_t(byteCount)) == 0
    } catch {
      return false
    }
  }

  /// Runs `body` with a walk over an open file, and turns its error into a finding.
  static func withWalk(
    descriptor: CInt, _ body: (inout StructureWalk) throws(BrokenStructure) -> StructureFinding
  ) -> StructureFinding {
    var walk = StructureWalk(descriptor: descriptor, pageByteCount: Int(getpagesize()))
    do throws(BrokenStructure) {
      return try body(&walk)
    } catch {
      return .broken(error.reason)
    }
  }
}

extension LMDBEnvironment {
  /// Checks all trees of the last commit.
  ///
  /// Holds the write lock, so writers of all processes wait; readers do not. For a file that no process has open, use
  /// ``DataFile/findBrokenStructure(path:maximumPageCount:)``.
  /// - Parameter maximumPageCount: The maximum number of pages of the file. A larger file is not checked.
  /// - Throws: ``LMDBError``: `mdb_txn_begin`, `mdb_env_get_fd`.
  /// - Complexity: O(branch and leaf pages), one read of the file for each.
  public func findBrokenStructure(maximumPageCount: Int) throws(LMDBError) -> DataFile.StructureFinding {
    guard information.lastPageNumber < maximumPageCount else { return .unfinished(.start) }
    // An empty write transaction keeps the pages unchanged.
    return try write { (_) throws(LMDBError) in
      DataFile.withWalk(descriptor: try dataDescriptor()) {
        (walk: inout StructureWalk) throws(BrokenStructure) -> DataFile.StructureFinding in
        try walk.run(from: try walk.newestMeta())
        return .sound
      }
    }
  }

  /// Runs one step of a walk over all trees, in its own read transaction.
  ///
  /// No writer waits, and no snapshot is held for long. Pages move between steps, so the walk does not notice two
  /// errors that ``findBrokenStructure(maximumPageCount:)`` finds: a page that is used twice, and wrong counts of pages
  /// and entries.
  /// - Parameters:
  ///   - position: The end of the previous step.
  ///   - pageCount: The approximate number of pages to read.
  ///   - table: The name of the only table to check; all by default.
  /// - Throws: ``LMDBError``: `mdb_txn_begin`, `mdb_env_get_fd`.
  /// - Complexity: O(`pageCount`).
  public func findBrokenStructure(
    from position: DataFile.StructurePosition, pageCount: Int, inTable table: String? = nil
  ) throws(LMDBError) -> DataFile.StructureFinding {
    try read { (transaction) throws(LMDBError) in
      DataFile.withWalk(descriptor: try dataDescriptor()) {
        (walk: inout StructureWalk) throws(BrokenStructure) -> DataFile.StructureFinding in
        // There were two commits since the transaction began: try again later.
        guard let meta = try walk.meta(ofCommit: transaction.id) else { return .unfinished(position) }
        return try walk.step(
          from: position, meta: meta, pageCount: pageCount, table: table.map { Array($0.utf8) })
      }
    }
  }

  /// Checks every page on the path to a key with plain reads, before liblmdb follows it.
  ///
  /// - Parameters:
  ///   - key: The bytes of the key, which need not exist.
  ///   - table: The table's name.
  ///   - transaction: The transaction whose state of the table is checked.
  /// - Returns: The error as a phrase; nil if the path is sound.
  /// - Throws: ``LMDBError/Code/temporarilyUnavailable`` if two commits since the transaction began replaced its meta
  ///   page.
  /// - Complexity: O(log entries), one read of the file for each page.
  public func findBrokenPath(
    to key: UnsafeRawBufferPointer, inTable table: String, _ transaction: borrowing ReadTransaction
  ) throws(LMDBError) -> String? {
    let snapshot = transaction.id
    let finding = DataFile.withWalk(descriptor: try dataDescriptor()) {
      (walk: inout StructureWalk) throws(BrokenStructure) -> DataFile.StructureFinding in
      guard let meta = try walk.meta(ofCommit: snapshot) else { return .unfinished(.start) }
      try walk.checkPath(to: [UInt8](key), table: Array(table.utf8), meta: meta)
      return .sound
    }
    switch finding {
    case .sound: return nil
    case .broken(let reason): return reason
    case .unfinished: throw LMDBError(code: .temporarilyUnavailable, function: "mdb_get")
    }
  }

  /// Returns the descriptor of the data file. Call this within a transaction, which keeps the environment open.
  func dataDescriptor() throws(LMDBError) -> CInt {
    var descriptor: CInt = -1
    let rc = mdb_env_get_fd(pointer, &descriptor)
    guard rc == 0 else { throw LMDBError(rc, "mdb_env_get_fd") }
    return descriptor
  }
}

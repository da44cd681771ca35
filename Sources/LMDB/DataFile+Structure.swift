internal import CLMDB
internal import Glibc

extension DataFile {
  /// How far a walk over the trees in steps has come.
  public struct StructurePosition: Sendable, Hashable {
    /// Where a walk begins.
    public static let start = StructurePosition(tree: 0, key: nil)

    /// 0 for the list of free pages, 1 for the table of tables, and then its tables in order.
    var tree: Int
    /// The last key that was looked at.
    var key: [UInt8]?
  }

  /// What a walk over the trees, or a step of it, has found.
  public enum StructureFinding: Sendable, Hashable {
    /// liblmdb can follow every pointer.
    case sound
    /// What is wrong, as a phrase.
    case broken(String)
    /// Nothing was found so far; the walk goes on from there.
    case unfinished(StructurePosition)
  }

  /// Walks all trees of a data file, and its list of free pages, by plain reads: liblmdb trusts every page that it maps, and
  /// ends the process on one that is cut, zeroed or scribbled on.
  ///
  /// To be called while no process has the file open, after ``inspect(path:mapByteCount:)`` found it healthy. Bodies in
  /// overflow pages are not read, only their first bytes; what they hold is for checksums to tell.
  /// - Parameters:
  ///   - path: of the data file itself.
  ///   - maximumPageCount: The most pages that a file may have to be walked over; of a larger one nothing is looked at.
  /// - Complexity: O(pages of branches and leaves), one read of the file for each.
  public static func findBrokenStructure(path: String, maximumPageCount: Int) -> StructureFinding {
    withWalk(path: path) { (walk: inout StructureWalk) throws(BrokenStructure) -> StructureFinding in
      let meta = try walk.newestMeta()
      guard try meta.load(136, as: UInt64.self) < maximumPageCount else { return .unfinished(.start) }
      try walk.run(from: meta)
      return .sound
    }
  }

  /// Makes a file as long as its last page demands, if what it lacks is free pages.
  ///
  /// liblmdb may count pages at the end that it never wrote, and a process may die before
  /// ``Environment/extendShortFile()``. To be called while no process has the file open.
  /// - Parameter maximumPageCount: The most pages of the list of free pages that are read; the newest part of it comes first.
  /// - Returns: Whether the file is long enough now. False if pages in use are missing, or the list is longer.
  public static func extendShortFile(path: String, maximumPageCount: Int) -> Bool {
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

  private static func withWalk(
    path: String, _ body: (inout StructureWalk) throws(BrokenStructure) -> StructureFinding
  ) -> StructureFinding {
    let descriptor = FileDescriptor.open(path, O_RDONLY | O_CLOEXEC)
    guard descriptor >= 0 else { return .broken("it cannot be read") }
    defer { close(descriptor) }
    return withWalk(descriptor: descriptor, body)
  }

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

extension Environment {
  /// Walks all trees of the data as the last commit left them, as ``DataFile/findBrokenStructure(path:maximumPageCount:)`` does
  /// before they are mapped.
  ///
  /// Holds the write lock, so that writers of all processes wait; readers do not.
  /// - Parameter maximumPageCount: The most pages that the file may have; of a larger one nothing is looked at.
  /// - Throws: ``LMDBError``: `mdb_txn_begin`, `mdb_env_get_fd`.
  /// - Complexity: O(pages of branches and leaves), one read of the file for each.
  public func findBrokenStructure(maximumPageCount: Int) throws(LMDBError) -> DataFile.StructureFinding {
    guard information.lastPageNumber < maximumPageCount else { return .unfinished(.start) }
    // A write transaction that writes nothing keeps the pages as they are.
    return try write { (_) throws(LMDBError) in
      DataFile.withWalk(descriptor: try dataDescriptor()) {
        (walk: inout StructureWalk) throws(BrokenStructure) -> DataFile.StructureFinding in
        try walk.run(from: try walk.newestMeta())
        return .sound
      }
    }
  }

  /// One step of a walk over all trees, in a read transaction of its own: nobody waits, and no snapshot is pinned for long.
  ///
  /// Pages move between steps, so two things stay unseen which ``findBrokenStructure(maximumPageCount:)`` sees: a page that two
  /// trees, or a tree and the list of free pages, claim; and counts of pages and entries that are wrong.
  /// - Parameters:
  ///   - position: Where the step before left off.
  ///   - pageCount: The pages to read, about.
  ///   - table: The name of the only table to walk over; all by default.
  /// - Throws: ``LMDBError``: `mdb_txn_begin`, `mdb_env_get_fd`.
  /// - Complexity: O(`pageCount`).
  public func findBrokenStructure(
    from position: DataFile.StructurePosition, pageCount: Int, inTable table: String? = nil
  ) throws(LMDBError) -> DataFile.StructureFinding {
    try read { (transaction) throws(LMDBError) in
      DataFile.withWalk(descriptor: try dataDescriptor()) {
        (walk: inout StructureWalk) throws(BrokenStructure) -> DataFile.StructureFinding in
        // Two commits since the transaction began: another time.
        guard let meta = try walk.meta(ofCommit: transaction.id) else { return .unfinished(position) }
        return try walk.step(
          from: position, meta: meta, pageCount: pageCount, table: table.map { Array($0.utf8) })
      }
    }
  }

  /// Checks every page that liblmdb goes through on its way to a key, by plain reads, before it does.
  ///
  /// - Parameters:
  ///   - key: The bytes of the key, whether it is there or not.
  ///   - table: The table's name.
  /// - Returns: What is wrong, as a phrase; nil if the way is good.
  /// - Throws: ``LMDBError/Code/temporarilyUnavailable`` if there were two commits since the transaction began, so that nobody can tell.
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

  /// To be called within a transaction, which keeps the environment open.
  func dataDescriptor() throws(LMDBError) -> CInt {
    var descriptor: CInt = -1
    let rc = mdb_env_get_fd(pointer, &descriptor)
    guard rc == 0 else { throw LMDBError(rc, "mdb_env_get_fd") }
    return descriptor
  }
}

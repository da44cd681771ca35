internal import CLMDB

/// The statistics of a table in one transaction. `mdb_stat`.
public struct TableStatistics: Sendable, Hashable {
  /// The number of key-value pairs.
  public let entryCount: Int
  /// The number of levels of the tree; 0 for an empty table.
  public let depth: Int
  /// The number of pages that only lead to other pages.
  public let branchPageCount: Int
  /// The number of pages with keys and small values.
  public let leafPageCount: Int
  /// The number of pages with values that are too large for a leaf.
  public let overflowPageCount: Int

  /// The number of all pages of the table.
  public var pageCount: Int { branchPageCount + leafPageCount + overflowPageCount }

  @usableFromInline
  init(_ transaction: TransactionHandle, _ table: UInt32) throws(LMDBError) {
    var statistics = MDB_stat()
    let rc = mdb_stat(transaction.pointer, table, &statistics)
    guard rc == 0 else { throw LMDBError(rc, "mdb_stat") }
    // The numbers come from pages that may be corrupt, and their sums must not overflow.
    let pageCounts = statistics.ms_branch_pages | statistics.ms_leaf_pages | statistics.ms_overflow_pages
    guard (0..<1 << 40).contains(pageCounts), (0..<1 << 56).contains(statistics.ms_entries) else {
      throw LMDBError(code: .corrupted, function: "mdb_stat")
    }
    entryCount = statistics.ms_entries
    depth = Int(statistics.ms_depth)
    branchPageCount = statistics.ms_branch_pages
    leafPageCount = statistics.ms_leaf_pages
    overflowPageCount = statistics.ms_overflow_pages
  }
}

import LMDB

/// The check of the index against the record headers.
extension StoreCheck {
  /// The maximum number of rows that are checked again.
  static let maximumSuspectCount = 1024

  /// Returns the rows that the index contains for a record's key.
  func rowsInIndex(of entry: IndexEntry) -> [UInt64] { database.indexedRows(ofTag: entry.tag) }

  /// The index if it must have exactly the records of this snapshot; otherwise nil.
  private func exactIndex(in transaction: borrowing ReadTransaction) -> RecordIndex? {
    guard let index = database.index.current, index.isUpToDate(withCommit: transaction.id),
      database.environment.lastTransactionID == transaction.id
    else { return nil }
    return index
  }

  /// Compares the index with a snapshot of the last commit. Reports nothing if other processes commit all the time.
  mutating func checkIndex(in transaction: borrowing ReadTransaction) throws(LMDBError) {
    guard let index = exactIndex(in: transaction) else { return }
    var violations: [String] = []
    var cellCount = 0
    index.forEachEntry(in: 0..<index.allCellCount) { _ in cellCount += 1 }
    if context.options.opensExistingOnly { index.releaseResidentPages() }
    let recordCount = try database.heads.rowCount(in: transaction)
    if cellCount != recordCount || index.recordCount != recordCount {
      violations.append("The index has \(cellCount) records and counts \(index.recordCount), there are \(recordCount)")
    }
    for rowID in unindexedRows.sorted() {
      let entry = try database.heads.withHeader(of: rowID, in: transaction) {
        database.indexEntry(of: $0, rowID: rowID)
      }
      guard let entry, !rowsInIndex(of: entry).contains(rowID) else { continue }
      violations.append("Row \(rowID) is not in the index under its key")
    }
    guard exactIndex(in: transaction) === index else { return }
    for violation in violations { result.report(violation) }
  }
}

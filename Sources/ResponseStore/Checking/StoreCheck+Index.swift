import LMDB

/// The check of the index against the record headers.
extension StoreCheck {
  /// The maximum number of rows and index entries that are checked again.
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

  /// Returns the number of cells in use, or the number of record headers if it cannot be determined.
  func countIndex(in transaction: borrowing ReadTransaction) -> Int {
    guard let index = exactIndex(in: transaction) else { return walked.entryCount }
    var count = 0
    index.forEachEntry(in: 0..<index.allCellCount) { _ in count += 1 }
    if context.options.opensExistingOnly { index.releaseResidentPages() }
    guard exactIndex(in: transaction) === index else { return walked.entryCount }
    return count == index.recordCount ? count : -1
  }

  /// Looks up each record of the index in the record logs.
  mutating func checkIndex(
    in transaction: borrowing ReadTransaction, _ mayGoOn: () -> Bool
  ) throws(LMDBError) -> Bool {
    guard let index = database.index.current else { return true }
    while nextIndexCell < index.allCellCount {
      var entries: [IndexEntry] = []
      index.forEachEntry(in: nextIndexCell..<min(nextIndexCell + 256, index.allCellCount)) { entries.append($0) }
      nextIndexCell += 256
      for entry in entries where strayEntries.count < Self.maximumSuspectCount {
        if try !database.heads.contains(entry.rowID, in: transaction) { strayEntries.insert(entry) }
        noteRead(database.pageByteCount, transaction)
      }
      if nextIndexCell < index.allCellCount, !mayGoOn() { return false }
    }
    return true
  }

  /// Reports errors that persist in a snapshot of the last commit. Reports none if other processes commit all the time.
  mutating func checkIndexAgain(in transaction: borrowing ReadTransaction) throws(LMDBError) -> Bool {
    guard let index = exactIndex(in: transaction) else { return true }
    var violations: [String] = []
    if isOneSnapshot, index.recordCount != walked.entryCount {
      violations.append("The index says \(index.recordCount) records, there are \(walked.entryCount)")
    }
    for rowID in unindexedRows.sorted() {
      let entry = try database.heads.withHeader(of: rowID, in: transaction) {
        database.indexEntry(of: $0, rowID: rowID)
      }
      guard let entry, !rowsInIndex(of: entry).contains(rowID) else { continue }
      violations.append("Row \(rowID) is not in the index under its key")
    }
    for entry in strayEntries.sorted(by: { $0.rowID < $1.rowID })
    where index.cell(of: entry.tag, rowID: entry.rowID) != nil {
      if try !database.heads.contains(entry.rowID, in: transaction) {
        violations.append("The index names row \(entry.rowID), which has no record")
      }
    }
    guard exactIndex(in: transaction) === index else { return true }
    for violation in violations { result.report(violation) }
    return true
  }
}

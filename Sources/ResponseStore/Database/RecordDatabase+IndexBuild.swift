import LMDB

/// Builds the index in one go from the rows of `dates`, which have the words of its cells.
extension RecordDatabase {
  /// The number of rows that are read before they are added together; they take 4 MiB.
  private static let rowsTogetherCount = 1 << 18

  /// Builds the index while it is absent, and puts it in use.
  ///
  /// No transaction changes records meanwhile, because there is no index. So one snapshot has all records.
  ///
  /// - Parameter progress: Called every ``rowsTogetherCount`` records.
  /// - Returns: False if another process has put an index in use in between, and changed records since. Try again.
  /// - Throws: ``LMDBError``, for example if there is no space or descriptor for the file.
  func buildIndex(progress: () -> Void) throws(LMDBError) -> Bool {
    let (new, before, strays) = try environment.read { (transaction) throws(LMDBError) in
      let counters = try counters(in: transaction)
      let new = try index.create(recordCount: Int(clamping: counters.entryCount))
      do throws(LMDBError) {
        try addRecords(to: new.index, in: transaction, progress: progress)
        let hasStrays = new.index.recordCount > counters.entryCount
        let strays = hasStrays ? try dropStrays(from: new.index, in: transaction) : []
        return (new, counters, strays)
      } catch {
        new.delete()
        throw error
      }
    }
    var isDone = false
    defer { if !isDone { new.delete() } }
    isDone = try environment.write { (transaction) throws(LMDBError) in
      let counters = try counters(in: transaction)
      guard index.isAbsent, counters.nextRowID == before.nextRowID, counters.entryCount == before.entryCount else {
        return false
      }
      for date in strays { try dates.remove(date, in: transaction) }
      return index.use(new, transactionID: transaction.id)
    }
    return isDone
  }

  /// Removes the entries of rows of `dates` that have no record, which only corruption leaves. Returns these rows.
  private func dropStrays(
    from index: RecordIndex, in transaction: borrowing ReadTransaction
  ) throws(LMDBError) -> [DateKey] {
    var strays: [DateKey] = []
    try dates.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      while try cursor.next() {
        let date = try cursor.checkedKey()
        guard let tagWord = cursor.value, try !heads.contains(date.rowID, in: transaction) else { continue }
        index.remove(tag: IndexEntry.tag(inTagWord: tagWord), rowID: date.rowID)
        strays.append(date)
      }
    }
    return strays
  }

  /// Builds an index in this process's memory, for a store that is only inspected and finds none in use.
  ///
  /// It has the records of the snapshot. A record that is stored or moved later is a miss.
  func buildPrivateIndex(in transaction: borrowing ReadTransaction) throws(LMDBError) {
    let recordCount = Int(clamping: try counters(in: transaction).entryCount)
    guard let index = RecordIndex(cellCount: IndexLayout.cellCount(forRecordCount: recordCount)) else {
      throw LMDBError(code: .outOfMemory, function: "mmap")
    }
    try addRecords(to: index, in: transaction) {}
    self.index.mapping.use(inPrivateMemory: index)
  }

  private func addRecords(
    to index: RecordIndex, in transaction: borrowing ReadTransaction, progress: () -> Void
  ) throws(LMDBError) {
    var count = 0
    var rows: [RecordIndex.CellWords] = []
    try dates.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      var hasRow = try cursor.first()
      while hasRow {
        rows.removeAll(keepingCapacity: true)
        while hasRow, rows.count < Self.rowsTogetherCount {
          guard let tagWord = cursor.value, tagWord != 0 else {
            throw LMDBError(code: .corrupted, function: "mdb_cursor_get")
          }
          rows.append((tagWord, try cursor.checkedKey().rowID))
          hasRow = try cursor.next()
        }
        guard index.add(rows) else { throw LMDBError(code: .noSpace, function: "RecordIndex.add") }
        count += rows.count
        progress()
      }
    }
    index.occupancy = (count, nil)
  }
}

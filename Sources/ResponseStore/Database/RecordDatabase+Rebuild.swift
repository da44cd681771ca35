import LMDB

/// Rebuilds the index in bounded steps.
extension RecordDatabase {
  /// Adds records to an incomplete index. Returns whether there are more.
  ///
  /// - Parameter limit: The maximum number of records to add.
  func rebuildIndex(limit: Int, in transaction: borrowing WriteTransaction) throws(LMDBError) -> Bool {
    guard !isIndexComplete, index.isReady else { return false }
    // Without space for a larger index, add the records that fit.
    _ = index.reserve(limit)
    guard let current = index.current else { return false }
    var counters = try counters(in: transaction)
    let progress = try add(limit, to: current, counters: &counters, in: transaction)
    switch progress {
    case .unfinished: return true
    case .full: return false
    case .corrupt:
      index.noteCorruption(of: current)
      return true
    case .done: break
    }
    if UInt64(current.recordCount) == counters.entryCount || counters.firstUnindexedRowID == Self.allRows {
      current.setRebuildPosition(nil)
      counters.firstUnindexedRowID = 0
    } else {
      // Corruption removed some of the records from the dates.
      current.setRebuildPosition(.rows(below: counters.nextRowID))
      counters.firstUnindexedRowID = Self.allRows
    }
    try setCounters(counters, in: transaction)
    return !current.isComplete
  }

  /// The value for "no row was in the index": all records are then added in row order.
  private static let allRows: UInt64 = 1

  private func add(
    _ limit: Int, to current: RecordIndex, counters: inout PersistentCounters,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> RebuildProgress {
    let firstRow = counters.firstUnindexedRowID
    let (progress, olderRows) = try dates.withCursor(in: transaction) { (dates) throws(LMDBError) in
      var isStarted = false
      return try current.rebuild(limit: limit) {
        (position) throws(LMDBError) -> (entry: IndexEntry, next: RebuildPosition)? in
        var position = position
        if case .rows(let rowID) = position {
          if let entry = try entry(below: rowID, in: transaction), entry.rowID >= firstRow {
            return (entry, .rows(below: entry.rowID))
          }
          if firstRow == Self.allRows { return nil }
          position = .newestDate
        }
        if case .dates(let time, let rowID) = position, !isStarted {
          _ = try dates.seek(atOrAfter: DateKey(time: time, rowID: rowID))
        }
        isStarted = true
        guard try dates.previous() else { return nil }
        let key = try dates.checkedKey()
        let entry = IndexEntry(tagWord: dates.value ?? 0, rowWord: key.rowID)
        return (entry, .dates(time: key.time, rowID: key.rowID))
      } areSameResponse: { (rowID, other) throws(LMDBError) -> Bool in
        try areSameResponse(rowID, other, in: transaction)
      }
    }
    for rowID in olderRows { try removeRecord(rowID, counters: &counters, in: transaction) }
    if !olderRows.isEmpty { try setCounters(counters, in: transaction) }
    return progress
  }

  /// Returns the newest record below a row. Skips records that cannot be read.
  private func entry(
    below limit: UInt64, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> IndexEntry? {
    var limit = limit
    while let rowID = try heads.rowID(below: limit, in: transaction) {
      if let entry = try heads.withHeader(of: rowID, in: transaction, { indexEntry(of: $0, rowID: rowID) }) {
        return entry
      }
      limit = rowID
    }
    return nil
  }

  private func areSameResponse(
    _ rowID: UInt64, _ other: UInt64, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Bool {
    guard let record = try heads.withHeader(of: rowID, in: transaction, { [UInt8]($0.raw) }) else { return false }
    return try heads.withHeader(of: other, in: transaction) { other in
      record.withUnsafeBytes {
        let one = RecordHeaderView(checked: $0)
        return one.hasSameKey(as: other) && one.hasSameVary(as: other)
      }
    } ?? false
  }
}

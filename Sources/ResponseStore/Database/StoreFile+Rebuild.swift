import LMDB

/// Rebuilding the index of the records, in bounded steps.
extension StoreFile {
  /// Adds records to an index that does not have all of them; returns whether there are more.
  ///
  /// - Parameter limit: How many at most.
  func rebuildIndex(limit: Int, in transaction: borrowing WriteTransaction) throws(LMDBError) -> Bool {
    guard !isIndexComplete, index.isReady else { return false }
    // Where there is no space for a larger one, the records that find a place are added.
    _ = index.reserve(limit)
    guard let current = index.current else { return false }
    var counters = try counters(in: transaction)
    let progress = try add(limit, to: current, counters: &counters, in: transaction)
    switch progress {
    case .unfinished: return true
    case .full: return false
    case .done: break
    }
    if UInt64(current.recordCount) == counters.entryCount || counters.firstUnindexedRowID == Self.allRows {
      current.setRebuildPosition(nil)
      counters.firstUnindexedRowID = 0
    } else {
      // Damage has left the dates without some of the records.
      current.setRebuildPosition(.rows(below: counters.nextRowID))
      counters.firstUnindexedRowID = Self.allRows
    }
    try setCounters(counters, in: transaction)
    return !current.isComplete
  }

  /// As the first row that was not in the index: every record is added in the order of the rows.
  private static let allRows: UInt64 = 1

  private func add(
    _ limit: Int, to current: RecordIndex, counters: inout Counters, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> RebuildProgress {
    let firstRow = counters.firstUnindexedRowID
    var duplicate: UInt64?
    let progress = try dates.withCursor(in: transaction) { (dates) throws(LMDBError) in
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
        let entry = IndexEntry(facts: dates.value ?? 0, place: key.rowID)
        return (entry, .dates(time: key.time, rowID: key.rowID))
      } areSameResponse: { (rowID, other) throws(LMDBError) -> Bool in
        try areSameResponse(rowID, other, in: transaction)
      } remove: { (rowID) throws(LMDBError) in
        duplicate = rowID
      }
    }
    guard let duplicate else { return progress }
    try removeRecord(duplicate, counters: &counters, in: transaction)
    try setCounters(counters, in: transaction)
    return progress
  }

  /// The newest record below a row; what cannot be read is passed by.
  private func entry(
    below limit: UInt64, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> IndexEntry? {
    var limit = limit
    while let rowID = try heads.rowID(below: limit, in: transaction) {
      let entry = try heads.withValue(for: rowID, in: transaction) { (record) throws(LMDBError) in
        record.withUnsafeBytes { record in HeadLayout(record).map { indexEntry(of: $0, rowID: rowID) } }
      }
      if case .some(.some(let entry)) = entry { return entry }
      limit = rowID
    }
    return nil
  }

  private func areSameResponse(
    _ rowID: UInt64, _ other: UInt64, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Bool {
    let record = try heads.withValue(for: rowID, in: transaction) { (record) throws(LMDBError) in
      record.withUnsafeBytes { [UInt8]($0) }
    }
    guard let record else { return false }
    return try heads.withValue(for: other, in: transaction) { (other) throws(LMDBError) in
      record.withUnsafeBytes { record in
        other.withUnsafeBytes { other in
          guard let one = HeadLayout(record), let other = HeadLayout(other) else { return false }
          return one.hasSameKey(as: other) && one.hasSameVary(as: other)
        }
      }
    } ?? false
  }
}

import LMDB

/// Deletion of what corruption leaves: records that cannot be read, and rows without a record.
///
/// Nothing searches the tables for it. A row is deleted when a read, the sweep or eviction meets it, or when the index
/// is built.
extension RecordDatabase {
  /// Deletes a record with a corrupt header, and its other rows as far as the header's bytes lead to them.
  ///
  /// A row of `dates` that is left over is deleted by the sweep, by eviction, or when the index is built.
  func removeCorrupt(
    _ rowID: UInt64, counters: inout PersistentCounters, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    let found = try heads.withValue(for: rowID, in: transaction) { (record) throws(LMDBError) in
      record.withUnsafeBytes { record in
        // Only the fixed part is certain to be within the record.
        let fixed = record.count >= RecordHeader.fixedByteCount ? RecordHeaderView(checked: record) : nil
        return (
          byteCount: record.count, time: fixed.map { SortableTimestamp.encode($0.storedAt) } ?? 0,
          bodyID: fixed?.bodyID(ofRow: rowID) ?? rowID,
          tag: RecordHeaderView(record).map { IndexEntry.tag(of: keyDigest(of: $0.key)) }
        )
      }
    }
    guard let found, try heads.removeChecked(rowID, in: transaction) else { return }
    let date = DateKey(time: found.time, rowID: rowID)
    if try !removeDate(date, in: transaction), let tag = found.tag {
      try noteRemoval(tag: tag, rowID: rowID, remembering: false)
    }
    var byteCount = found.byteCount
    // A wrong body ID may be that of another record.
    for bodyID in Set([rowID, found.bodyID]) where try !heads.contains(bodyID, in: transaction) {
      let chunkByteCount = try self.chunkByteCount(ofBody: bodyID, in: transaction)
      if chunkByteCount > 0 { try addOrphanedBody(bodyID, in: transaction) }
      byteCount += chunkByteCount
    }
    counters.remove(byteCount: byteCount)
  }

  private func chunkByteCount(
    ofBody bodyID: UInt64, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Int {
    try bodies.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      var byteCount = 0
      var more = try cursor.seek(atOrAfter: ChunkKey(bodyID: bodyID, index: 0))
      while more, try cursor.checkedKey().bodyID == bodyID {
        byteCount += try cursor.withValue { (chunk) throws(LMDBError) in chunk.byteCount }
        more = try cursor.next()
      }
      return byteCount
    }
  }

  /// Deletes a row of `dates` and the record's cell in the index. Returns false if the row does not exist.
  private func removeDate(_ date: DateKey, in transaction: borrowing WriteTransaction) throws(LMDBError) -> Bool {
    guard let tagWord = try dates.value(for: date, in: transaction) else { return false }
    try noteRemoval(tag: IndexEntry.tag(inTagWord: tagWord), rowID: date.rowID, remembering: false)
    return try dates.remove(date, in: transaction)
  }

  /// Deletes those of some rows of `dates` that have no record, which only corruption leaves. Returns their number.
  @discardableResult
  func removeStrayDates(
    _ stray: [DateKey], in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Int {
    var count = 0
    for date in stray where try !heads.contains(date.rowID, in: transaction) {
      if try removeDate(date, in: transaction) { count += 1 }
    }
    return count
  }

  /// Deletes some index entries and rows of `dates` without a record. Returns their number.
  func removeStrays(
    maximumCount: Int, counters: inout PersistentCounters, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Int {
    var entries: [IndexEntry] = []
    index.current?.forEachEntry(in: 0..<(index.current?.allCellCount ?? 0)) {
      if entries.count < maximumCount { entries.append($0) }
    }
    var count = 0
    for entry in entries where try !heads.contains(entry.rowID, in: transaction) {
      try noteRemoval(tag: entry.tag, rowID: entry.rowID, remembering: false)
      count += 1
    }
    var first: [DateKey] = []
    try dates.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      while first.count < maximumCount, try cursor.next() { first.append(try cursor.checkedKey()) }
    }
    count += try removeStrayDates(first, in: transaction)
    if try heads.rowCount(in: transaction) == 0 { (counters.entryCount, counters.payloadByteCount) = (0, 0) }
    return count
  }
}

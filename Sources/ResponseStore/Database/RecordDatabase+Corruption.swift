import CacheModel
import LMDB

/// Deletion of what corruption leaves: records that cannot be read, and rows without a record.
///
/// Nothing searches the tables for it. A record is deleted when a read, the sweep or eviction meets it, and a row of
/// `dates` without a record by the sweep, or when the index is built.
extension RecordDatabase {
  /// Deletes a record with a corrupt header, and its other rows as far as the header's bytes lead to them.
  ///
  /// A row of `dates` may be left over.
  func removeCorrupt(
    _ rowID: UInt64, changes: inout RecordChanges, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    let found = try heads.withValue(for: rowID, in: transaction) { (record) throws(LMDBError) in
      record.withUnsafeBytes { record in
        // Only the fixed part is certain to be within the record.
        let fixed = record.count >= RecordHeader.fixedByteCount ? RecordHeaderView(checked: record) : nil
        return (
          byteCount: record.count, time: fixed.map { SortableTimestamp.encode($0.updatedAt) } ?? 0,
          bodyID: fixed?.bodyID(ofRow: rowID) ?? rowID,
          tag: RecordHeaderView(record).map { tag(of: $0.key) },
          isKeySpace: RecordHeaderView(record).map { RequestKey.isKeySpace($0.key) } ?? false
        )
      }
    }
    guard let found, try heads.remove(rowID, in: transaction) else { return }
    let removedDate = try removeDate(DateKey(time: found.time, rowID: rowID), in: transaction)
    if removedDate == nil, let tag = found.tag { try noteRemoval(tag: tag, rowID: rowID, remembering: false) }
    var byteCount = found.byteCount
    // A wrong body ID may be that of another record.
    for bodyID in Set([rowID, found.bodyID]) where try !heads.contains(bodyID, in: transaction) {
      var chunkByteCount = 0
      try forEachChunk(ofBody: bodyID, in: transaction) { (_, chunk) in
        chunkByteCount += chunk.count
        return true
      }
      if chunkByteCount > 0 { try addOrphanedBody(bodyID, in: transaction) }
      byteCount += chunkByteCount
    }
    // The corrupt bytes may be those of the key, or those of the time that leads to the row of `dates`.
    changes.counters.remove(byteCount: byteCount, isKeySpace: removedDate?.isKeySpace ?? found.isKeySpace)
  }

  /// Deletes a row of `dates` and the record's cell in the index. Returns the row; nil if it does not exist.
  @discardableResult
  private func removeDate(
    _ date: DateKey, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> IndexEntry? {
    guard let tagWord = try dates.value(for: date, in: transaction) else { return nil }
    let entry = IndexEntry(tagWord: tagWord, rowWord: date.rowID)
    try noteRemoval(tag: entry.tag, rowID: date.rowID, remembering: false)
    try dates.remove(date, in: transaction)
    return entry
  }

  /// Deletes those of some rows of `dates` that have no record, which only corruption leaves.
  func removeStrayDates(_ stray: [DateKey], in transaction: borrowing WriteTransaction) throws(LMDBError) {
    for date in stray where try !heads.contains(date.rowID, in: transaction) {
      try removeDate(date, in: transaction)
    }
  }
}

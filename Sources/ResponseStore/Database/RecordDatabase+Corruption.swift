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
    let date = DateKey(time: found.time, rowID: rowID)
    if try !removeDate(date, in: transaction), let tag = found.tag {
      try noteRemoval(tag: tag, rowID: rowID, remembering: false)
    }
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
    changes.counters.remove(byteCount: byteCount, isKeySpace: found.isKeySpace)
  }

  /// Deletes a row of `dates` and the record's cell in the index. Returns false if the row does not exist.
  private func removeDate(_ date: DateKey, in transaction: borrowing WriteTransaction) throws(LMDBError) -> Bool {
    guard let tagWord = try dates.value(for: date, in: transaction) else { return false }
    try noteRemoval(tag: IndexEntry.tag(inTagWord: tagWord), rowID: date.rowID, remembering: false)
    return try dates.remove(date, in: transaction)
  }

  /// Deletes those of some rows of `dates` that have no record, which only corruption leaves.
  func removeStrayDates(_ stray: [DateKey], in transaction: borrowing WriteTransaction) throws(LMDBError) {
    for date in stray where try !heads.contains(date.rowID, in: transaction) {
      _ = try removeDate(date, in: transaction)
    }
  }
}

import CacheModel
import FoundationEssentials
import HTTPCaching
import LMDB

/// Marks records that soft removals cover as stale. Everything else in the record stays.
///
/// The removal sequence number stays as well, so that hard removals before the soft one still cover the record.
extension RecordDatabase {
  /// Returns those of some rows whose records are covered by soft tombstones and not marked yet.
  func unmarkedRows(
    among rowIDs: [UInt64], coveredBy tombstones: [Tombstone], in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> [UInt64] {
    var rows: [UInt64] = []
    try heads.forEachRow(among: rowIDs, in: transaction) { (rowID, record) in
      if let head = RecordHeaderView(record), tombstones.unmarkedFreshness(rowID: rowID, head) != nil {
        rows.append(rowID)
      }
    }
    return rows.sorted()
  }

  /// Marks the records that soft tombstones cover, until the transaction has changed enough pages. Marks at least one.
  ///
  /// Skips corrupt records, because a new checksum would hide the corruption. The next lookup finds them.
  ///
  /// - Parameters:
  ///   - rowIDs: The rows to check, in ascending order. Rows that do not exist are skipped.
  ///   - isInRun: Whether the rows are adjacent, and therefore share the leaves that change.
  /// - Returns: The first row left for the next transaction.
  func markStale(
    _ rowIDs: [UInt64], coveredBy tombstones: [Tombstone], changes: inout RecordChanges, isInRun: Bool = false,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> UInt64? {
    var hasMarked = false
    for rowID in rowIDs {
      if hasMarked, changes.freeing.isExhausted { return rowID }
      if try markStale(rowID, coveredBy: tombstones, changes: &changes, isInRun: isInRun, in: transaction) {
        hasMarked = true
      }
    }
    return nil
  }

  private func markStale(
    _ rowID: UInt64, coveredBy tombstones: [Tombstone], changes: inout RecordChanges, isInRun: Bool,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Bool {
    let marked = try heads.withHeader(of: rowID, in: transaction) { head -> [UInt8]? in
      guard let freshness = tombstones.unmarkedFreshness(rowID: rowID, head), head.hasRightChecksum else { return nil }
      var copy = [UInt8](head.raw)
      RecordHeader.setFreshness(freshness, of: &copy)
      return copy
    }
    guard let marked else { return false }
    try heads.put(marked, for: rowID, in: transaction)
    changes.freeing.countChange(recordByteCount: marked.count, isInRun: isInRun, pageByteCount: pageByteCount)
    return true
  }
}

extension [Tombstone] {
  /// Returns the freshness that marking gives a record; nil if the record is not covered or is marked already.
  func unmarkedFreshness(rowID: UInt64, _ head: RecordHeaderView) -> FreshnessInfo? {
    guard case .stale(let date) = effect(rowID: rowID, head) else { return nil }
    let freshness = head.freshness
    let marked = freshness.softPurged(at: date)
    return marked == freshness ? nil : marked
  }
}

import CacheModel
import LMDB

/// Applies the removals of the log to the database. A small one deletes or marks its records at once. A larger one adds
/// a tombstone, whose records the sweep deletes or marks.
extension Writer {
  /// The maximum number of records that the removals applied in one transaction delete at once.
  static let directRemovalLimit = 256
  /// The same on a full disk.
  static let smallRemovalLimit = 8
  /// The rows of `dates` that are examined in the time in which one record is deleted.
  private static let examinedCountPerRecord = 64

  /// Applies the removals that are in force and not yet in the database.
  ///
  /// - Parameter limit: The number of records that are deleted at once.
  func applyLoggedRemovals(
    limit: Int, changes: inout RecordChanges, result: inout WriteResult, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    let last = context.removalLog.sequence
    var budget = limit
    while changes.counters.lastAppliedRemoval < last {
      let sequence = changes.counters.lastAppliedRemoval + 1
      if let removal = context.removalLog.removal(sequence) {
        let tombstone = Tombstone(
          removal: removal, sequence: sequence, lastRowID: changes.counters.nextRowID &- 1)
        let (removed, isApplied) = try apply(tombstone, budget: &budget, changes: &changes, in: transaction)
        result.removed[.requested, default: 0] += removed
        guard isApplied else { break }
      }
      changes.counters.lastAppliedRemoval = sequence
    }
    result.lastAppliedRemoval = changes.counters.lastAppliedRemoval
  }

  /// Deletes or marks the covered records if they are few, otherwise adds the tombstone.
  ///
  /// - Parameter budget: The number of records that may be examined; reduced by those that were.
  /// - Returns: The number of deleted records, and whether the removal is applied. If not, the next transaction
  ///   continues with it: the removal of a key or a resource never becomes a tombstone, because its few records are
  ///   found at once.
  private func apply(
    _ tombstone: Tombstone, budget: inout Int, changes: inout RecordChanges, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> (removed: Int, isApplied: Bool) {
    var removed = 0
    let mayStart = budget > 0 && !changes.freeing.isExhausted
    if mayStart, let rows = try directRows(of: tombstone, budget: &budget, in: transaction) {
      let next: UInt64?
      if tombstone.removal.isHard {
        (removed, next) = try database.removeRecords(rows, changes: &changes, in: transaction, use: [tombstone].fate)
      } else {
        next = try database.markStale(rows, coveredBy: [tombstone], changes: &changes, in: transaction)
      }
      if next == nil { return (removed, true) }
    }
    if tombstone.removal.scope.keys != nil { return (removed, false) }
    try database.addTombstone(tombstone, changes: &changes, in: transaction)
    return (removed, true)
  }

  /// Returns the rows that a tombstone may cover; nil if there are more than the budget allows, or finding them would
  /// take the writer too long.
  private func directRows(
    of tombstone: Tombstone, budget: inout Int, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> [UInt64]? {
    if let keys = tombstone.removal.scope.keys {
      let tags = Set(keys.map { $0.withUnsafeBytes { database.tag(of: $0) } })
      let rows = tags.flatMap { database.candidateRows(ofTag: $0) }
      budget -= max(rows.count, 1)
      return rows.sorted()
    }
    let selection = database.selection(of: [tombstone])
    let found = try database.rows(
      of: selection, from: selection.start, limit: budget, examinedLimit: budget * Self.examinedCountPerRecord,
      in: transaction)
    budget -= max(found.rows.count, found.examinedCount / Self.examinedCountPerRecord)
    return found.end == nil ? found.rows.map(\.rowID).sorted() : nil
  }
}

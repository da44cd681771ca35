import CacheModel
import FoundationEssentials
import HTTPCaching
import LMDB

/// Applies removals. A small one deletes or marks its records at once. A larger one adds a tombstone first, and
/// continues in later transactions.
extension RecordDatabase {
  /// The maximum number of records that the removals applied in one transaction delete at once.
  static let directRemovalLimit = 256

  /// Applies a removal from the log: deletes or marks the covered records if they are few, otherwise adds a tombstone.
  ///
  /// - Parameter budget: The number of records that may be examined; reduced by those that were.
  /// - Returns: The number of deleted records, and whether the removal is applied. If not, the next transaction
  ///   continues with it: the removal of a key never becomes a tombstone, because its few records are found at once.
  func apply(
    _ scope: RemovalScope, _ mode: RemovalMode, sequence: UInt64, budget: inout Int, counters: inout PersistentCounters,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> (removed: Int, isApplied: Bool) {
    var tombstone = Tombstone(sequence: sequence, scope: scope, mode: mode, lastRowID: counters.nextRowID &- 1)
    var removed = 0
    let mayStart = budget > 0 && !counters.hasFreedEnough
    if mayStart, let rows = try directRows(of: tombstone, budget: &budget, in: transaction) {
      let next: UInt64?
      if mode == .hard {
        (removed, next) = try removeRecords(rows, coveredBy: [tombstone], counters: &counters, in: transaction)
      } else {
        next = try markStale(rows, coveredBy: [tombstone], counters: &counters, in: transaction)
      }
      if next == nil { return (removed, true) }
    }
    if case .key = scope { return (removed, false) }
    tombstone.lastRowID = counters.takeNumber()
    try putTombstone(tombstone, for: MetaKey.tombstone(sequence, mode), counters: &counters, in: transaction)
    return (removed, true)
  }

  /// The rows of `dates` that are examined in the time in which one record is deleted.
  private static let examinedCountPerRecord = 64

  /// Returns the rows that a tombstone may cover; nil if there are more than the budget allows, or finding them would
  /// take the writer too long.
  private func directRows(
    of tombstone: Tombstone, budget: inout Int, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> [UInt64]? {
    if case .key(let key) = tombstone.scope {
      let rows = candidateRows(of: keyDigest(of: key))
      budget -= max(rows.count, 1)
      return rows
    }
    let selection = selection(of: [tombstone])
    let found = try rows(
      in: selection, from: selection.start, limit: budget, examinedLimit: budget * Self.examinedCountPerRecord,
      in: transaction)
    budget -= max(found.rows.count, found.examinedCount / Self.examinedCountPerRecord)
    return found.end == nil ? found.rows.map(\.rowID).sorted() : nil
  }

  // MARK: Tombstones

  private func putTombstone(
    _ tombstone: Tombstone, for key: [UInt8], counters: inout PersistentCounters,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    var writer = ByteWriter()
    writer.append(tombstone.lastRowID)
    writer.bytes += tombstone.scope.encoded
    try meta.put(ChecksummedValue.encode(writer.bytes), for: key, in: transaction)
    counters.lastTombstoneChange = transaction.id
  }

  /// Deletes the tombstones of a sweep whose records are all deleted or marked.
  func endSweep(
    of tombstones: [Tombstone], counters: inout PersistentCounters, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    for tombstone in tombstones { try meta.remove(tombstone.metaKey, in: transaction) }
    try meta.remove(MetaKey.sweep, in: transaction)
    counters.lastTombstoneChange = transaction.id
  }

  /// Returns the progress of the present sweep; nil if none has begun.
  func sweepProgress(in transaction: borrowing some Transaction & ~Copyable) throws(LMDBError) -> SweepProgress? {
    try meta.withValue(for: MetaKey.sweep, in: transaction) { (bytes) throws(LMDBError) in
      bytes.withUnsafeBytes { SweepProgress($0) }
    } ?? nil
  }

  func setSweepProgress(
    _ progress: SweepProgress, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    try meta.put(progress.encoded, for: MetaKey.sweep, in: transaction)
  }

  /// Returns the tombstones in the database.
  func tombstones(in transaction: borrowing some Transaction & ~Copyable) throws(LMDBError) -> [Tombstone] {
    var tombstones: [Tombstone] = []
    try meta.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      var more = try cursor.seek(atOrAfter: MetaKey.tombstonePrefix)
      while more {
        let key = try cursor.checkedKey()
        guard key.starts(with: MetaKey.tombstonePrefix) else { return }
        let tombstone = try cursor.withValue { (bytes) throws(LMDBError) in
          bytes.withUnsafeBytes { bytes -> Tombstone? in
            guard let content = ChecksummedValue.content(of: bytes) else { return nil }
            var reader = ByteReader(content)
            guard let lastRowID = reader.read(UInt64.self),
              let scope = RemovalScope(encoded: UnsafeRawBufferPointer(rebasing: content[reader.offset...]))
            else { return nil }
            return Tombstone(
              sequence: MetaKey.number(in: key, after: MetaKey.tombstonePrefix) ?? .max, scope: scope,
              mode: MetaKey.mode(ofTombstone: key), lastRowID: lastRowID, metaKey: key)
          }
        }
        // A tombstone that cannot be read may hide any record.
        guard let tombstone else { throw LMDBError(code: .corrupted, function: "mdb_cursor_get") }
        tombstones.append(tombstone)
        more = try cursor.next()
      }
    }
    return tombstones
  }

  /// Deletes the records that one of several tombstones covers, until the transaction has freed enough pages.
  ///
  /// - Parameter rowIDs: The rows to check, in ascending order.
  /// - Returns: The number of deleted records, and the first row left for the next transaction.
  func removeRecords(
    _ rowIDs: [UInt64], coveredBy tombstones: [Tombstone], counters: inout PersistentCounters,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> (removed: Int, next: UInt64?) {
    try removeRecords(rowIDs, counters: &counters, in: transaction) { (rowID, head) in
      tombstones.hide(rowID: rowID, head) ? .forget : nil
    }
  }

  // MARK: Rows

  func selection(of tombstones: [Tombstone]) -> RemovalSelection {
    RemovalSelection(tombstones) { hostTag(ofPrefix: $0) }
  }

  /// Returns rows of `dates` that a selection contains.
  ///
  /// - Parameters:
  ///   - start: The first row to examine.
  ///   - limit: The maximum number of rows to return.
  ///   - examinedLimit: The maximum number of rows to examine.
  /// - Returns: The rows in the order of the table, the row to continue from (nil at the end), and the number of examined
  ///   rows.
  func rows(
    in selection: RemovalSelection, from start: DateKey, limit: Int, examinedLimit: Int,
    in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> (rows: [DateKey], end: DateKey?, examinedCount: Int) {
    var rows: [DateKey] = []
    var end: DateKey?
    var examinedCount = 0
    try dates.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      var more = try cursor.seek(atOrAfter: start)
      while more {
        let key = try cursor.checkedKey()
        if rows.count == limit || examinedCount == examinedLimit {
          end = key
          return
        }
        examinedCount += 1
        if selection.contains(key, tagWord: cursor.value ?? 0) { rows.append(key) }
        more = try cursor.next()
      }
    }
    return (rows, end, examinedCount)
  }
}

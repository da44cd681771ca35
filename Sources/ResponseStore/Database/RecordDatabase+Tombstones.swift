import CacheModel
import FoundationEssentials
import HTTPCaching
import LMDB

/// The tombstones, the progress of the sweep, and the rows that a removal may cover.
extension RecordDatabase {
  // MARK: Tombstones

  /// Adds a tombstone for a removal of the log, which covers the records up to this transaction.
  func addTombstone(
    _ tombstone: Tombstone, changes: inout RecordChanges, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    var writer = ByteWriter()
    writer.append(changes.counters.takeNumber())
    writer.bytes += tombstone.removal.encoded
    try meta.put(ChecksummedValue.encode(writer.bytes), for: MetaKey.tombstone(tombstone.sequence), in: transaction)
    changes.counters.lastTombstoneChange = transaction.id
  }

  func contains(_ tombstone: Tombstone, in transaction: borrowing WriteTransaction) throws(LMDBError) -> Bool {
    try meta.contains(MetaKey.tombstone(tombstone.sequence), in: transaction)
  }

  /// Deletes the tombstones of a sweep whose records are all deleted or marked.
  func endSweep(
    of tombstones: [Tombstone], changes: inout RecordChanges, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    for tombstone in tombstones { try meta.remove(MetaKey.tombstone(tombstone.sequence), in: transaction) }
    try meta.remove(MetaKey.sweep, in: transaction)
    changes.counters.lastTombstoneChange = transaction.id
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
            guard let sequence = MetaKey.number(in: key, after: MetaKey.tombstonePrefix),
              let lastRowID = reader.read(UInt64.self),
              let removal = Removal(encoded: UnsafeRawBufferPointer(rebasing: content[reader.offset...]))
            else { return nil }
            return Tombstone(removal: removal, sequence: sequence, lastRowID: lastRowID)
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

  // MARK: Dates

  func selection(of tombstones: [Tombstone]) -> RemovalSelection {
    RemovalSelection(tombstones) { hostTag(ofPrefix: $0) }
  }

  /// Returns rows of `dates`.
  ///
  /// - Parameters:
  ///   - selection: The rows to return; nil for all.
  ///   - start: The first row to examine.
  ///   - limit: The maximum number of rows to return.
  ///   - examinedLimit: The maximum number of rows to examine; no limit by default.
  /// - Returns: The rows in the order of the table, the row to continue from (nil at the end), and the number of
  ///   examined rows.
  func rows(
    of selection: RemovalSelection? = nil, from start: DateKey, limit: Int, examinedLimit: Int = .max,
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
        if selection?.contains(key, tagWord: cursor.value ?? 0) ?? true { rows.append(key) }
        more = try cursor.next()
      }
    }
    return (rows, end, examinedCount)
  }

  /// Returns when the oldest and the newest record were stored; nil if there is none.
  func storedTimes(
    in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> ClosedRange<Date>? {
    try dates.withCursor(in: transaction) { (cursor) throws(LMDBError) -> ClosedRange<Date>? in
      guard try cursor.first() else { return nil }
      let oldest = SortableTimestamp.decode(try cursor.checkedKey().time)
      guard try cursor.last() else { return nil }
      return oldest...max(oldest, SortableTimestamp.decode(try cursor.checkedKey().time))
    }
  }

  /// Returns the index word that a record had when it was stored; nil if it has no row in `dates`.
  func tagWord(
    of date: DateKey, in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> UInt64? {
    try dates.value(for: date, in: transaction)
  }
}

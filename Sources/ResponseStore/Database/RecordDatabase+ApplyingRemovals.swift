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
  /// - Returns: The number of deleted records.
  func apply(
    _ scope: RemovalScope, _ mode: RemovalMode, sequence: UInt64, budget: inout Int, counters: inout PersistentCounters,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Int {
    let tombstone = Tombstone(sequence: sequence, scope: scope, mode: mode, lastRowID: counters.nextRowID &- 1)
    var removed = 0
    if let rows = try directRows(of: tombstone, limit: budget, in: transaction), !counters.hasFreedEnough {
      budget -= rows.count
      if mode == .hard {
        let step = try removeRecords(rows, coveredBy: [tombstone], counters: &counters, in: transaction)
        removed = step.removed
        if step.next == nil { return removed }
      } else if try markStale(rows, coveredBy: [tombstone], counters: &counters, in: transaction) == nil {
        return 0
      }
    }
    try putTombstone(tombstone, for: MetaKey.tombstone(sequence, mode), counters: &counters, in: transaction)
    return removed
  }

  /// Returns the rows that a tombstone may cover; nil if there are more than `limit`, if finding them would take the
  /// writer too long, or if deletion must wait.
  private func directRows(
    of tombstone: Tombstone, limit: Int, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> [UInt64]? {
    guard limit > 0, let index = index.current, index.isComplete else { return nil }
    let scope = tombstone.scope
    if case .key = scope { return try rows(coveredBy: tombstone, in: transaction) }
    var position = ScanPosition.start
    if scope.needsHostPass {
      guard index.cellCount <= HostPass.directCellCount else { return nil }
      let tag = scope.hostPrefix.flatMap { hostTag(ofPrefix: $0) }
      guard var pass = HostPass(over: self.index, hostTags: tag.map { [$0] }) else { return nil }
      guard pass.confirm() else { throw Self.corruptIndex }
      position = .found(pass)
    }
    guard let found = try findCoveredRows(tombstone, limit: limit, from: position, in: transaction), found.end == nil
    else { return nil }
    return found.rows
  }

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

  /// Deletes tombstones whose records are all deleted or marked.
  func remove(
    _ tombstones: [Tombstone], counters: inout PersistentCounters, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    for tombstone in tombstones { try meta.remove(tombstone.metaKey, in: transaction) }
    counters.lastTombstoneChange = transaction.id
  }

  /// Hides all stored records of a key with a tombstone until the index is complete.
  func hide(
    _ key: [UInt8], counters: inout PersistentCounters, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    let tombstone = Tombstone(
      sequence: .max, scope: RemovalScope.key(key).abbreviated, lastRowID: counters.nextRowID &- 1)
    // No removal in the log has this number. The digest distinguishes tombstones of several keys.
    let metaKey = MetaKey.tombstone(.max, .hard) + withUnsafeBytes(of: keyDigest(of: key).bigEndian) { Array($0) }
    try putTombstone(tombstone, for: metaKey, counters: &counters, in: transaction)
    index.current?.lastTombstone = transaction.id
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
        // A tombstone that cannot be read may hide any record, so hide everything.
        tombstones.append(tombstone ?? Tombstone(sequence: .max, scope: .everything, lastRowID: .max, metaKey: key))
        more = try cursor.next()
      }
    }
    return tombstones
  }

  /// Returns up to `limit` rows that a tombstone may cover, from `position` on, in ascending order.
  ///
  /// `end` is the position to continue from, or nil at the end. Returns nil if a pass over the index is needed first, or
  /// if the tombstone covers a key; see ``rows(coveredBy:in:)``.
  func findCoveredRows(
    _ tombstone: Tombstone, limit: Int, from position: ScanPosition,
    in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> (rows: [UInt64], end: ScanPosition?)? {
    switch (tombstone.scope, position) {
    case (.everything, _):
      let walk = try rows(limit: limit, from: position, in: transaction)
      return (walk.rows.sorted(), walk.end)
    case (.since(let date), _):
      let walk = try rows(since: date, limit: limit, from: position, in: transaction)
      return (walk.rows.sorted(), walk.end)
    case (.key, _):
      return nil
    case (_, .found(var pass)):
      let rows = Array(pass.upcoming(limit))
      pass.advance(by: limit)
      return (rows, pass.isDone ? nil : .found(pass))
    default:
      return nil
    }
  }

  /// Returns the rows that the tombstone of a key may cover; none for other tombstones.
  ///
  /// The index is sure to contain the rows of the last commit only in a write transaction.
  func rows(coveredBy tombstone: Tombstone, in transaction: borrowing WriteTransaction) throws(LMDBError) -> [UInt64] {
    guard case .key(let key) = tombstone.scope else { return [] }
    return try candidateRows(of: keyDigest(of: key))
  }

  /// Deletes the records that one of several tombstones covers, until the transaction has freed enough pages.
  ///
  /// - Parameter rowIDs: The rows to check, in ascending order.
  /// - Returns: The number of deleted records, and the first row left for the next transaction.
  func removeRecords(
    _ rowIDs: [UInt64], coveredBy tombstones: [Tombstone], counters: inout PersistentCounters, isInRun: Bool = false,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> (removed: Int, next: UInt64?) {
    try removeRecords(rowIDs, counters: &counters, isInRun: isInRun, in: transaction) { (rowID, head) in
      tombstones.hide(rowID: rowID, head) ? .forget : nil
    }
  }

  private func rows(
    limit: Int, from position: ScanPosition, in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> (rows: [UInt64], end: ScanPosition?) {
    var start: UInt64 = 0
    if case .row(let rowID) = position { start = rowID }
    var rows: [UInt64] = []
    var end: ScanPosition?
    try heads.forEachRow(from: start, in: transaction) { (rowID, _) in
      guard rows.count < limit else {
        end = .row(rowID)
        return false
      }
      rows.append(rowID)
      return true
    }
    return (rows, end)
  }

  private func rows(
    since date: Date, limit: Int, from position: ScanPosition, in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> (rows: [UInt64], end: ScanPosition?) {
    // Strictly newer: the first row after all rows of the date itself.
    var start = DateKey(time: SortableTimestamp.encode(date), rowID: .max)
    if case .date(let key) = position { start = key }
    var rows: [UInt64] = []
    var end: ScanPosition?
    try dates.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      var more = try cursor.seek(atOrAfter: start)
      while more {
        let key = try cursor.checkedKey()
        if rows.count == limit {
          end = .date(key)
          return
        }
        rows.append(key.rowID)
        more = try cursor.next()
      }
    }
    return (rows, end)
  }
}

import LMDB

/// A record that is to make room, and what named it.
struct EvictionChoice {
  var rowID: UInt64
  var reason = RemovalReason.overCapacity
  var victim: UseTable.Victim?
  var dateRow: DateKey?
  var expiryRow: DateKey?
}

extension ResponseStore {
  /// The next record to evict; nil when there is none.
  func chooseVictim(
    counters: Counters, now: UInt64, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> EvictionChoice? {
    if let expired = try firstRow(of: file.expiries, in: transaction), expired.time <= now {
      return EvictionChoice(rowID: expired.rowID, reason: .expired, expiryRow: expired)
    }
    guard let table = file.uses.table else { return try oldest(in: transaction) }
    if UInt64(table.recordCount) < counters.entryCount, let unknown = try oldestUnknown(to: table, in: transaction) {
      return unknown
    }
    guard let victim = table.chooseVictim() else { return try oldest(in: transaction) }
    return EvictionChoice(rowID: victim.rowID, victim: victim)
  }

  private func oldest(in transaction: borrowing WriteTransaction) throws(LMDBError) -> EvictionChoice? {
    try firstRow(of: file.dates, in: transaction).map { EvictionChoice(rowID: $0.rowID, dateRow: $0) }
  }

  func firstRow<T: Transaction & ~Copyable>(
    of table: Table<DateKeyCodec, Empty>, in transaction: borrowing T
  ) throws(LMDBError) -> DateKey? {
    try table.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      try cursor.first() ? try cursor.checkedKey() : nil
    }
  }

  /// How many records a search for one that the table does not know looks at before it leaves off until the next time.
  private static let searchLength = 32

  /// The oldest record that the table of uses does not know, from where the last search left off. There are such records
  /// when the table found no place for them, or was lost and is still being filled.
  private func oldestUnknown(
    to table: UseTable, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> EvictionChoice? {
    var start = maintenance.withLock { $0.searchedUpTo }
    var rows: [DateKey] = []
    try file.dates.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      var more = try cursor.seek(atOrAfter: start ?? DateKey(time: 0, rowID: 0))
      while more, rows.count < Self.searchLength {
        rows.append(try cursor.checkedKey())
        more = try cursor.next()
      }
      start = more ? rows.last : nil
    }
    var found: EvictionChoice?
    for row in rows {
      let digest = try file.heads.withValue(for: row.rowID, in: transaction) { (record) throws(LMDBError) in
        record.withUnsafeBytes { HeadLayout($0)?.useDigest }
      }
      let isKnown: Bool =
        if case .some(.some(let digest)) = digest {
          table.rowID(of: digest) == UseTable.keptBits(of: row.rowID)
        } else {
          false
        }
      if !isKnown {
        found = EvictionChoice(rowID: row.rowID, dateRow: row)
        start = row
        break
      }
    }
    let position = start
    maintenance.withLock { $0.searchedUpTo = position }
    return found
  }

  // MARK: The table of uses

  /// Maps the table, or makes one; then what is stored already has to be entered, which the eviction thread does.
  func openUses() throws(LMDBError) {
    // Under the write transaction, which keeps other processes from doing the same.
    let isNew = try file.environment.write { (transaction) throws(LMDBError) in
      guard file.uses.openOrCreate() else { return false }
      return try file.counters(in: transaction).entryCount > 0
    }
    if isNew { maintenance.withLock { $0.nextRowToEnter = 0 } }
  }

  /// Has the table of uses take no more than its share, after the capacity was lowered.
  func shrinkUses() throws(LMDBError) {
    let capacity = capacityByteCount
    guard file.uses.isTooLarge(capacityByteCount: capacity) else { return }
    // Only who may write may put another in its place.
    try file.environment.write { (_) throws(LMDBError) in
      file.uses.follow()
      file.uses.shrinkIfTooLarge(capacityByteCount: capacity)
    }
  }

  /// Enters some of the records that the table does not know; true if there are more.
  func enterUses() throws(LMDBError) -> Bool {
    guard let start = maintenance.withLock({ $0.nextRowToEnter }) else { return false }
    let next = try file.environment.write { (transaction) throws(LMDBError) -> UInt64? in
      var entered = 0
      var next: UInt64?
      try file.heads.withCursor(in: transaction) { (cursor) throws(LMDBError) in
        var more = try cursor.seek(atOrAfter: start)
        while more {
          let rowID = try cursor.checkedKey()
          if entered == 1024 {
            next = rowID
            return
          }
          try cursor.withValue { (record) throws(LMDBError) in
            record.withUnsafeBytes { record in
              guard let layout = HeadLayout(record), let table = file.uses.table else { return }
              guard table.rowID(of: layout.useDigest) == nil else { return }
              table.insert(
                layout.useDigest, rowID: rowID,
                byteCount: record.count + (layout.isBodyInline ? 0 : layout.bodyByteCount))
            }
          }
          entered += 1
          more = try cursor.next()
        }
      }
      file.uses.growIfCrowded(capacityByteCount: capacityByteCount)
      return next
    }
    maintenance.withLock { $0.nextRowToEnter = next }
    return next != nil
  }
}

import LMDB

/// A record that is to be evicted, and what named it.
struct EvictionChoice {
  var rowID: UInt64
  var reason = RemovalReason.overCapacity
  var entry: IndexEntry?
  var expiryRow: DateKey?
}

extension ResponseStore {
  /// The next record to evict; nil when there is none.
  ///
  /// - Parameter chosen: Rows that were chosen before in this transaction.
  func chooseVictim(
    except chosen: Set<UInt64>, now: UInt64, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> EvictionChoice? {
    // While the index is rebuilt a record may have an older one of the same key, which must go first.
    guard let index = file.index.current, index.isComplete else { return try lowestRow(in: transaction) }
    if let expired = try firstExpiry(in: transaction), expired.time <= now {
      return EvictionChoice(rowID: expired.rowID, reason: .expired, expiryRow: expired)
    }
    if let entry = sampler.choose(from: index, isExcluded: { chosen.contains($0.rowID) }) {
      return EvictionChoice(rowID: entry.rowID, entry: entry)
    }
    // What is still in the index was chosen before, and goes with the commit.
    return index.recordCount > chosen.count ? nil : try lowestRow(in: transaction)
  }

  private func lowestRow(in transaction: borrowing WriteTransaction) throws(LMDBError) -> EvictionChoice? {
    try file.heads.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      try cursor.first() ? EvictionChoice(rowID: try cursor.checkedKey()) : nil
    }
  }

  func firstExpiry<T: Transaction & ~Copyable>(in transaction: borrowing T) throws(LMDBError) -> DateKey? {
    try file.expiries.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      try cursor.first() ? try cursor.checkedKey() : nil
    }
  }
}

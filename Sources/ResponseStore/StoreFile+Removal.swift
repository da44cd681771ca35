import FoundationEssentials
import HTTPCaching
import LMDB

/// A purge that is in force: what it covers up to a row is hidden, and being deleted.
struct Purge: Sendable, Equatable {
  /// Its row in `meta`.
  var metaKey: [UInt8]
  var scope: RemovalScope
  /// Newer rows are not covered.
  var lastRowID: UInt64

  func covers(rowID: UInt64, layout: HeadLayout) -> Bool {
    rowID <= lastRowID
      && scope.covers(key: layout.key, storedAt: layout.storedAt) {
        CacheGroups.groups(of: FieldCoding.decodeFields(layout.fields))
      }
  }
}

/// Where a walk over what a scope covers goes on.
enum WalkPosition: Sendable, Equatable {
  case start
  case key([UInt8])
  case date(DateKey)
  case row(UInt64)
}

/// Removals: at once when little is covered, by a mark and a walk behind it when it is much.
extension StoreFile {
  /// What a removal deletes while its caller waits; beyond it a mark hides the rest at once.
  static let directRemovalLimit = 256

  /// Carries out a removal: afterwards no transaction sees what it covers, whether rows or a mark say so. Returns how
  /// many records it deleted.
  func remove(
    _ scope: RemovalScope, number: UInt32, logLimit: Int, onlyMarked: Bool, counters: inout Counters,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Int {
    let lastRowID = counters.nextRowID &- 1
    var removed = 0
    let walk =
      try onlyMarked
      ? nil : collect(scope, lastRowID: lastRowID, limit: Self.directRemovalLimit, from: .start, in: transaction)
    if let walk, walk.end == nil {
      for rowID in walk.rows where try removeRecord(rowID, counters: &counters, in: transaction) { removed += 1 }
    } else {
      var writer = ByteWriter()
      writer.append(lastRowID)
      writer.bytes += scope.encoded
      try meta.put(
        Checksummed.encode(writer.bytes), for: MetaKey.purge(transaction.id, number), in: transaction)
      counters.lastPurgeChange = transaction.id
    }
    try meta.put(
      Checksummed.encode(scope.abbreviated.encoded), for: MetaKey.removal(transaction.id, number), in: transaction)
    counters.lastRemoval = transaction.id
    counters.logCount &+= 1
    if counters.logCount > logLimit { try trimLog(to: logLimit * 3 / 4, &counters, in: transaction) }
    return removed
  }

  private func trimLog(
    to limit: Int, _ counters: inout Counters, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    var keys: [[UInt8]] = []
    let excess = Int(clamping: counters.logCount) - limit
    try meta.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      var more = try cursor.seek(atOrAfter: MetaKey.removalPrefix)
      while more, keys.count < excess {
        let key = try cursor.checkedKey()
        guard key.starts(with: MetaKey.removalPrefix) else { break }
        keys.append(key)
        more = try cursor.next()
      }
    }
    for key in keys {
      try meta.remove(key, in: transaction)
      counters.logFloor = max(counters.logFloor, MetaKey.number(in: key, after: MetaKey.removalPrefix) ?? .max)
    }
    counters.logCount -= min(counters.logCount, UInt64(keys.count))
  }

  /// Whether a removal after `snapshot` covers what is described. What the log no longer tells counts as removed.
  func wasRemoved<T: Transaction & ~Copyable>(
    after snapshot: UInt64, counters: Counters, in transaction: borrowing T,
    isCovered: (RemovalScope) -> Bool
  ) throws(LMDBError) -> Bool {
    guard counters.lastRemoval > snapshot else { return false }
    guard counters.logFloor <= snapshot else { return true }
    return try meta.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      var more = try cursor.seek(atOrAfter: MetaKey.removal(snapshot + 1, 0))
      while more {
        guard try cursor.checkedKey().starts(with: MetaKey.removalPrefix) else { return false }
        let scope = try cursor.withValue { (bytes) throws(LMDBError) in
          bytes.withUnsafeBytes { Checksummed.content(of: $0).flatMap { RemovalScope(encoded: $0) } }
        }
        guard let scope else { return true }
        if isCovered(scope) { return true }
        more = try cursor.next()
      }
      return false
    }
  }

  /// The purges in force.
  func purges<T: Transaction & ~Copyable>(in transaction: borrowing T) throws(LMDBError) -> [Purge] {
    var purges: [Purge] = []
    try meta.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      var more = try cursor.seek(atOrAfter: MetaKey.purgePrefix)
      while more {
        let key = try cursor.checkedKey()
        guard key.starts(with: MetaKey.purgePrefix) else { return }
        let purge = try cursor.withValue { (bytes) throws(LMDBError) in
          bytes.withUnsafeBytes { bytes -> Purge? in
            guard let content = Checksummed.content(of: bytes) else { return nil }
            var reader = ByteReader(content)
            guard let lastRowID = reader.read(UInt64.self),
              let scope = RemovalScope(encoded: UnsafeRawBufferPointer(rebasing: content[reader.offset...]))
            else { return nil }
            return Purge(metaKey: key, scope: scope, lastRowID: lastRowID)
          }
        }
        // A purge that cannot be read must hide something: everything up to now is the safe reading.
        purges.append(purge ?? Purge(metaKey: key, scope: .everything, lastRowID: .max))
        more = try cursor.next()
      }
    }
    return purges
  }

  /// Rows that a scope covers, from `position` on; `limit` bounds how many are looked at. `end` is where to go on, or
  /// nil when all have been seen.
  func collect(
    _ scope: RemovalScope, lastRowID: UInt64, limit: Int, from position: WalkPosition,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> (rows: [UInt64], end: WalkPosition?) {
    switch scope {
    case .everything, .digested:
      // A digest stands in the log only; nothing is deleted by it.
      return try collectRows(lastRowID: lastRowID, limit: limit, from: position, in: transaction)
    case .since(let date):
      return try collectSince(date, lastRowID: lastRowID, limit: limit, from: position, in: transaction)
    case .key(let key):
      // All rows of one key, however many other keys begin alike.
      let rows = try rowIDs(ofKey: key, in: transaction)
      return (try covered(rows, by: scope, lastRowID: lastRowID, in: transaction), nil)
    case .prefix(let prefix), .target(let prefix), .group(let prefix, _):
      return try collectKeys(prefix, scope: scope, lastRowID: lastRowID, limit: limit, from: position, in: transaction)
    }
  }

  private func collectRows(
    lastRowID: UInt64, limit: Int, from position: WalkPosition, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> (rows: [UInt64], end: WalkPosition?) {
    var start: UInt64 = 0
    if case .row(let rowID) = position { start = rowID }
    var rows: [UInt64] = []
    var end: WalkPosition?
    try heads.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      var more = try cursor.seek(atOrAfter: start)
      while more {
        let rowID = try cursor.checkedKey()
        guard rowID <= lastRowID else { return }
        if rows.count == limit {
          end = .row(rowID)
          return
        }
        rows.append(rowID)
        more = try cursor.next()
      }
    }
    return (rows, end)
  }

  private func collectSince(
    _ date: Date, lastRowID: UInt64, limit: Int, from position: WalkPosition,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> (rows: [UInt64], end: WalkPosition?) {
    // Strictly newer: the first row behind all rows of the date itself.
    var start = DateKey(time: OrderedTime.encode(date), rowID: .max)
    if case .date(let key) = position { start = key }
    var rows: [UInt64] = []
    var seen = 0
    var end: WalkPosition?
    try dates.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      var more = try cursor.seek(atOrAfter: start)
      while more {
        let key = try cursor.checkedKey()
        if seen == limit {
          end = .date(key)
          return
        }
        seen += 1
        if key.rowID <= lastRowID { rows.append(key.rowID) }
        more = try cursor.next()
      }
    }
    return (rows, end)
  }

  private func collectKeys(
    _ prefix: [UInt8], scope: RemovalScope, lastRowID: UInt64, limit: Int, from position: WalkPosition,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> (rows: [UInt64], end: WalkPosition?) {
    // A long key stands under its beginning and a digest: all that begins alike is looked at, and the full key decides.
    let cut = StorageFormat.longestKeyByteCount - StorageFormat.keyDigestByteCount
    let tablePrefix = Array(prefix.prefix(cut))
    var start = tablePrefix
    if case .key(let key) = position { start = key }
    if start.isEmpty { start = [0] }
    var candidates: [UInt64] = []
    var end: WalkPosition?
    try keys.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      var more = try cursor.seek(atOrAfter: start)
      while more {
        let key = try cursor.checkedKey()
        guard key.starts(with: tablePrefix) else { return }
        if candidates.count >= limit {
          end = .key(key)
          return
        }
        candidates += try cursor.withValue { (bytes) throws(LMDBError) in
          bytes.withUnsafeBytes { Self.rowIDs(in: $0) }
        }
        more = try cursor.next()
      }
    }
    return (try covered(candidates, by: scope, lastRowID: lastRowID, in: transaction), end)
  }

  private func covered(
    _ candidates: [UInt64], by scope: RemovalScope, lastRowID: UInt64, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> [UInt64] {
    var rows: [UInt64] = []
    for rowID in candidates where rowID <= lastRowID {
      let isCovered = try heads.withValue(for: rowID, in: transaction) { (record) throws(LMDBError) in
        record.withUnsafeBytes { record -> Bool in
          guard let layout = HeadLayout(record) else { return true }
          return scope.covers(key: layout.key, storedAt: layout.storedAt) {
            CacheGroups.groups(of: FieldCoding.decodeFields(layout.fields))
          }
        }
      }
      if isCovered == true { rows.append(rowID) }
    }
    return rows
  }
}

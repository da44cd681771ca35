import FoundationEssentials
import HTTPCaching
import LMDB

/// A removal that is in force and not yet carried out: what it covers is hidden, and being deleted.
struct Purge: Sendable, Equatable {
  /// Its number in the log of removals. What was stored under this or a higher one is not covered.
  var sequence: UInt64
  var scope: RemovalScope
  /// Newer rows need not be looked at.
  var lastRowID: UInt64
  /// Its row in `meta`, once it has one.
  var metaKey: [UInt8] = []

  func covers(rowID: UInt64, layout: HeadLayout) -> Bool {
    rowID <= lastRowID && layout.removalSequence < sequence
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
  /// How many records the removals that are adopted in one transaction delete at once; beyond it a mark hides the rest.
  static let directRemovalLimit = 256

  /// Takes a removal over from the log: deletes what it covers, if that is little, else leaves a mark. Returns how many
  /// records it deleted; `budget` is what may be looked at, and is taken from.
  func adopt(
    _ scope: RemovalScope, sequence: UInt64, budget: inout Int, counters: inout Counters,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Int {
    let purge = Purge(sequence: sequence, scope: scope, lastRowID: counters.nextRowID &- 1)
    let walk = try budget > 0 ? collect(purge, limit: budget, from: .start, in: transaction) : nil
    var removed = 0
    if let walk, walk.end == nil {
      budget -= walk.rows.count
      var rest = walk.rows[...]
      while let rowID = rest.first, !counters.hasFreedEnough {
        if try removeRecord(rowID, counters: &counters, in: transaction) { removed += 1 }
        rest.removeFirst()
      }
      if rest.isEmpty { return removed }
    }
    var writer = ByteWriter()
    writer.append(purge.lastRowID)
    writer.bytes += scope.encoded
    try meta.put(Checksummed.encode(writer.bytes), for: MetaKey.purge(sequence), in: transaction)
    counters.lastPurgeChange = transaction.id
    return removed
  }

  /// The marks of purges in the data.
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
            return Purge(
              sequence: MetaKey.number(in: key, after: MetaKey.purgePrefix) ?? .max, scope: scope, lastRowID: lastRowID,
              metaKey: key)
          }
        }
        // A purge that cannot be read must hide something: everything up to now is the safe reading.
        purges.append(purge ?? Purge(sequence: .max, scope: .everything, lastRowID: .max, metaKey: key))
        more = try cursor.next()
      }
    }
    return purges
  }

  /// Rows that a purge covers, from `position` on; `limit` bounds how many are looked at. `end` is where to go on, or nil
  /// when all have been seen.
  func collect(
    _ purge: Purge, limit: Int, from position: WalkPosition, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> (rows: [UInt64], end: WalkPosition?) {
    let candidates: [UInt64]
    var end: WalkPosition?
    switch purge.scope {
    case .everything:
      (candidates, end) = try rows(limit: limit, from: position, in: transaction)
    case .since(let date):
      (candidates, end) = try rows(since: date, limit: limit, from: position, in: transaction)
    case .key(let key):
      // All rows of one key, however many other keys begin alike.
      candidates = try rowIDs(ofKey: key, in: transaction)
    case .prefix(let prefix), .target(let prefix), .group(let prefix, _), .digested(let prefix, _, _, _, _):
      (candidates, end) = try rows(withPrefix: prefix, limit: limit, from: position, in: transaction)
    }
    var covered: [UInt64] = []
    for rowID in candidates where rowID <= purge.lastRowID {
      let isCovered = try heads.withValue(for: rowID, in: transaction) { (record) throws(LMDBError) in
        // What cannot be read is no loss.
        record.withUnsafeBytes { record in HeadLayout(record).map { purge.covers(rowID: rowID, layout: $0) } ?? true }
      }
      if isCovered == true { covered.append(rowID) }
    }
    return (covered, end)
  }

  private func rows(
    limit: Int, from position: WalkPosition, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> (rows: [UInt64], end: WalkPosition?) {
    var start: UInt64 = 0
    if case .row(let rowID) = position { start = rowID }
    var rows: [UInt64] = []
    var end: WalkPosition?
    try heads.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      var more = try cursor.seek(atOrAfter: start)
      while more {
        let rowID = try cursor.checkedKey()
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

  private func rows(
    since date: Date, limit: Int, from position: WalkPosition, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> (rows: [UInt64], end: WalkPosition?) {
    // Strictly newer: the first row behind all rows of the date itself.
    var start = DateKey(time: OrderedTime.encode(date), rowID: .max)
    if case .date(let key) = position { start = key }
    var rows: [UInt64] = []
    var end: WalkPosition?
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

  private func rows(
    withPrefix prefix: [UInt8], limit: Int, from position: WalkPosition, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> (rows: [UInt64], end: WalkPosition?) {
    // A long key stands under its beginning and a digest: all that begins alike is looked at, and the full key decides.
    let cut = StorageFormat.longestKeyByteCount - StorageFormat.keyDigestByteCount
    let tablePrefix = Array(prefix.prefix(cut))
    var start = tablePrefix
    if case .key(let key) = position { start = key }
    if start.isEmpty { start = [0] }
    var rows: [UInt64] = []
    var end: WalkPosition?
    try keys.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      var more = try cursor.seek(atOrAfter: start)
      while more {
        let key = try cursor.checkedKey()
        guard key.starts(with: tablePrefix) else { return }
        if rows.count >= limit {
          end = .key(key)
          return
        }
        rows += try cursor.withValue { (bytes) throws(LMDBError) in
          bytes.withUnsafeBytes { Self.rowIDs(in: $0) }
        }
        more = try cursor.next()
      }
    }
    return (rows, end)
  }
}

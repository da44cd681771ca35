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
  case date(DateKey)
  /// Logs are walked through one after the other.
  case row(UInt64)
  /// What a pass over the index has found.
  case found(HostPass)
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
    let position = budget > 0 ? directPosition(of: scope) : nil
    var removed = 0
    if let position, let walk = try collect(purge, limit: budget, from: position, in: transaction), walk.end == nil {
      budget -= walk.rows.count
      var rest = walk.rows[...]
      while let rowID = rest.first, !counters.hasFreedEnough {
        if try removeRecord(rowID, counters: &counters, in: transaction) { removed += 1 }
        rest.removeFirst()
      }
      if rest.isEmpty { return removed }
    }
    try putMark(purge, for: MetaKey.purge(sequence), counters: &counters, in: transaction)
    return removed
  }

  /// Where a walk within the writer's transaction begins; nil if it would take too long, or deletion must wait.
  private func directPosition(of scope: RemovalScope) -> WalkPosition? {
    guard let index = index.current, index.isComplete else { return nil }
    guard scope.needsHostPass else { return .start }
    guard index.slotCount <= HostPass.directSlotCount else { return nil }
    return HostPass(over: self.index, hostTags: scope.hostPrefix.flatMap { hostTag(ofPrefix: $0) }.map { [$0] })
      .map { .found($0) }
  }

  private func putMark(
    _ purge: Purge, for key: [UInt8], counters: inout Counters, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    var writer = ByteWriter()
    writer.append(purge.lastRowID)
    writer.bytes += purge.scope.encoded
    try meta.put(Checksummed.encode(writer.bytes), for: key, in: transaction)
    counters.lastPurgeChange = transaction.id
  }

  /// Hides all that is stored for a key now by a mark, until the index is complete.
  func hide(
    _ key: [UInt8], counters: inout Counters, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    let purge = Purge(sequence: .max, scope: RemovalScope.key(key).abbreviated, lastRowID: counters.nextRowID &- 1)
    // No removal of the log has this number; the digest tells several marks apart.
    let metaKey = MetaKey.purge(.max) + withUnsafeBytes(of: keyDigest(of: key).bigEndian) { Array($0) }
    try putMark(purge, for: metaKey, counters: &counters, in: transaction)
    index.current?[IndexLayout.Word.lastMark] = transaction.id
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
  /// when all have been seen. Nil if the index must be passed over first.
  func collect(
    _ purge: Purge, limit: Int, from position: WalkPosition, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> (rows: [UInt64], end: WalkPosition?)? {
    let candidates: [UInt64]
    var end: WalkPosition?
    switch (purge.scope, position) {
    case (.everything, _):
      (candidates, end) = try rows(limit: limit, from: position, in: transaction)
    case (.since(let date), _):
      (candidates, end) = try rows(since: date, limit: limit, from: position, in: transaction)
    case (.key(let key), _):
      // All rows of one key.
      candidates = candidateRows(of: keyDigest(of: key))
    case (_, .found(var pass)):
      candidates = Array(pass.upcoming(limit))
      pass.advance(by: limit)
      end = pass.isDone ? nil : .found(pass)
    default:
      return nil
    }
    var covered: [UInt64] = []
    for rowID in candidates where try covers([purge], rowID: rowID, in: transaction) { covered.append(rowID) }
    return (covered, end)
  }

  /// Whether one of several purges covers a row.
  func covers(
    _ purges: [Purge], rowID: UInt64, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Bool {
    guard purges.contains(where: { rowID <= $0.lastRowID }) else { return false }
    return try heads.withValue(for: rowID, in: transaction) { (record) throws(LMDBError) in
      // What cannot be read is no loss.
      record.withUnsafeBytes { record in
        guard let head = HeadLayout(record) else { return true }
        return purges.contains { $0.covers(rowID: rowID, layout: head) }
      }
    } ?? false
  }

  private func rows(
    limit: Int, from position: WalkPosition, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> (rows: [UInt64], end: WalkPosition?) {
    var start: UInt64 = 0
    if case .row(let rowID) = position { start = rowID }
    var rows: [UInt64] = []
    var end: WalkPosition?
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
}

import FoundationEssentials
import LMDB
import Synchronization

extension ResponseStore {
  /// Checks the whole file, after writing what is queued (in a store that is only looked at nothing is): every record and body against its checksum, every row of every
  /// table against the others, the counters against the sums, and the files against the capacity.
  ///
  /// - Returns: A sentence for each thing that is wrong; empty when all is well.
  /// - Complexity: O(bytes stored). Holds a read transaction throughout, so the file may grow beside a busy writer.
  public func checkInvariants() -> [String] {
    guard isUsable else { return ["The store was given up: \(directory)"] }
    var violations: [String] = []
    // To write what others removed would wait for who writes.
    if !options.opensExistingOnly {
      // What was lost is for a flush to tell; here it counts what is stored.
      do throws(StoreError) { try flush(since: Atomic(acceptedNumber)) } catch { violations.append("\(error)") }
    }
    do {
      violations += try file.environment.read { (transaction) throws(LMDBError) in
        var check = InvariantCheck(file: file)
        try check.run(in: transaction, partialRowIDs: Set(partialBodies(in: transaction).map(\.rowID)))
        return check.violations
      }
    } catch {
      violations.append("Reading failed: \(error)")
    }
    let mapByteCount = file.environment.information.mapByteCount
    let usedByteCount = (file.environment.information.lastPageNumber + 1) * file.pageByteCount
    if usedByteCount > mapByteCount {
      violations.append("data.mdb has \(usedByteCount) bytes in a map of \(mapByteCount)")
    }
    let bound = StorageFormat.boundByteCount(capacityByteCount: capacityByteCount)
    if diskByteCount > bound { violations.append("The directory takes \(diskByteCount) bytes of at most \(bound)") }
    return violations
  }
}

/// One walk over all tables.
private struct InvariantCheck {
  let file: StoreFile
  var violations: [String] = []

  private struct Head {
    var tableKey: [UInt8]
    var storedAt: UInt64
    var removalSequence: UInt64
    var expiry: UInt64?
    var chunks: BodyChunks
    var bodyByteCount: Int
    var bodyChecksum: UInt64
    var inlineBodyChecksum: UInt64?
  }

  init(file: StoreFile) {
    self.file = file
  }

  mutating func run(in transaction: borrowing ReadTransaction, partialRowIDs: Set<UInt64>) throws(LMDBError) {
    let heads = try checkHeads(in: transaction)
    try checkKeys(heads, in: transaction)
    try checkDates(heads, in: transaction)
    try checkExpiries(heads, in: transaction)
    try checkBodies(heads, partialRowIDs: partialRowIDs, in: transaction)
  }

  private mutating func checkHeads(in transaction: borrowing ReadTransaction) throws(LMDBError) -> [UInt64: Head] {
    var heads: [UInt64: Head] = [:]
    var payloadByteCount = 0
    var found: [String] = []
    let file = file
    try file.heads.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      var more = try cursor.first()
      while more {
        let rowID = try cursor.checkedKey()
        let head = try cursor.withValue { (record) throws(LMDBError) in
          record.withUnsafeBytes { record -> Head? in
            guard let layout = HeadLayout(record), layout.hasRightChecksum else { return nil }
            payloadByteCount += record.count + (layout.isBodyInline ? 0 : layout.bodyByteCount)
            return Head(
              tableKey: StorageFormat.tableKey(of: [UInt8](layout.key)),
              storedAt: OrderedTime.encode(layout.storedAt), removalSequence: layout.removalSequence,
              expiry: layout.expiry.map(OrderedTime.encode),
              chunks: file.chunks(of: layout),
              bodyByteCount: layout.bodyByteCount, bodyChecksum: layout.bodyChecksum,
              inlineBodyChecksum: layout.isBodyInline ? XXHash.digest64(layout.inlineBody) : nil)
          }
        }
        if let head {
          heads[rowID] = head
          if let checksum = head.inlineBodyChecksum, checksum != head.bodyChecksum {
            found.append("The body in head \(rowID) does not match its checksum")
          }
        } else {
          found.append("Head \(rowID) is malformed or does not match its checksum")
        }
        more = try cursor.next()
      }
    }
    violations += found
    let counters = try file.counters(in: transaction)
    if counters.entryCount != UInt64(heads.count) {
      violations.append("The counters say \(counters.entryCount) entries, there are \(heads.count)")
    }
    if counters.payloadByteCount != UInt64(payloadByteCount) {
      violations.append("The counters say \(counters.payloadByteCount) bytes, there are \(payloadByteCount)")
    }
    if counters.adoptedRemoval > counters.knownRemoval {
      violations.append("Removal \(counters.adoptedRemoval) was adopted, and only \(counters.knownRemoval) are known")
    }
    if let last = heads.values.map(\.removalSequence).max(), last > counters.knownRemoval {
      violations.append("A head is newer than removal \(last), and only \(counters.knownRemoval) are known")
    }
    if let last = heads.keys.max(), last >= counters.nextRowID {
      violations.append("Row \(last) is not below the next row's number \(counters.nextRowID)")
    }
    return heads
  }

  private mutating func checkKeys(
    _ heads: [UInt64: Head], in transaction: borrowing ReadTransaction
  ) throws(LMDBError) {
    var named: Set<UInt64> = []
    var found: [String] = []
    try file.keys.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      var more = try cursor.first()
      while more {
        let key = try cursor.checkedKey()
        let rowIDs = try cursor.withValue { (bytes) throws(LMDBError) in
          bytes.withUnsafeBytes { StoreFile.rowIDs(in: $0) }
        }
        if rowIDs.isEmpty { found.append("A key has no rows") }
        for rowID in rowIDs {
          if !named.insert(rowID).inserted { found.append("Row \(rowID) has two keys") }
          if heads[rowID] == nil {
            found.append("A key names row \(rowID), which has no head")
          } else if heads[rowID]?.tableKey != key {
            found.append("Row \(rowID) stands under another key than its own")
          }
        }
        more = try cursor.next()
      }
    }
    for rowID in heads.keys where !named.contains(rowID) { found.append("Row \(rowID) has no key") }
    violations += found
  }

  private mutating func checkDates(
    _ heads: [UInt64: Head], in transaction: borrowing ReadTransaction
  ) throws(LMDBError) {
    var dated: Set<UInt64> = []
    var found: [String] = []
    try file.dates.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      var more = try cursor.first()
      while more {
        let key = try cursor.checkedKey()
        if !dated.insert(key.rowID).inserted { found.append("Row \(key.rowID) has two dates") }
        if heads[key.rowID]?.storedAt != key.time { found.append("The date of row \(key.rowID) is not its head's") }
        more = try cursor.next()
      }
    }
    for rowID in heads.keys where !dated.contains(rowID) { found.append("Row \(rowID) has no date") }
    violations += found
  }

  private mutating func checkExpiries(
    _ heads: [UInt64: Head], in transaction: borrowing ReadTransaction
  ) throws(LMDBError) {
    var named: Set<UInt64> = []
    var found: [String] = []
    try file.expiries.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      while try cursor.next() {
        let key = try cursor.checkedKey()
        named.insert(key.rowID)
        if heads[key.rowID]?.expiry != key.time { found.append("The expiry of row \(key.rowID) is not its head's") }
      }
    }
    for (rowID, head) in heads where head.expiry != nil && !named.contains(rowID) {
      found.append("Row \(rowID) lacks its expiry")
    }
    violations += found
  }

  private mutating func checkBodies(
    _ heads: [UInt64: Head], partialRowIDs: Set<UInt64>, in transaction: borrowing ReadTransaction
  ) throws(LMDBError) {
    var bodies: [UInt64: [UInt8]] = [:]
    var complete: Set<UInt64> = []
    var found: [String] = []
    let file = file
    try file.bodies.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      var more = try cursor.first()
      while more {
        let key = try cursor.checkedKey()
        defer { if complete.contains(key.rowID) { bodies[key.rowID] = nil } }
        if let head = heads[key.rowID] {
          var body = bodies.removeValue(forKey: key.rowID) ?? []
          if head.chunks.range(Int(key.index)).lowerBound != body.count {
            found.append("Row \(key.rowID) lacks a chunk")
          }
          try cursor.withValue { (chunk) throws(LMDBError) in
            chunk.withUnsafeBytes { body.append(contentsOf: $0) }
          }
          if Int(key.index) + 1 == head.chunks.count {
            complete.insert(key.rowID)
            if body.count != head.bodyByteCount || body.withUnsafeBytes({ XXHash.digest64($0) }) != head.bodyChecksum {
              found.append("The body of row \(key.rowID) does not match its checksum")
            }
          }
          bodies[key.rowID] = body
        } else if !partialRowIDs.contains(key.rowID) {
          found.append("Chunk \(key.index) of row \(key.rowID) has no head")
        }
        more = try cursor.next()
      }
    }
    for (rowID, head) in heads where head.chunks.count > 0 && !complete.contains(rowID) {
      found.append("The body of row \(rowID) is incomplete")
    }
    violations += found
  }
}

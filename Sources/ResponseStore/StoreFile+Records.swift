import FoundationEssentials
import Glibc
import LMDB

/// Records as rows of all tables together: whoever adds or removes one goes through here, so that the tables agree.
extension StoreFile {
  // MARK: Adding

  /// Adds a record in place of the same variant, if there is one.
  ///
  /// - Parameters:
  ///   - body: What stands in `bodies`; empty if the head has the body.
  ///   - writtenBodyID: The ID of a body whose chunks are there already.
  /// - Returns: The row ID, and how many records it replaced and how many it pushed out.
  func insert(
    head: HeadRecord, body: Data, writtenBodyID: UInt64? = nil, counters: inout Counters,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> (rowID: UInt64, replaced: Int, pushedOut: Int) {
    let digest = head.layout { keyDigest(of: $0.key) }
    let others = try replaceVariant(of: head, digest: digest, counters: &counters, in: transaction)
    let head = writtenBodyID.map { head.withBody($0) } ?? head
    var entry = head.layout { indexEntry(of: $0, rowID: 0, digest: digest) }
    entry.rowID = band(for: entry, replacing: others.replacedRow).rowID(counters.takeNumber())
    if writtenBodyID == nil, !head.isBodyInline {
      try putChunks(of: body, head: head, bodyID: entry.rowID, in: transaction)
    }
    try append(head.bytes, entry, counters: &counters, in: transaction)
    let date = DateKey(time: OrderedTime.encode(head.storedAt), rowID: entry.rowID)
    _ = try dates.put(entry.facts, for: date, in: transaction, mode: .append)
    if let expiry = head.expiry {
      let row = DateKey(time: OrderedTime.encode(expiry), rowID: entry.rowID)
      try expiries.put((), for: row, in: transaction, mode: .insert)
    }
    try noteInsertion(of: entry, digest: digest, replacing: others.replacedRow)
    counters.add(byteCount: head.bytes.count + (head.isBodyInline ? 0 : head.bodyByteCount))
    return (entry.rowID, others.replaced, others.pushedOut)
  }

  /// The band of a new record. The index counts its uses when the transaction is committed; this is what it will come to.
  private func band(for entry: IndexEntry, replacing replaced: UInt64?) -> Band {
    guard let index = index.current else { return entry.band(inflation: 0) }
    var entry = entry
    entry.inflation = index.inflation
    let slot = replaced.flatMap { index.slot(of: entry.tag, rowID: $0) }
    let useCount = slot.map { IndexEntry(facts: index.facts($0), place: 0).useCount } ?? index.ghost(tag: entry.tag)
    entry.useCount = min(useCount + 1, IndexEntry.maximumUseCount)
    return entry.band(inflation: index.inflation)
  }

  /// Appends a record to its log. With each segment that is full some that are empty are forgotten.
  private func append(
    _ record: [UInt8], _ entry: IndexEntry, counters: inout Counters, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    let isFull = try heads.append(
      record, entry: entry, closingByteCount: counters.closingByteCount, open: &counters.openSegments, in: transaction)
    guard isFull else { return }
    nextEmptySegment = try heads.removeEmptySegments(from: nextEmptySegment, in: transaction)
  }

  /// Appends a record again that eviction keeps. Its body stays where it is.
  ///
  /// - Parameters:
  ///   - record: Its bytes, whose checksum is right.
  ///   - entry: The record as the index has it; its row is freed.
  func move(
    _ record: [UInt8], _ entry: IndexEntry, counters: inout Counters, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    let oldRow = entry.rowID
    var entry = entry
    let inflation = index.current?.inflation ?? 0
    entry.rowID = entry.band(inflation: inflation).rowID(counters.takeNumber())
    var record = record
    let times = record.withUnsafeBytes { record -> (storedAt: Date, expiry: Date?, bodyID: UInt64?) in
      let layout = HeadLayout(checked: record)
      return (layout.storedAt, layout.expiry, layout.isBodyInline ? nil : layout.bodyID(ofRow: oldRow))
    }
    if let bodyID = times.bodyID { HeadRecord.setBodyID(bodyID, of: &record) }
    try append(record, entry, counters: &counters, in: transaction)
    try heads.removeChecked(oldRow, in: transaction)
    let storedAt = OrderedTime.encode(times.storedAt)
    let facts = try dates.value(for: DateKey(time: storedAt, rowID: oldRow), in: transaction) ?? entry.facts
    try dates.remove(DateKey(time: storedAt, rowID: oldRow), in: transaction)
    try dates.put(facts, for: DateKey(time: storedAt, rowID: entry.rowID), in: transaction)
    if let expiry = times.expiry.map(OrderedTime.encode) {
      try expiries.remove(DateKey(time: expiry, rowID: oldRow), in: transaction)
      try expiries.put((), for: DateKey(time: expiry, rowID: entry.rowID), in: transaction)
    }
    guard index.note(.move(entry, from: oldRow)) else { throw Self.fullJournal }
  }

  /// Makes way for a record: the one of the same variant goes, and the oldest one of a key that has too many. The row whose uses
  /// the new record takes over is one that was replaced.
  private func replaceVariant(
    of head: HeadRecord, digest: UInt64, counters: inout Counters, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> (replaced: Int, pushedOut: Int, replacedRow: UInt64?) {
    let rows = candidateRows(of: digest)
    if rows.isEmpty { return (0, 0, nil) }
    let key = head.key.bytes
    let vary = head.varyBytes
    var others: [(storedAt: Date, rowID: UInt64)] = []
    var replaced = 0
    var replacedRow: UInt64?
    for other in rows {
      let match = try heads.withValue(for: other, in: transaction) { (record) throws(LMDBError) in
        record.withUnsafeBytes { record -> (sameKey: Bool, sameVary: Bool, storedAt: Date)? in
          guard let layout = HeadLayout(record) else { return nil }
          let sameKey = layout.key.elementsEqual(key)
          return (sameKey, sameKey && layout.vary.elementsEqual(vary), layout.storedAt)
        }
      }
      // One that cannot be read is left to the next lookup.
      guard case .some(.some(let match)) = match, match.sameKey else { continue }
      if match.sameVary {
        let isFirst = replacedRow == nil
        try removeRecord(other, use: isFirst ? .passOn : .forget, counters: &counters, in: transaction)
        if isFirst { replacedRow = other }
        replaced += 1
      } else {
        others.append((match.storedAt, other))
      }
    }
    var pushedOut = 0
    // Rows that eviction has moved are not in the order of storing.
    if others.count >= StorageFormat.mostVariantsOfOneKey { others.sort { $0.storedAt < $1.storedAt } }
    // While the index is rebuilt, an older record of the same variant would come back.
    while others.count >= StorageFormat.mostVariantsOfOneKey, isIndexComplete {
      try removeRecord(others.removeFirst().rowID, counters: &counters, in: transaction)
      pushedOut += 1
    }
    return (replaced, pushedOut, replacedRow)
  }

  /// What a record takes: its own bytes, where it shares a page, else whole pages.
  func diskByteCount(of head: HeadLayout) -> Int {
    var byteCount = head.raw.count
    if byteCount > inlineByteCount { byteCount = pageCount(ofChunk: byteCount) * pageByteCount }
    guard !head.isBodyInline else { return byteCount }
    let body = bodyRoom(byteCount: head.bodyByteCount)
    return byteCount + body.pageCount * pageByteCount + body.sharedByteCount
  }

  /// Writes chunks of a body: those in `range`, or all.
  func putChunks(
    _ range: Range<Int>? = nil, of body: Data, head: HeadRecord, bodyID: UInt64,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    let chunks = head.layout { self.chunks(of: $0) }
    for index in range ?? 0..<chunks.count {
      let part = chunks.range(index)
      try bodies.reserve(
        byteCount: part.count, for: ChunkKey(bodyID: bodyID, index: UInt32(index)), in: transaction, mode: .append
      ) { destination in
        body.withUnsafeBytes { source in
          destination.copyMemory(from: UnsafeRawBufferPointer(rebasing: source[part]))
        }
      }
    }
  }

  /// Puts another head in a record's place; the body stays what it is, though a small one may move into the record or
  /// out of it. Nil if the record is gone, else its row: eviction may have moved it.
  func replaceHead(
    of rowID: UInt64, with head: HeadRecord, body: Data, counters: inout Counters,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> UInt64? {
    guard let rowID = try row(of: head, lastKnownAs: rowID, in: transaction) else { return nil }
    struct Old {
      var byteCount: Int
      var isBodyInline: Bool
      var isInSinglePages: Bool
      var expiry: Date?
      var bodyID: UInt64
    }
    let old = try heads.withValue(for: rowID, in: transaction) { (record) throws(LMDBError) in
      record.withUnsafeBytes { record -> Old? in
        guard let layout = HeadLayout(record), layout.hasRightChecksum else { return nil }
        return Old(
          byteCount: record.count + (layout.isBodyInline ? 0 : layout.bodyByteCount), isBodyInline: layout.isBodyInline,
          isInSinglePages: layout.hasSinglePageChunks, expiry: layout.expiry, bodyID: layout.bodyID(ofRow: rowID))
      }
    }
    guard case .some(.some(let old)) = old else { return nil }
    var head = old.isInSinglePages && !head.isBodyInline ? head.inSinglePages : head
    if old.isBodyInline, !head.isBodyInline {
      try putChunks(of: body, head: head, bodyID: rowID, in: transaction)
    } else if !old.isBodyInline, head.isBodyInline {
      try removeChunks(of: old.bodyID, in: transaction)
    } else if !old.isBodyInline, old.bodyID != rowID {
      head = head.withBody(old.bodyID)
    }
    try heads.put(head.bytes, for: rowID, in: transaction)
    if old.expiry != head.expiry {
      if let expiry = old.expiry {
        try expiries.remove(DateKey(time: OrderedTime.encode(expiry), rowID: rowID), in: transaction)
      }
      if let expiry = head.expiry {
        try expiries.put((), for: DateKey(time: OrderedTime.encode(expiry), rowID: rowID), in: transaction)
      }
    }
    counters.replace(
      byteCount: old.byteCount, with: head.bytes.count + (head.isBodyInline ? 0 : head.bodyByteCount))
    return rowID
  }

  /// The row of the record that an update is for; nil if it is gone.
  ///
  /// - Parameter rowID: Where it stood when it was looked up or stored.
  func row(
    of head: HeadRecord, lastKnownAs rowID: UInt64, in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> UInt64? {
    if try isRecord(of: head, rowID, in: transaction) { return rowID }
    for other in indexedRows(of: head.layout({ keyDigest(of: $0.key) })) where other != rowID {
      if try isRecord(of: head, other, in: transaction) { return other }
    }
    return nil
  }

  private func isRecord(
    of head: HeadRecord, _ rowID: UInt64, in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> Bool {
    try heads.withValue(for: rowID, in: transaction) { (record) throws(LMDBError) in
      record.withUnsafeBytes { HeadLayout($0)?.isSameRecord(as: head) ?? false }
    } ?? false
  }
}

import FoundationEssentials
import Glibc
import LMDB

/// Records as rows of all tables together: whoever adds or removes one goes through here, so that the tables agree.
extension StoreFile {
  // MARK: Adding

  /// The number for a new record: that of one that is gone and left room for it, else the next. A body that may be removed piece by
  /// piece must have one that is never given out again.
  func takeRowID(
    for head: HeadRecord, counters: inout Counters, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> UInt64 {
    let byteCount = head.bytes.count
    // While the index is rebuilt, a higher number must tell the newer of two records.
    if byteCount <= inlineByteCount, isIndexComplete,
      head.layout({ pageCount(of: chunks(of: $0)) }) <= Self.mostPagesRemovedAtOnce
    {
      while let rowID = freedRows.take(byteCount: byteCount) {
        if try !heads.contains(rowID, in: transaction) { return rowID }
      }
    }
    defer { counters.nextRowID += StorageFormat.rowIDStep }
    return counters.nextRowID
  }

  /// Adds a record whose chunks are written already or in the record itself, in place of the same variant, if there is
  /// one. Returns how many records it replaced and how many it pushed out.
  func insert(
    head: HeadRecord, rowID: UInt64, counters: inout Counters, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> (replaced: Int, pushedOut: Int) {
    let digest = head.layout { keyDigest(of: $0.key) }
    let others = try replaceVariant(of: head, digest: digest, counters: &counters, in: transaction)
    _ = try heads.put(head.bytes, for: rowID, in: transaction, mode: .append)
    let entry = head.layout { indexEntry(of: $0, rowID: rowID, digest: digest) }
    let date = DateKey(time: OrderedTime.encode(head.storedAt), rowID: rowID)
    _ = try dates.put(entry.facts, for: date, in: transaction, mode: .append)
    if let expiry = head.expiry {
      try expiries.put((), for: DateKey(time: OrderedTime.encode(expiry), rowID: rowID), in: transaction, mode: .insert)
    }
    try noteInsertion(of: entry, digest: digest, replacing: others.replacedRow)
    counters.add(byteCount: head.bytes.count + (head.isBodyInline ? 0 : head.bodyByteCount))
    return (others.replaced, others.pushedOut)
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
    var others: [UInt64] = []
    var replaced = 0
    var replacedRow: UInt64?
    for other in rows {
      let match = try heads.withValue(for: other, in: transaction) { (record) throws(LMDBError) in
        record.withUnsafeBytes { record -> (sameKey: Bool, sameVary: Bool)? in
          guard let layout = HeadLayout(record) else { return nil }
          let sameKey = layout.key.elementsEqual(key)
          return (sameKey, sameKey && layout.vary.elementsEqual(vary))
        }
      }
      // One that cannot be read is left to the next lookup.
      guard case .some(.some(let match)) = match, match.sameKey else { continue }
      if match.sameVary {
        let isFirst = replacedRow == nil
        try removeRecord(
          other, use: isFirst ? .passOn : .forget, counters: &counters, freesRow: true, in: transaction)
        if isFirst { replacedRow = other }
        replaced += 1
      } else {
        others.append(other)
      }
    }
    var pushedOut = 0
    // While the index is rebuilt, an older record of the same variant would come back.
    while others.count >= StorageFormat.mostVariantsOfOneKey, isIndexComplete {
      try removeRecord(others.removeFirst(), counters: &counters, in: transaction)
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
    _ range: Range<Int>? = nil, of body: Data, head: HeadRecord, rowID: UInt64,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    let chunks = head.layout { self.chunks(of: $0) }
    for index in range ?? 0..<chunks.count {
      let part = chunks.range(index)
      try bodies.reserve(
        byteCount: part.count, for: ChunkKey(rowID: rowID, index: UInt32(index)), in: transaction, mode: .append
      ) { destination in
        body.withUnsafeBytes { source in
          destination.copyMemory(from: UnsafeRawBufferPointer(rebasing: source[part]))
        }
      }
    }
  }

  /// Puts another head in a record's place; the body stays what it is, though a small one may move into the record or
  /// out of it. False if the record is gone.
  func replaceHead(
    of rowID: UInt64, with head: HeadRecord, body: Data, counters: inout Counters,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Bool {
    let old = try heads.withValue(for: rowID, in: transaction) { (record) throws(LMDBError) in
      record.withUnsafeBytes { record -> (byteCount: Int, isBodyInline: Bool, isInSinglePages: Bool, expiry: Date?)? in
        guard let layout = HeadLayout(record), layout.hasRightChecksum, layout.isSameRecord(as: head) else {
          return nil
        }
        return (
          record.count + (layout.isBodyInline ? 0 : layout.bodyByteCount), layout.isBodyInline,
          layout.hasSinglePageChunks, layout.expiry
        )
      }
    }
    guard case .some(.some(let old)) = old else { return false }
    let head = old.isInSinglePages && !head.isBodyInline ? head.inSinglePages : head
    if old.isBodyInline, !head.isBodyInline {
      try putChunks(of: body, head: head, rowID: rowID, in: transaction)
    } else if !old.isBodyInline, head.isBodyInline {
      try removeChunks(of: rowID, in: transaction)
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
    return true
  }
}

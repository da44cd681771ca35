import FoundationEssentials
import Glibc
import LMDB

/// Records as rows of all tables together: whoever adds or removes one goes through here, so that the tables agree.
extension StoreFile {
  /// The row ids that a key has, oldest first.
  func rowIDs<T: Transaction & ~Copyable>(
    forTableKey tableKey: UnsafeRawBufferPointer, in transaction: borrowing T
  ) throws(LMDBError) -> [UInt64] {
    try keys.withValue(forBytes: tableKey, in: transaction) { (list) throws(LMDBError) in
      list.withUnsafeBytes { Self.rowIDs(in: $0) }
    } ?? []
  }

  static func rowIDs(in list: UnsafeRawBufferPointer) -> [UInt64] {
    (0..<(list.count / 8)).map {
      UInt64(littleEndian: list.loadUnaligned(fromByteOffset: $0 * 8, as: UInt64.self))
    }
  }

  func setRowIDs(
    _ rowIDs: [UInt64], forKey key: [UInt8], in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    let tableKey = StorageFormat.tableKey(of: key)
    if rowIDs.isEmpty {
      _ = try keys.remove(tableKey, in: transaction)
    } else if rowIDs.count == 1 {
      try withBytes(of: tableKey) { (tableKey) throws(LMDBError) in
        _ = try putOnlyRowID(rowIDs[0], forTableKey: tableKey, mode: .upsert, in: transaction)
      }
    } else {
      var writer = ByteWriter()
      for rowID in rowIDs { writer.append(rowID) }
      _ = try keys.put(writer.bytes, for: tableKey, in: transaction)
    }
  }

  /// Returns whether it was stored: false only with ``PutMode/insert``, when the key has rows.
  private func putOnlyRowID(
    _ rowID: UInt64, forTableKey tableKey: UnsafeRawBufferPointer, mode: PutMode,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Bool {
    try withRawBytes(of: rowID.littleEndian) { (list) throws(LMDBError) in
      try keys.put(bytes: list, forBytes: tableKey, in: transaction, mode: mode)
    }
  }

  // MARK: Adding

  /// The number for a new record: that of one that is gone and left room for it, else the next. A body that may be removed piece by
  /// piece must have one that is never given out again.
  func takeRowID(
    for head: HeadRecord, counters: inout Counters, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> UInt64 {
    let byteCount = head.bytes.count
    if byteCount <= inlineByteCount, head.layout({ pageCount(of: chunks(of: $0)) }) <= Self.mostPagesRemovedAtOnce {
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
    // Most keys are new: then one search both finds that out and enters the row.
    let isNew = try withBytes(of: head.bytes) { (record) throws(LMDBError) in
      try StorageFormat.withTableKey(of: HeadLayout(checked: record).key) { (tableKey) throws(LMDBError) in
        try putOnlyRowID(rowID, forTableKey: tableKey, mode: .insert, in: transaction)
      }
    }
    let others =
      isNew
      ? (replaced: 0, pushedOut: 0)
      : try replaceVariant(of: head, by: rowID, counters: &counters, in: transaction)
    _ = try heads.put(head.bytes, for: rowID, in: transaction, mode: .append)
    let date = DateKey(time: OrderedTime.encode(head.storedAt), rowID: rowID)
    _ = try dates.put((), for: date, in: transaction, mode: .append)
    if let expiry = head.expiry {
      try expiries.put((), for: DateKey(time: OrderedTime.encode(expiry), rowID: rowID), in: transaction, mode: .insert)
    }
    uses.table?.insert(head.useDigest, rowID: rowID, byteCount: diskByteCount(of: head))
    counters.add(byteCount: head.bytes.count + (head.isBodyInline ? 0 : head.bodyByteCount))
    return others
  }

  /// Enters a row for a key that has rows already: the same variant's record goes, and the oldest one where there are too
  /// many.
  private func replaceVariant(
    of head: HeadRecord, by rowID: UInt64, counters: inout Counters, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> (replaced: Int, pushedOut: Int) {
    let key = head.key.bytes
    let vary = head.varyBytes
    var kept: [UInt64] = []
    var ofThisKey: [UInt64] = []
    var replaced = 0
    for other in try rowIDs(ofKey: key, in: transaction) {
      let match = try heads.withValue(for: other, in: transaction) { (record) throws(LMDBError) in
        record.withUnsafeBytes { record -> (sameKey: Bool, sameVary: Bool) in
          // One that cannot be read is replaced by whatever comes.
          guard let layout = HeadLayout(record) else { return (true, true) }
          let sameKey = layout.key.elementsEqual(key)
          return (sameKey, sameKey && layout.vary.elementsEqual(vary))
        }
      }
      guard let match else { continue }
      if match.sameVary {
        try removeRecord(
          other, use: .passOn, counters: &counters, leavingKeyRow: true, freesRow: true, in: transaction)
        replaced += 1
      } else {
        kept.append(other)
        if match.sameKey { ofThisKey.append(other) }
      }
    }
    var pushedOut = 0
    while ofThisKey.count >= StorageFormat.mostVariantsOfOneKey {
      let oldest = ofThisKey.removeFirst()
      try removeRecord(oldest, counters: &counters, leavingKeyRow: true, in: transaction)
      kept.removeAll { $0 == oldest }
      pushedOut += 1
    }
    try setRowIDs(kept + [rowID], forKey: key, in: transaction)
    return (replaced, pushedOut)
  }

  /// What a record takes: its own bytes, where it shares a page, else whole pages.
  private func diskByteCount(of head: HeadRecord) -> Int {
    var byteCount = head.bytes.count
    if byteCount > inlineByteCount { byteCount = pageCount(ofChunk: byteCount) * pageByteCount }
    guard !head.isBodyInline else { return byteCount }
    let body = bodyRoom(byteCount: head.bodyByteCount)
    return byteCount + body.pageCount * pageByteCount + body.sharedByteCount
  }

  func rowIDs<T: Transaction & ~Copyable>(
    ofKey key: [UInt8], in transaction: borrowing T
  ) throws(LMDBError) -> [UInt64] {
    let tableKey = StorageFormat.tableKey(of: key)
    var list: [UInt64] = []
    _ = try keys.withValue(for: tableKey, in: transaction) { (bytes) throws(LMDBError) in
      list = bytes.withUnsafeBytes { Self.rowIDs(in: $0) }
    }
    return list
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

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

  private func setRowIDs(
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
    if byteCount <= inlineByteCount, head.layout({ pageCount(of: chunks(of: $0)) }) <= Self.mostPagesAtOnce {
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

  // MARK: Removing

  /// A body of no more pages is always removed with its head.
  private static let mostPagesAtOnce = 16

  /// Removes a record and all that belongs to it. With `leavingKeyRow` the caller rewrites the key's row, with `freesRow` a new
  /// record may get the number. A record that is gone, or whose head is damaged, is no error; returns whether there was one.
  @discardableResult
  func removeRecord(
    _ rowID: UInt64, use: RecordUse.AfterRemoval = .forget, counters: inout Counters, leavingKeyRow: Bool = false,
    freesRow: Bool = false, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Bool {
    struct Head {
      var key: [UInt8]
      var useDigest: UInt64
      var expiry: Date?
      var storedAt: Date
      var chunkCount: Int
      var bodyPageCount: Int
      var byteCount: Int
    }
    let head = try heads.withValue(for: rowID, in: transaction) { (record) throws(LMDBError) in
      record.withUnsafeBytes { record -> Head? in
        guard let layout = HeadLayout(record), layout.checksum == HeadLayout.checksum(of: record) else { return nil }
        let chunks = chunks(of: layout)
        return Head(
          key: [UInt8](layout.key), useDigest: layout.useDigest, expiry: layout.expiry, storedAt: layout.storedAt,
          chunkCount: chunks.count, bodyPageCount: pageCount(of: chunks),
          byteCount: record.count + (layout.isBodyInline ? 0 : layout.bodyByteCount))
      }
    }
    guard let head else { return false }
    guard let head else {
      try removeByWalk([rowID], counters: &counters, in: transaction)
      return true
    }
    let isTooMuch = head.bodyPageCount > max(counters.freeablePageCount, Self.mostPagesAtOnce)
    if isTooMuch, StorageFormat.isInOrder(rowID: rowID) {
      try leaveBody(of: rowID, in: transaction)
      counters.deferredPageCount += head.bodyPageCount
    } else {
      for index in 0..<head.chunkCount {
        _ = try bodies.removeChecked(ChunkKey(rowID: rowID, index: UInt32(index)), in: transaction)
      }
      counters.freeablePageCount -= head.bodyPageCount
    }
    // A leaf of each table may be copied, whose old page comes free, too.
    counters.freeablePageCount -= 3 + (head.expiry == nil ? 0 : 1) + (head.chunkCount == 0 ? 0 : 1)
    _ = try dates.remove(DateKey(time: OrderedTime.encode(head.storedAt), rowID: rowID), in: transaction)
    if let expiry = head.expiry {
      try expiries.remove(DateKey(time: OrderedTime.encode(expiry), rowID: rowID), in: transaction)
    }
    // What stands there under the digest may be a newer record of the same key.
    if use != .passOn, let table = uses.table, table.rowID(of: head.useDigest) == UseTable.keptBits(of: rowID) {
      table.remove(head.useDigest, remembering: use == .remember)
    }
    _ = try heads.removeChecked(rowID, in: transaction)
    if freesRow { freedRows.note(rowID) }
    if !leavingKeyRow {
      let remaining = try rowIDs(ofKey: head.key, in: transaction).filter { $0 != rowID }
      try setRowIDs(remaining, forKey: head.key, in: transaction)
    }
    counters.remove(byteCount: head.byteCount)
    return true
  }

  /// Removes what is stored for the same key and Vary selection; returns how many records that were.
  func removeVariant(
    of head: HeadRecord, counters: inout Counters, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Int {
    let key = head.key.bytes
    let vary = head.varyBytes
    var removed = 0
    for rowID in try rowIDs(ofKey: key, in: transaction) {
      let isSame = try heads.withValue(for: rowID, in: transaction) { (record) throws(LMDBError) in
        record.withUnsafeBytes { record -> Bool in
          guard let layout = HeadLayout(record) else { return false }
          return layout.key.elementsEqual(key) && layout.vary.elementsEqual(vary)
        }
      }
      if isSame == true, try removeRecord(rowID, counters: &counters, in: transaction) { removed += 1 }
    }
    return removed
  }

  /// Removes records that were found damaged; returns how many were still there.
  func removeDamaged(
    _ rowIDs: Set<UInt64>, counters: inout Counters, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Int {
    var removed = 0
    var unreliable: Set<UInt64> = []
    for rowID in rowIDs {
      let isReliable = try heads.withValue(for: rowID, in: transaction) { (record) throws(LMDBError) in
        record.withUnsafeBytes { HeadLayout($0)?.hasRightChecksum ?? false }
      }
      if isReliable != nil { removed += 1 }
      if isReliable == true {
        try removeRecord(rowID, counters: &counters, in: transaction)
      } else {
        unreliable.insert(rowID)
      }
    }
    if !unreliable.isEmpty { try removeByWalk(unreliable, counters: &counters, in: transaction) }
    return removed
  }

  /// Removes records whose heads are missing or say nothing reliable: every row that names them is searched for. Costs a
  /// walk over the tables, which damage alone is worth.
  private func removeByWalk(
    _ rowIDs: Set<UInt64>, counters: inout Counters, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    for rowID in rowIDs {
      try heads.removeChecked(rowID, in: transaction)
      if StorageFormat.isInOrder(rowID: rowID) {
        try leaveBody(of: rowID, in: transaction)
      } else {
        try removeChunks(of: rowID, in: transaction)
      }
    }
    for table in [dates, expiries] {
      var dateKeys: [DateKey] = []
      try table.withCursor(in: transaction) { (cursor) throws(LMDBError) in
        while try cursor.next() {
          let key = try cursor.checkedKey()
          if rowIDs.contains(key.rowID) { dateKeys.append(key) }
        }
      }
      for key in dateKeys { try table.remove(key, in: transaction) }
    }
    var rows: [(key: [UInt8], rowIDs: [UInt64])] = []
    try keys.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      while try cursor.next() {
        let list = try cursor.withValue { (bytes) throws(LMDBError) in bytes.withUnsafeBytes { Self.rowIDs(in: $0) } }
        if list.contains(where: { rowIDs.contains($0) }) { rows.append((try cursor.checkedKey(), list)) }
      }
    }
    for row in rows {
      // The row's key is a table key already; it is never longer than one.
      try setRowIDs(row.rowIDs.filter { !rowIDs.contains($0) }, forKey: row.key, in: transaction)
    }
    try recount(&counters, in: transaction)
  }

  /// Leaves a body whose head goes for transactions to come.
  private func leaveBody(of rowID: UInt64, in transaction: borrowing WriteTransaction) throws(LMDBError) {
    try meta.put(PartialBody.encode(processID: 0), for: MetaKey.partial(rowID), in: transaction)
    lostBodies.note(rowID)
  }

  /// Removes whatever chunks there are of a record, or so many that about `pageCount` pages come free; true if none is left.
  @discardableResult
  func removeChunks(
    of rowID: UInt64, pageCount limit: Int = .max, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Bool {
    var chunkKeys: [ChunkKey] = []
    var pageCount = 0
    var more = false
    try bodies.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      more = try cursor.seek(atOrAfter: ChunkKey(rowID: rowID, index: 0))
      while more {
        let key = try cursor.checkedKey()
        more = key.rowID == rowID
        guard more, pageCount < limit else { break }
        chunkKeys.append(key)
        pageCount += try cursor.withValue { (chunk) throws(LMDBError) in self.pageCount(ofChunk: chunk.byteCount) }
        more = try cursor.next()
      }
    }
    for key in chunkKeys { _ = try bodies.removeChecked(key, in: transaction) }
    return !more
  }

  private func recount(
    _ counters: inout Counters, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    var entryCount: UInt64 = 0
    var byteCount: UInt64 = 0
    try heads.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      var more = try cursor.first()
      while more {
        entryCount += 1
        byteCount += try cursor.withValue { (record) throws(LMDBError) in
          record.withUnsafeBytes { record in
            guard let layout = HeadLayout(record) else { return UInt64(record.count) }
            return UInt64(record.count + (layout.isBodyInline ? 0 : layout.bodyByteCount))
          }
        }
        more = try cursor.next()
      }
    }
    counters.entryCount = entryCount
    counters.payloadByteCount = byteCount
  }
}

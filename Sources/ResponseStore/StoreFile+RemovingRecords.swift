import FoundationEssentials
import LMDB

/// The way out for records: one that goes takes its rows in all tables with it. A body that is too much for the transaction goes later.
extension StoreFile {
  /// A body of no more pages is always removed with its head.
  static let mostPagesRemovedAtOnce = 16

  /// Removes a record and all that belongs to it. With `freesRow` a new record may get the number. A record that is gone, or whose
  /// head is damaged, is no error; returns whether there was one.
  @discardableResult
  func removeRecord(
    _ rowID: UInt64, use: RecordUse.AfterRemoval = .forget, counters: inout Counters, freesRow: Bool = false,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Bool {
    struct Head {
      var digest: UInt64
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
          digest: keyDigest(of: layout.key), expiry: layout.expiry, storedAt: layout.storedAt,
          chunkCount: chunks.count, bodyPageCount: pageCount(of: chunks),
          byteCount: record.count + (layout.isBodyInline ? 0 : layout.bodyByteCount))
      }
    }
    guard let head else { return false }
    guard let head else {
      try removeByWalk([rowID], counters: &counters, in: transaction)
      return true
    }
    let isTooMuch = head.bodyPageCount > max(counters.freeablePageCount, Self.mostPagesRemovedAtOnce)
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
    if use != .passOn {
      try noteRemoval(tag: IndexEntry.tag(of: head.digest), rowID: rowID, remembering: use == .remember)
    }
    _ = try heads.removeChecked(rowID, in: transaction)
    if freesRow { freedRows.note(rowID) }
    counters.remove(byteCount: head.byteCount)
    return true
  }

  /// Removes what is stored for the same key and Vary selection; returns how many records that were. While the index is rebuilt a
  /// mark hides all variants of the key instead, as some may be found later.
  func removeVariant(
    of head: HeadRecord, counters: inout Counters, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Int {
    let key = head.key.bytes
    guard isIndexComplete else {
      try hide(key, counters: &counters, in: transaction)
      return 0
    }
    let vary = head.varyBytes
    var removed = 0
    for rowID in candidateRows(of: keyDigest(of: key)) {
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

  /// Removes records that were found damaged; returns how many were still there. None while the index is rebuilt, since older
  /// ones of the same keys would come back: the next lookup finds them again.
  func removeDamaged(
    _ rowIDs: Set<UInt64>, counters: inout Counters, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Int {
    guard isIndexComplete else { return 0 }
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

  /// Takes a record out of the index whose row is not there, and what else damage has left of it.
  func removeStray(
    _ entry: IndexEntry, counters: inout Counters, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    try noteRemoval(tag: entry.tag, rowID: entry.rowID, remembering: false)
    let headCount = try heads.statistics(in: transaction).entryCount
    if try dates.statistics(in: transaction).entryCount > headCount {
      try removeByWalk([entry.rowID], counters: &counters, in: transaction)
    }
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
    try removeDates(of: rowIDs, from: dates, in: transaction)
    try removeDates(of: rowIDs, from: expiries, in: transaction)
    var entries: [IndexEntry] = []
    index.current.map {
      $0.forEachEntry(in: 0..<$0.allSlotCount) { if rowIDs.contains($0.rowID) { entries.append($0) } }
    }
    for entry in entries { try noteRemoval(tag: entry.tag, rowID: entry.rowID, remembering: false) }
    try recount(&counters, in: transaction)
  }

  private func removeDates<V>(
    of rowIDs: Set<UInt64>, from table: Table<DateKeyCodec, V>, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    var dateKeys: [DateKey] = []
    try table.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      while try cursor.next() {
        let key = try cursor.checkedKey()
        if rowIDs.contains(key.rowID) { dateKeys.append(key) }
      }
    }
    for key in dateKeys { try table.remove(key, in: transaction) }
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

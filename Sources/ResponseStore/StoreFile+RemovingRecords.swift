import FoundationEssentials
import LMDB

/// The way out for records: one that goes takes its rows in all tables with it. A body that is too much for the transaction goes later.
extension StoreFile {
  /// A body of no more pages is always removed with its head.
  static let mostPagesRemovedAtOnce = 16
  /// What the rows of a record take in leaves of `dates`, `expiries` and `bodies`, with those of records that were stored at another
  /// time.
  private static let sharedByteCountOfRows = 400

  /// Removes a record and all that belongs to it. A record that is gone, or whose head is damaged, is no error; returns whether there
  /// was one.
  ///
  /// - Parameter isInRun: Whether the records next to it go in the same transaction: then they share the leaves that it changes.
  @discardableResult
  func removeRecord(
    _ rowID: UInt64, use: RecordUse.AfterRemoval = .forget, counters: inout Counters,
    isInRun: Bool = false, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Bool {
    struct Head {
      var digest: UInt64
      var expiry: Date?
      var storedAt: Date
      var bodyID: UInt64
      var chunkCount: Int
      var bodyPageCount: Int
      var recordByteCount: Int
      var byteCount: Int
    }
    let head = try heads.withValue(for: rowID, in: transaction) { (record) throws(LMDBError) in
      record.withUnsafeBytes { record -> Head? in
        guard let layout = HeadLayout(record), layout.checksum == HeadLayout.checksum(of: record) else { return nil }
        let chunks = chunks(of: layout)
        return Head(
          digest: keyDigest(of: layout.key), expiry: layout.expiry, storedAt: layout.storedAt,
          bodyID: layout.bodyID(ofRow: rowID), chunkCount: chunks.count, bodyPageCount: pageCount(of: chunks),
          recordByteCount: record.count,
          byteCount: record.count + (layout.isBodyInline ? 0 : layout.bodyByteCount))
      }
    }
    guard let head else { return false }
    guard let head else {
      try removeByWalk([rowID], counters: &counters, in: transaction)
      return true
    }
    if head.bodyPageCount > max(counters.freeablePageCount, Self.mostPagesRemovedAtOnce) {
      try leaveBody(head.bodyID, in: transaction)
      counters.deferredPageCount += head.bodyPageCount
    } else {
      for index in 0..<head.chunkCount {
        _ = try bodies.removeChecked(ChunkKey(bodyID: head.bodyID, index: UInt32(index)), in: transaction)
      }
      counters.freeablePageCount -= head.bodyPageCount
    }
    if isInRun {
      counters.countFreed(byteCount: head.recordByteCount + Self.sharedByteCountOfRows, pageByteCount: pageByteCount)
    } else {
      // A leaf of each table may be copied, whose old page comes free, too.
      counters.freeablePageCount -= 3 + (head.expiry == nil ? 0 : 1) + (head.chunkCount == 0 ? 0 : 1)
    }
    _ = try dates.remove(DateKey(time: OrderedTime.encode(head.storedAt), rowID: rowID), in: transaction)
    if let expiry = head.expiry {
      try expiries.remove(DateKey(time: OrderedTime.encode(expiry), rowID: rowID), in: transaction)
    }
    if use != .passOn {
      try noteRemoval(tag: IndexEntry.tag(of: head.digest), rowID: rowID, remembering: use == .remember)
    }
    _ = try heads.removeChecked(rowID, in: transaction)
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
    let headCount = try heads.rowCount(in: transaction)
    if try dates.statistics(in: transaction).entryCount > headCount {
      try removeByWalk([entry.rowID], counters: &counters, in: transaction)
    }
  }

  /// Removes records whose heads are missing or say nothing reliable: every row that names them is searched for, and every body that
  /// no head names is left to be swept. Costs a walk over the tables, which damage alone is worth.
  private func removeByWalk(
    _ rowIDs: Set<UInt64>, counters: inout Counters, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    for rowID in rowIDs {
      try heads.removeChecked(rowID, in: transaction)
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
  private func leaveBody(_ bodyID: UInt64, in transaction: borrowing WriteTransaction) throws(LMDBError) {
    try meta.put(PartialBody.encode(processID: 0), for: MetaKey.partial(bodyID), in: transaction)
    lostBodies.note(bodyID)
  }

  /// Removes whatever chunks there are of a body, or so many that about `pageCount` pages come free; true if none is left.
  @discardableResult
  func removeChunks(
    of bodyID: UInt64, pageCount limit: Int = .max, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Bool {
    var chunkKeys: [ChunkKey] = []
    var pageCount = 0
    var more = false
    try bodies.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      more = try cursor.seek(atOrAfter: ChunkKey(bodyID: bodyID, index: 0))
      while more {
        let key = try cursor.checkedKey()
        more = key.bodyID == bodyID
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
    var bodyIDs: [UInt64] = []
    for band in Band.all {
      try heads.forEachRow(of: band, in: transaction) { (rowID, record) throws(LMDBError) in
        entryCount += 1
        let layout = HeadLayout(record)
        if let layout, !layout.isBodyInline { bodyIDs.append(layout.bodyID(ofRow: rowID)) }
        byteCount += UInt64(record.count + (layout.map { $0.isBodyInline ? 0 : $0.bodyByteCount } ?? 0))
        return true
      }
    }
    counters.entryCount = entryCount
    counters.payloadByteCount = byteCount
    for bodyID in try self.bodyIDs(except: bodyIDs.sorted(), in: transaction) {
      // One that is being written or removed has such a row already.
      if try !meta.contains(MetaKey.partial(bodyID), in: transaction) { try leaveBody(bodyID, in: transaction) }
    }
  }

  /// The bodies that are not among these, which ascend.
  private func bodyIDs(
    except known: [UInt64], in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> [UInt64] {
    var others: [UInt64] = []
    var next = known[...]
    try bodies.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      while try cursor.next() {
        let bodyID = try cursor.checkedKey().bodyID
        next = next.drop { $0 < bodyID }
        if next.first != bodyID, others.last != bodyID { others.append(bodyID) }
      }
    }
    return others
  }
}

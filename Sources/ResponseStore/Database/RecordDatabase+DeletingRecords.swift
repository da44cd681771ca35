import FoundationEssentials
import LMDB

/// Deletion of records, with their rows in all tables. A body that is too large for the transaction is deleted later.
extension RecordDatabase {
  /// Deletes a record and its rows in all tables. Returns false if the record does not exist.
  ///
  /// A corrupt record header is not an error.
  @discardableResult
  func removeRecord(
    _ rowID: UInt64, use: UseCountFate = .forget, counters: inout PersistentCounters,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Bool {
    try removeRecords([rowID], counters: &counters, in: transaction) { (_, _) in use }.removed > 0
  }

  /// Deletes records with their rows in all tables, until the transaction has freed enough pages. Deletes at least one.
  ///
  /// - Parameters:
  ///   - rowIDs: The rows in ascending order. Rows that do not exist are skipped.
  ///   - isInRun: Whether the rows are adjacent, and therefore share the leaves that change.
  ///   - use: Returns what happens to a record's use count, or nil to keep the record. The record header is nil if it
  ///     cannot be parsed.
  /// - Returns: The number of deleted records, and the first row left for the next transaction.
  func removeRecords(
    _ rowIDs: [UInt64], counters: inout PersistentCounters, isInRun: Bool = false,
    in transaction: borrowing WriteTransaction,
    use: (UInt64, RecordHeaderView?) -> UseCountFate?
  ) throws(LMDBError) -> (removed: Int, next: UInt64?) {
    let found = try removableRecords(rowIDs, in: transaction, use: use)
    for rowID in found.corrupt { try removeCorrupt(rowID, counters: &counters, in: transaction) }
    let removal = try remove(found.records, counters: &counters, isInRun: isInRun, in: transaction)
    return (removal.rowIDs.count + found.corrupt.count, removal.next)
  }

  /// Reads the properties that a deletion needs, so that the write transaction need not parse and check the records.
  ///
  /// The parameters are those of ``removeRecords(_:counters:isInRun:in:use:)``.
  ///
  /// - Returns: The records in ascending order, and the rows with corrupt record headers.
  func removableRecords(
    _ rowIDs: [UInt64], in transaction: borrowing some Transaction & ~Copyable,
    use: (UInt64, RecordHeaderView?) -> UseCountFate?
  ) throws(LMDBError) -> (records: [RemovableRecord], corrupt: [UInt64]) {
    var records: [RemovableRecord] = []
    records.reserveCapacity(rowIDs.count)
    var corrupt: [UInt64] = []
    try heads.forEachRow(among: rowIDs, in: transaction) { (rowID, record) in
      let head = RecordHeaderView(record)
      guard let use = use(rowID, head) else { return }
      if let head, head.hasRightChecksum {
        records.append(removableRecord(rowID, head: head, use: use))
      } else {
        corrupt.append(rowID)
      }
    }
    // The logs were read one after the other.
    if records.count > 1 { records.sort { $0.rowID < $1.rowID } }
    return (records, corrupt)
  }

  /// Returns the properties that the deletion of a record needs.
  ///
  /// - Parameter head: A record header whose checksum was checked.
  func removableRecord(_ rowID: UInt64, head: RecordHeaderView, use: UseCountFate) -> RemovableRecord {
    let chunks = chunks(of: head)
    return RemovableRecord(
      rowID: rowID, checksum: head.checksum, tag: IndexEntry.tag(of: keyDigest(of: head.key)), use: use,
      date: DateKey(time: SortableTimestamp.encode(head.storedAt), rowID: rowID),
      bodyID: head.bodyID(ofRow: rowID), chunkCount: chunks.count, bodyPageCount: pageCount(of: chunks),
      recordByteCount: head.raw.count, byteCount: head.storedByteCount)
  }

  /// The result of ``remove(_:counters:isInRun:in:)``.
  struct Removal {
    /// The rows that were deleted.
    var rowIDs: [UInt64] = []
    /// The rows whose record header changed after it was read.
    var changed: [UInt64] = []
    /// The first row left for the next transaction.
    var next: UInt64?
  }

  /// Deletes records and their rows in all tables, table by table, until the transaction has freed enough pages.
  ///
  /// Deletes at least one. The records may have been read in an earlier transaction.
  ///
  /// - Parameters:
  ///   - records: The records in ascending order. Records that do not exist or have another record header are skipped.
  ///   - isInRun: Whether the rows are adjacent, and therefore share the leaves that change.
  func remove(
    _ records: [RemovableRecord], counters: inout PersistentCounters, isInRun: Bool,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Removal {
    var removal = Removal()
    var estimate = counters
    var count = 0
    while count < records.count, count == 0 || !estimate.hasFreedEnough {
      estimate.countRemoval(of: records[count], isInRun: isInRun, pageByteCount: pageByteCount)
      count += 1
    }
    if count < records.count { removal.next = records[count].rowID }
    let removed = try removeHeads(of: records[..<count], changed: &removal.changed, in: transaction)
    var chunks: [ChunkKey] = []
    for record in removed {
      let deletesBody = counters.countRemoval(of: record, isInRun: isInRun, pageByteCount: pageByteCount)
      if deletesBody {
        for index in 0..<record.chunkCount { chunks.append(ChunkKey(bodyID: record.bodyID, index: UInt32(index))) }
      } else {
        try addOrphanedBody(record.bodyID, in: transaction)
      }
      if record.use != .passOn {
        try noteRemoval(tag: record.tag, rowID: record.rowID, remembering: record.use == .remember)
      }
    }
    // Sort the keys in the order of their table.
    if !chunks.isEmpty { try bodies.removeEach(of: chunks.sorted(), in: transaction) }
    try dates.removeEach(of: removed.map(\.date).sorted(), in: transaction)
    removal.rowIDs = removed.map(\.rowID)
    return removal
  }

  /// Deletes the unchanged record headers, one log after the other. Returns their records.
  private func removeHeads(
    of records: ArraySlice<RemovableRecord>, changed: inout [UInt64], in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> [RemovableRecord] {
    var removed: [RemovableRecord] = []
    removed.reserveCapacity(records.count)
    for band in Band.all where records.contains(where: { Band(rowID: $0.rowID) == band }) {
      try heads[band].withCursor(in: transaction) { (cursor) throws(LMDBError) in
        for record in records where Band(rowID: record.rowID) == band {
          guard try cursor.seek(to: record.rowID) else { continue }
          let checksum = try cursor.withValue { (head) throws(LMDBError) in
            head.withUnsafeBytes { RecordHeaderView($0)?.checksum }
          }
          if checksum == record.checksum {
            try cursor.removeChecked()
            removed.append(record)
          } else {
            changed.append(record.rowID)
          }
        }
      }
    }
    return removed
  }

  /// Deletes the record with the same cache key and Vary key, unless it is newer. Returns how many there were.
  ///
  /// Another process may have stored a newer one since this one was queued.
  func removeVariant(
    of head: RecordHeader, counters: inout PersistentCounters, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Int {
    let key = head.key.bytes
    let vary = head.varyBytes
    var removed = 0
    for rowID in candidateRows(of: keyDigest(of: key)) {
      let isSame = try heads.withHeader(of: rowID, in: transaction) {
        $0.key.elementsEqual(key) && $0.vary.elementsEqual(vary) && !$0.isNewer(than: head)
      }
      if isSame == true, try removeRecord(rowID, counters: &counters, in: transaction) { removed += 1 }
    }
    return removed
  }

  /// Records a body as orphaned, so that later transactions delete it.
  func addOrphanedBody(_ bodyID: UInt64, in transaction: borrowing WriteTransaction) throws(LMDBError) {
    try meta.put(UnfinishedBody.encode(processID: 0), for: MetaKey.partial(bodyID), in: transaction)
    orphanedBodies.note(bodyID)
  }

  /// Deletes the chunks of a body, or as many as free about `pageCount` pages. Returns true if none is left.
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
    for key in chunkKeys { try bodies.removeChecked(key, in: transaction) }
    return !more
  }
}

/// The properties of a record, from its header, that its deletion needs.
struct RemovableRecord {
  var rowID: UInt64
  /// The checksum of the record header. Another checksum means that the header was updated in place.
  var checksum: UInt64
  /// The record's tag in the index.
  var tag: UInt64
  /// The fate of the use count.
  var use: UseCountFate
  /// The key of its row in `dates`.
  var date: DateKey
  /// The ID of a body outside the record; without such a body there are no chunks.
  var bodyID: UInt64
  var chunkCount: Int
  var bodyPageCount: Int
  var recordByteCount: Int
  /// The bytes of record header and body.
  var byteCount: Int
}

/// The fate of a record's use count when the record is deleted.
enum UseCountFate {
  /// It is dropped.
  case forget
  /// It is kept as a ghost entry, because the record was evicted.
  case remember
  /// The record that replaces this one inherits it.
  case passOn
}

extension PersistentCounters {
  /// A body with at most this many pages is always deleted with its record header.
  static let maximumPageCountRemovedAtOnce = 16
  /// The bytes that a record's rows take in leaves of `dates` and `bodies`.
  ///
  /// Includes rows of records that were stored at another time.
  private static let sharedByteCountOfRows = 400

  /// Counts the deletion of a record, and the pages that it frees.
  ///
  /// - Parameter isInRun: Whether the same transaction deletes adjacent records, so that they share the changed leaves.
  /// - Returns: Whether the body is deleted at once. A body that is too large for the transaction is deleted later.
  @discardableResult
  mutating func countRemoval(of record: RemovableRecord, isInRun: Bool, pageByteCount: Int) -> Bool {
    let deletesBody = record.bodyPageCount <= max(freeablePageCount, Self.maximumPageCountRemovedAtOnce)
    if deletesBody {
      freeablePageCount -= record.bodyPageCount
    } else {
      deferredPageCount += record.bodyPageCount
    }
    if isInRun {
      countFreed(byteCount: record.recordByteCount + Self.sharedByteCountOfRows, pageByteCount: pageByteCount)
    } else {
      // A leaf of each table may be copied, which also frees the old page.
      freeablePageCount -= 3 + (record.chunkCount == 0 ? 0 : 1)
    }
    remove(byteCount: record.byteCount)
    return deletesBody
  }
}

import FoundationEssentials
import LMDB

/// Deletion of records, with their rows in all tables. A body that is too large for the transaction is deleted later.
extension RecordDatabase {
  /// Deletes a record and its rows in all tables. Returns false if the record does not exist.
  ///
  /// A corrupt record header is not an error.
  @discardableResult
  func removeRecord(
    _ rowID: UInt64, use: UseCountFate = .forget, changes: inout RecordChanges,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Bool {
    try removeRecords([rowID], changes: &changes, in: transaction) { (_, _) in use }.removed > 0
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
    _ rowIDs: [UInt64], changes: inout RecordChanges, isInRun: Bool = false,
    in transaction: borrowing WriteTransaction,
    use: (UInt64, RecordHeaderView?) -> UseCountFate?
  ) throws(LMDBError) -> (removed: Int, next: UInt64?) {
    let found = try removableRecords(rowIDs, in: transaction, use: use)
    for rowID in found.corrupt { try removeCorrupt(rowID, changes: &changes, in: transaction) }
    let deletion = try remove(found.records, changes: &changes, isInRun: isInRun, in: transaction)
    return (deletion.rowIDs.count + found.corrupt.count, deletion.next)
  }

  /// Reads the properties that a deletion needs, so that the write transaction need not parse and check the records.
  ///
  /// The parameters are those of ``removeRecords(_:changes:isInRun:in:use:)``.
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
      rowID: rowID, checksum: head.checksum, tag: tag(of: head.key), use: use,
      date: DateKey(time: SortableTimestamp.encode(head.updatedAt), rowID: rowID),
      bodyID: head.bodyID(ofRow: rowID), chunkCount: chunks.count,
      tableRowCount: head.isBodyInline ? 0 : BlockTable.rowCount(bodyByteCount: head.bodyByteCount),
      bodyPageCount: pageCount(of: chunks),
      recordByteCount: head.raw.count, byteCount: head.storedByteCount, isKeySpace: RequestKey.isKeySpace(head.key))
  }

  /// The result of ``remove(_:changes:isInRun:in:)``.
  struct Deletion {
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
    _ records: [RemovableRecord], changes: inout RecordChanges, isInRun: Bool,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Deletion {
    var deletion = Deletion()
    var estimate = changes.freeing
    var count = 0
    while count < records.count, count == 0 || !estimate.isExhausted {
      estimate.countRemoval(of: records[count], isInRun: isInRun, pageByteCount: pageByteCount)
      count += 1
    }
    if count < records.count { deletion.next = records[count].rowID }
    let removed = try removeHeads(of: records[..<count], changed: &deletion.changed, in: transaction)
    var chunks: [ChunkKey] = []
    for record in removed {
      changes.counters.remove(byteCount: record.byteCount, isKeySpace: record.isKeySpace)
      let deletesBody = changes.freeing.countRemoval(of: record, isInRun: isInRun, pageByteCount: pageByteCount)
      if deletesBody {
        for index in 0..<record.chunkCount { chunks.append(ChunkKey(bodyID: record.bodyID, index: UInt32(index))) }
        for row in 0..<record.tableRowCount { chunks.append(BlockTable.key(bodyID: record.bodyID, row: row)) }
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
    deletion.rowIDs = removed.map(\.rowID)
    return deletion
  }

  /// Deletes records that were read in an earlier transaction, like ``remove(_:changes:isInRun:in:)``, and reads those
  /// again whose header has changed since.
  ///
  /// - Parameters:
  ///   - unreadable: Other rows to read again, because their record header was corrupt.
  ///   - use: As for ``removeRecords(_:changes:isInRun:in:use:)``, for the records that are read again.
  /// - Returns: The rows that were deleted as they were read, the number of others that were deleted, and the first row
  ///   left for the next transaction.
  func remove(
    _ records: [RemovableRecord], unreadable: [UInt64], changes: inout RecordChanges, isInRun: Bool,
    in transaction: borrowing WriteTransaction, use: (UInt64, RecordHeaderView?) -> UseCountFate?
  ) throws(LMDBError) -> (rowIDs: [UInt64], otherCount: Int, next: UInt64?) {
    let deletion =
      records.isEmpty ? Deletion() : try remove(records, changes: &changes, isInRun: isInRun, in: transaction)
    let others = deletion.changed + unreadable.filter { $0 < deletion.next ?? .max }
    guard !others.isEmpty else { return (deletion.rowIDs, 0, deletion.next) }
    let rest = try removeRecords(
      others.sorted(), changes: &changes, isInRun: isInRun, in: transaction, use: use)
    return (deletion.rowIDs, rest.removed, [deletion.next, rest.next].compactMap(\.self).min())
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
            try cursor.remove()
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
    of head: RecordHeader, changes: inout RecordChanges, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Int {
    let key = head.key.bytes
    let vary = head.varyBytes
    var removed = 0
    for rowID in candidateRows(ofTag: key.withUnsafeBytes { tag(of: $0) }) {
      let isSame = try heads.withHeader(of: rowID, in: transaction) {
        $0.key.elementsEqual(key) && $0.vary.elementsEqual(vary) && !$0.isNewer(than: head)
      }
      if isSame == true, try removeRecord(rowID, changes: &changes, in: transaction) { removed += 1 }
    }
    return removed
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
  var tableRowCount: Int
  var bodyPageCount: Int
  var recordByteCount: Int
  /// The bytes of record header and body.
  var byteCount: Int
  /// Whether it is the record of a key space, and not a response.
  var isKeySpace: Bool
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

import CacheModel
import Glibc
import LMDB

/// The open data file: the LMDB environment, the tables, the index, and sizes that follow from page and chunk size.
///
/// Immutable after opening, except for the members that the write lock guards. Any thread can use it.
///
/// `@unchecked Sendable`: `digestSecret` is never changed. `addedRows` and `nextEmptySegment` are accessed only with
/// the write lock.
final class RecordDatabase: @unchecked Sendable {
  let environment: LMDBEnvironment
  /// Row ID → ``RecordHeader``.
  let heads: RecordLogs
  /// Body ID and chunk number → bytes of the body.
  let bodies: Table<ChunkKeyCodec, BytesCodec>
  /// Time of the last update or of storing, and row ID → ``IndexEntry/tagWord``; the index is built from it.
  let dates: Table<DateKeyCodec, LittleEndianUInt64Codec>
  /// See ``MetaKey``.
  let meta: Table<BytesCodec, BytesCodec>
  /// Cache keys → row IDs, with the use counts for eviction.
  let index: IndexFile
  /// The rows that the current write transaction added. Needs the write lock.
  var addedRows: [UInt64: AddedRows] = [:]
  /// The position of the next search for segments without records. Needs the write lock.
  var nextEmptySegment: UInt64 = 0
  /// Orphaned bodies, to be deleted. The transaction that orphaned a body may have failed.
  let orphanedBodies = OrphanedBodies()
  /// Bodies that this process writes.
  let bodiesInProgress = BodiesInProgress()

  let format: FormatRecord
  /// The identity that the files of this store share.
  let owner: UInt64
  let pageByteCount: Int
  let chunkByteCount: Int
  /// The chunk size for bodies that are stored while no contiguous pages are free.
  let singlePageChunkByteCount: Int
  let inlineByteCount: Int
  /// A copy of the secret in ``format`` that lookups read without counting a reference.
  let digestSecret: UnsafeRawBufferPointer

  /// The kind of an opened data file.
  enum Contents {
    case store(RecordDatabase)
    case otherVersion(UInt32)
    case foreign
  }

  /// Opens or creates the tables; nil if one is missing and must not be created.
  private init?(
    directory: String, indexNumber: SharedWord, environment: LMDBEnvironment, tables: TableOpener,
    meta: Table<BytesCodec, BytesCodec>, format: FormatRecord
  ) throws(LMDBError) {
    guard let heads = try RecordLogs(tables),
      let bodies = try tables.open(StorageFormat.bodiesTable, ChunkKeyCodec.self, BytesCodec.self),
      let dates = try tables.open(StorageFormat.datesTable, DateKeyCodec.self, LittleEndianUInt64Codec.self)
    else { return nil }
    (self.environment, self.format, self.meta) = (environment, format, meta)
    (self.heads, self.bodies, self.dates) = (heads, bodies, dates)
    index = IndexFile(
      path: directory + "/" + IndexLayout.fileName, owner: format.owner, numberInUse: indexNumber,
      isInPlace: { environment.isDataFile(ofDirectory: directory) })
    owner = format.owner
    pageByteCount = environment.pageByteCount
    chunkByteCount = Int(format.chunkByteCount)
    singlePageChunkByteCount = environment.pageByteCount - 16
    inlineByteCount = StorageFormat.inlineRecordByteCount(pageByteCount: pageByteCount)
    let secret = UnsafeMutableRawBufferPointer.allocate(byteCount: format.secret.count, alignment: 16)
    secret.copyBytes(from: format.secret)
    digestSecret = UnsafeRawBufferPointer(secret)
  }

  deinit {
    digestSecret.deallocate()
  }

  /// Opens the file and its tables.
  ///
  /// - Parameters:
  ///   - indexNumber: The number of the index file in use; see ``IndexMapping``.
  ///   - completesNew: Whether to create the tables and the format record of a new file. Otherwise the call writes
  ///     nothing and waits for no writer.
  ///   - isReadOnly: Whether the directory is on a read-only file system, and no other process uses it.
  ///   - lockFile: The lock file that other processes have open; nil if there is none.
  static func open(
    directory: String, indexNumber: SharedWord, mapByteCount: Int, capacityByteCount: Int,
    completesNew: Bool = true, isReadOnly: Bool = false, lockFile: DirectoryIdentity? = nil,
    corruptionHandler: (@Sendable () -> Void)? = nil
  ) throws(LMDBError) -> Contents {
    var options = LMDBEnvironment.Options(mapByteCount: mapByteCount)
    options.corruptionHandler = corruptionHandler
    options.isReadOnly = isReadOnly
    options.lockFile = lockFile
    options.maximumReaders =
      completesNew ? StorageFormat.readerSlotCount(capacityByteCount: capacityByteCount) : nil
    let environment = try LMDBEnvironment.open(directory: directory, options: options)
    let tables = TableOpener(environment: environment, creates: completesNew)
    guard let meta = try tables.open(StorageFormat.metaTable, BytesCodec.self, BytesCodec.self) else { return .foreign }
    let stored = try environment.read { (transaction) throws(LMDBError) in
      try meta.value(for: MetaKey.format, in: transaction)
    }
    guard stored != nil || completesNew else { return .foreign }
    var format = FormatRecord(
      version: StorageFormat.version,
      chunkByteCount: UInt32(
        StorageFormat.chunkByteCount(capacityByteCount: capacityByteCount, pageByteCount: environment.pageByteCount)),
      secret: XXHash.randomSecret())
    if let stored {
      guard let version = stored.withUnsafeBytes({ FormatRecord.version(in: $0) }) else { return .foreign }
      guard version == StorageFormat.version else { return .otherVersion(version) }
      guard let record = stored.withUnsafeBytes({ FormatRecord($0) }) else {
        throw LMDBError(code: .corrupted, function: "mdb_get")
      }
      format = record
    }
    let file = try RecordDatabase(
      directory: directory, indexNumber: indexNumber, environment: environment, tables: tables, meta: meta,
      format: format
    )
    guard let file else { return .foreign }
    if stored == nil {
      let isNew = try environment.write { (transaction) throws(LMDBError) in
        // A process may have died after creating the tables. A file with any other content belongs to another program.
        guard try file.hasOnlyEmptyTables(in: transaction) else { return false }
        try meta.put(format.encoded, for: MetaKey.format, in: transaction)
        var counters = PersistentCounters()
        counters.capacityByteCount = UInt64(capacityByteCount)
        try file.setCounters(counters, in: transaction)
        return true
      }
      guard isNew else { return .foreign }
    }
    return .store(file)
  }

  private func hasOnlyEmptyTables(in transaction: borrowing WriteTransaction) throws(LMDBError) -> Bool {
    let tableCount = RecordLogs.tableCount + 3
    guard try environment.mainTableStatistics(in: transaction).entryCount == tableCount,
      try heads.hasNoSegments(in: transaction)
    else { return false }
    let metaCount = try meta.statistics(in: transaction).entryCount
    return try rowCounts(in: transaction) == RowCounts() && metaCount == 0
  }

  /// Returns the counters in the transaction's snapshot.
  func counters(in transaction: borrowing some Transaction & ~Copyable) throws(LMDBError) -> PersistentCounters {
    let counters = try meta.withValue(for: MetaKey.counters, in: transaction) { (bytes) throws(LMDBError) in
      bytes.withUnsafeBytes { PersistentCounters($0) }
    }
    guard case .some(.some(let counters)) = counters else {
      throw LMDBError(code: .corrupted, function: "mdb_get")
    }
    return counters
  }

  /// Returns the counters at the last commit.
  func counters() throws(LMDBError) -> PersistentCounters {
    try environment.read { (transaction) throws(LMDBError) in try counters(in: transaction) }
  }

  /// Runs `body` with the counters of the transaction, and then stores them.
  ///
  /// - Parameter pageCount: The number of pages that `body` may free; see ``FreeingBudget``.
  func change<R>(
    in transaction: borrowing WriteTransaction, freeing pageCount: Int = FreeingBudget.defaultPageCount,
    _ body: (inout RecordChanges) throws(LMDBError) -> R
  ) throws(LMDBError) -> R {
    var changes = RecordChanges(
      counters: try counters(in: transaction), freeing: FreeingBudget(pageCount: pageCount))
    let result = try body(&changes)
    try setCounters(changes.counters, in: transaction)
    return result
  }

  private func setCounters(
    _ counters: PersistentCounters, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    try meta.put(counters.encoded, for: MetaKey.counters, in: transaction)
  }

  /// The numbers of rows in the tables of records, dates and chunks.
  struct RowCounts: Equatable {
    var records = 0
    var dates = 0
    var chunks = 0
  }

  func rowCounts(in transaction: borrowing some Transaction & ~Copyable) throws(LMDBError) -> RowCounts {
    RowCounts(
      records: try heads.rowCount(in: transaction), dates: try dates.statistics(in: transaction).entryCount,
      chunks: try bodies.statistics(in: transaction).entryCount)
  }

  /// Returns the chunks of a body in `bodies`; none for an inline body.
  func chunks(of head: RecordHeaderView) -> ChunkLayout {
    chunks(
      ofByteCount: head.isBodyInline ? 0 : head.bodyByteCount,
      chunkByteCount: head.hasSinglePageChunks ? singlePageChunkByteCount : chunkByteCount)
  }

  private func chunks(ofByteCount byteCount: Int, chunkByteCount: Int) -> ChunkLayout {
    ChunkLayout(bodyByteCount: byteCount, chunkByteCount: chunkByteCount, pageByteCount: pageByteCount)
  }

  /// Estimates the pages that the chunks of a body take for themselves.
  func pageCount(of chunks: ChunkLayout) -> Int {
    chunks.count == 0 ? 0 : chunks.count * pageCount(ofChunk: chunks.range(0).count)
  }

  /// Returns the pages that a value of `bodies` takes.
  func pageCount(ofChunk byteCount: Int) -> Int {
    byteCount <= inlineByteCount ? 1 : (byteCount + 16 + pageByteCount - 1) / pageByteCount
  }

  /// Returns an upper bound of the space for storing a record with its rows: whole pages, and bytes in shared leaves.
  func spaceRequired(
    recordByteCount: Int, bodyByteCount: Int
  ) -> (pageCount: Int, sharedByteCount: Int) {
    // A row in a leaf costs 16 bytes more. Leaves that are not appended to can be half empty.
    var (pageCount, sharedByteCount) = bodySpaceRequired(byteCount: bodyByteCount)
    sharedByteCount += 40 + 32
    if recordByteCount <= inlineByteCount {
      sharedByteCount += recordByteCount + 32
    } else {
      pageCount += self.pageCount(ofChunk: recordByteCount)
    }
    return (pageCount, sharedByteCount)
  }

  /// Returns the space for the chunks of a body: whole pages, and bytes in leaves.
  func bodySpaceRequired(byteCount: Int) -> (pageCount: Int, sharedByteCount: Int) {
    var pageCount = byteCount / chunkByteCount * self.pageCount(ofChunk: chunkByteCount)
    var sharedByteCount = 0
    // A row of the table has four pages.
    pageCount += BlockTable.rowCount(bodyByteCount: byteCount) * 4
    let chunks = chunks(ofByteCount: byteCount, chunkByteCount: chunkByteCount)
    for index in byteCount / chunkByteCount..<chunks.count {
      let part = chunks.range(index).count
      if part <= inlineByteCount {
        sharedByteCount += part + 32
      } else {
        pageCount += self.pageCount(ofChunk: part)
      }
    }
    return (pageCount, sharedByteCount)
  }
}

/// Opens the tables of a data file.
struct TableOpener {
  let environment: LMDBEnvironment
  /// Whether missing tables are created. That is a write, and waits for other writers.
  let creates: Bool

  /// Opens a table; nil if it is missing and not created.
  func open<K: KeyCodec, V: ValueCodec>(
    _ name: String, _ key: K.Type, _ value: V.Type
  ) throws(LMDBError) -> Table<K, V>? {
    creates
      ? try environment.table(name, key: key, value: value)
      : try environment.existingTable(name, key: key, value: value)
  }
}

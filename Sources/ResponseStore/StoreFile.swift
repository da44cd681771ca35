import Glibc
import LMDB

/// The open data file: LMDB's environment, the tables, the index beside them, and the numbers that follow from page and chunk size.
///
/// Immutable after opening but for what the write lock guards, so any thread may use it.
///
/// `@unchecked Sendable`: `digestSecret` is never changed.
final class StoreFile: @unchecked Sendable {
  let environment: Environment
  /// Row ID → ``HeadRecord``.
  let heads: RecordLogs
  /// ID of a body and chunk number → bytes of the body.
  let bodies: Table<ChunkKeyCodec, BytesCodec>
  /// Stored time and row ID → ``IndexEntry/facts``: what the index is rebuilt from.
  let dates: Table<DateKeyCodec, LittleEndianUInt64>
  /// When a response that cannot be validated stops being of use, and its row ID → nothing.
  let expiries: Table<DateKeyCodec, Empty>
  /// See ``MetaKey``.
  let meta: Table<BytesCodec, BytesCodec>
  /// From request keys to row IDs, with the uses of each record, which eviction goes by.
  let index: IndexFile
  /// Of the write transaction under way; touched only with the write lock.
  var addedRows: [UInt64: AddedRows] = [:]
  /// Where the next look for segments without records begins; touched only with the write lock.
  var nextEmptySegment: UInt64 = 0
  /// Bodies without a head, which nobody writes: to be swept. The transaction that made one so may have failed.
  let lostBodies = LostBodies()

  let format: FormatRecord
  /// What ties the files beside the data to it.
  let owner: UInt64
  let pageByteCount: Int
  let chunkByteCount: Int
  /// For bodies that are stored while no pages in a row are free.
  let singlePageChunkByteCount: Int
  let inlineByteCount: Int
  /// A copy of the secret in ``format`` that lookups read without counting a reference.
  let digestSecret: UnsafeRawBufferPointer

  /// Whether an open file is one of ours.
  enum Contents {
    case store(StoreFile)
    case otherVersion(UInt32)
    case foreign
  }

  private init(
    environment: Environment, heads: RecordLogs, bodies: Table<ChunkKeyCodec, BytesCodec>,
    dates: Table<DateKeyCodec, LittleEndianUInt64>, expiries: Table<DateKeyCodec, Empty>,
    meta: Table<BytesCodec, BytesCodec>, index: IndexFile, format: FormatRecord
  ) {
    self.environment = environment
    self.heads = heads
    self.bodies = bodies
    self.dates = dates
    self.expiries = expiries
    self.index = index
    self.meta = meta
    self.format = format
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

  /// Opens the file and its tables; a new, empty file gets them and its format record, unless it is to stay as it is. Then
  /// nothing is written, and nobody waited for who writes.
  static func open(
    directory: String, mapByteCount: Int, capacityByteCount: Int, completesNew: Bool = true,
    damageHandler: (@Sendable () -> Void)? = nil
  ) throws(LMDBError) -> Contents {
    var options = Environment.Options(mapByteCount: mapByteCount)
    options.damageHandler = damageHandler
    options.maximumReaders =
      completesNew ? StorageFormat.readerSlotCount(capacityByteCount: capacityByteCount) : nil
    let environment = try Environment.open(directory: directory, options: options)
    func table<K: KeyCodec, V: ValueCodec>(
      _ name: String, _ key: K.Type, _ value: V.Type
    ) throws(LMDBError) -> Table<K, V>? {
      // To make a table is to write, and waits for others who do.
      completesNew
        ? try environment.table(name, key: key, value: value)
        : try environment.existingTable(name, key: key, value: value)
    }
    guard let meta = try table(StorageFormat.metaTable, BytesCodec.self, BytesCodec.self) else { return .foreign }
    let stored = try environment.read { (transaction) throws(LMDBError) in
      try meta.value(for: MetaKey.format, in: transaction)
    }
    guard stored != nil || completesNew else { return .foreign }
    var format = FormatRecord(
      version: StorageFormat.version,
      chunkByteCount: UInt32(
        StorageFormat.chunkByteCount(capacityByteCount: capacityByteCount, pageByteCount: environment.pageByteCount)),
      secret: randomBytes(FormatRecord.secretByteCount))
    if let stored {
      guard let version = stored.withUnsafeBytes({ FormatRecord.version(in: $0) }) else { return .foreign }
      guard version == StorageFormat.version else { return .otherVersion(version) }
      guard let record = stored.withUnsafeBytes({ FormatRecord($0) }) else {
        throw LMDBError(code: .corrupted, function: "mdb_get")
      }
      format = record
    }
    let heads = try RecordLogs { (name) throws(LMDBError) in
      try table(name, BigEndianUInt64.self, BytesCodec.self)
    } segments: { (name) throws(LMDBError) in
      try table(name, BigEndianUInt64.self, BigEndianPair.self)
    }
    guard let heads,
      let bodies = try table(StorageFormat.bodiesTable, ChunkKeyCodec.self, BytesCodec.self),
      let dates = try table(StorageFormat.datesTable, DateKeyCodec.self, LittleEndianUInt64.self),
      let expiries = try table(StorageFormat.expiriesTable, DateKeyCodec.self, Empty.self)
    else { return .foreign }
    let file = StoreFile(
      environment: environment, heads: heads, bodies: bodies, dates: dates, expiries: expiries, meta: meta,
      index: IndexFile(
        path: directory + "/" + IndexLayout.fileName, owner: format.owner,
        isInPlace: { environment.isDataFile(ofDirectory: directory) }), format: format)
    if stored == nil {
      let isNew = try environment.write { (transaction) throws(LMDBError) in
        // Whoever made the tables may have died before this. A file with anything else in it belongs to someone else.
        guard try file.hasOnlyEmptyTables(in: transaction) else { return false }
        _ = try meta.put(format.encoded, for: MetaKey.format, in: transaction)
        var counters = Counters()
        counters.capacityByteCount = UInt64(capacityByteCount)
        try file.setCounters(counters, in: transaction)
        return true
      }
      guard isNew else { return .foreign }
    }
    return .store(file)
  }

  private func hasOnlyEmptyTables(in transaction: borrowing WriteTransaction) throws(LMDBError) -> Bool {
    let tableCount = RecordLogs.tableCount + 4
    guard try environment.mainTableStatistics(in: transaction).entryCount == tableCount,
      try heads.hasNoSegments(in: transaction)
    else { return false }
    let rowCount =
      try heads.rowCount(in: transaction) + bodies.statistics(in: transaction).entryCount
      + dates.statistics(in: transaction).entryCount
      + expiries.statistics(in: transaction).entryCount + meta.statistics(in: transaction).entryCount
    return rowCount == 0
  }

  private static func randomBytes(_ count: Int) -> [UInt8] {
    var generator = SystemRandomNumberGenerator()
    return (0..<count).map { _ in UInt8.random(in: 0...255, using: &generator) }
  }

  /// The counters as the transaction sees them.
  func counters<T: Transaction & ~Copyable>(in transaction: borrowing T) throws(LMDBError) -> Counters {
    let counters = try meta.withValue(for: MetaKey.counters, in: transaction) { (bytes) throws(LMDBError) in
      bytes.withUnsafeBytes { Counters($0) }
    }
    guard case .some(.some(let counters)) = counters else {
      throw LMDBError(code: .corrupted, function: "mdb_get")
    }
    return counters
  }

  func setCounters(_ counters: Counters, in transaction: borrowing WriteTransaction) throws(LMDBError) {
    _ = try meta.put(counters.encoded, for: MetaKey.counters, in: transaction)
  }

  /// The chunks of `bodies` that hold a body; none where it is in the head.
  func chunks(of head: HeadLayout) -> BodyChunks {
    chunks(
      ofByteCount: head.isBodyInline ? 0 : head.bodyByteCount,
      chunkByteCount: head.hasSinglePageChunks ? singlePageChunkByteCount : chunkByteCount)
  }

  private func chunks(ofByteCount byteCount: Int, chunkByteCount: Int) -> BodyChunks {
    BodyChunks(bodyByteCount: byteCount, chunkByteCount: chunkByteCount, pageByteCount: pageByteCount)
  }

  /// The pages that a body's chunks take for themselves, roughly.
  func pageCount(of chunks: BodyChunks) -> Int {
    chunks.count == 0 ? 0 : chunks.count * pageCount(ofChunk: chunks.range(0).count)
  }

  /// The pages that a value of `bodies` takes.
  func pageCount(ofChunk byteCount: Int) -> Int {
    byteCount <= inlineByteCount ? 1 : (byteCount + 16 + pageByteCount - 1) / pageByteCount
  }

  /// An upper estimate of what storing a record takes, index rows included: whole pages, and bytes in leaves that it shares.
  func room(
    recordByteCount: Int, bodyByteCount: Int
  ) -> (pageCount: Int, sharedByteCount: Int) {
    // A row in a leaf costs 16 bytes more. Leaves that are not appended to are half full at worst.
    var (pageCount, sharedByteCount) = bodyRoom(byteCount: bodyByteCount)
    sharedByteCount += 40 + 2 * 32
    if recordByteCount <= inlineByteCount {
      sharedByteCount += recordByteCount + 32
    } else {
      pageCount += self.pageCount(ofChunk: recordByteCount)
    }
    return (pageCount, sharedByteCount)
  }

  /// What the chunks of a body take: whole pages, and bytes in leaves.
  func bodyRoom(byteCount: Int) -> (pageCount: Int, sharedByteCount: Int) {
    var pageCount = byteCount / chunkByteCount * self.pageCount(ofChunk: chunkByteCount)
    var sharedByteCount = 0
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

import FoundationEssentials
import LMDB

/// A check of all tables against each other, in steps that hold a bounded number of rows.
///
/// No step needs a set of the rows that were seen. The rows of each head are looked up in the other tables. A row of another table
/// that belongs to no head then shows in the counts: each head has a row of its own there, so equal counts leave none over. Only where
/// counts differ, or belong to no single snapshot, `dates` and `expiries` are walked and each of their rows is looked up. A chunk does
/// not tell its head, so chunks that belong to none are only counted, and only in a single snapshot.
///
/// The index follows the last commit and not a snapshot. So what seems wrong with it is looked at again in a snapshot of the last
/// commit. One that is being rebuilt is not checked.
struct StoreCheck {
  private let store: ResponseStore
  private let file: StoreFile
  private let maximumSnapshotAge: Duration
  private var result: StoreVerification

  private var phases: [Phase] = [.heads, .sums]
  private var lastSnapshot: UInt64?
  /// Whether nobody has committed anything since the beginning, as far as this matters: all that was counted belongs together.
  private var isOneSnapshot = true
  private var unreleasedByteCount = 0
  private var nextRowID: UInt64 = 0
  private var nextTime = DateKey(time: 0, rowID: 0)
  private var nextSlot = 0
  /// Rows that the index seems to lack, and records of the index that seem to have no row.
  private var unindexedRows: Set<UInt64> = []
  private var strayEntries: Set<IndexEntry> = []
  private var walked = Sums()
  private var headReadAhead = Band.all.map { ReadAhead(table: RecordLogs.table(of: $0)) }
  private var bodyReadAhead = ReadAhead(table: StorageFormat.bodiesTable, includesLargeValues: true)

  private enum Phase {
    /// Heads with their bodies, and the rows that they have in the other tables.
    case heads
    /// The counts; decides which of the other tables are to be walked.
    case sums
    /// The rows of other tables, each of which must have a head.
    case dates, expiries
    /// The index: only how many records it has, or each of them, and again what seemed wrong.
    case indexCount, index, indexAgain
  }

  /// What is counted over all heads.
  private struct Sums {
    var entryCount = 0
    var payloadByteCount = 0
    var expiryCount = 0
    var chunkCount = 0
  }

  /// A record as far as the other tables repeat it.
  private struct Head {
    var entry: IndexEntry
    var nameDigest: UInt64
    var storedAt: UInt64
    var removalSequence: UInt64
    var expiry: UInt64?
    var bodyID: UInt64
    var chunks: BodyChunks
    var bodyByteCount: Int
    var bodyChecksum: UInt64
    var inlineBodyChecksum: UInt64?
    var recordByteCount: Int
    var isHidden: Bool
  }

  init(store: ResponseStore, maximumSnapshotAge: Duration, result: StoreVerification) {
    self.store = store
    file = store.file
    self.maximumSnapshotAge = maximumSnapshotAge
    self.result = result
  }

  mutating func run(progress: (Int, Int) -> Void) throws(LMDBError) -> StoreVerification {
    let environment = file.environment
    while !phases.isEmpty {
      try environment.read { (transaction) throws(LMDBError) in
        let id = transaction.id
        if lastSnapshot != nil, lastSnapshot != id { isOneSnapshot = false }
        lastSnapshot = id
        let deadline = MonotonicTime.now + maximumSnapshotAge
        while let phase = phases.first {
          // A snapshot of the last commit keeps no page from being used.
          let mayGoOn = { environment.lastTransactionID == id || MonotonicTime.now < deadline }
          guard try advance(phase, in: transaction, mayGoOn, progress) else { return }
          phases.removeFirst()
        }
      }
    }
    return result
  }

  // MARK: Steps

  /// Goes on with a phase; false to renew the snapshot before it is at its end.
  private mutating func advance(
    _ phase: Phase, in transaction: borrowing ReadTransaction, _ mayGoOn: () -> Bool, _ progress: (Int, Int) -> Void
  ) throws(LMDBError) -> Bool {
    switch phase {
    case .heads:
      return try checkHeads(in: transaction, mayGoOn: mayGoOn, progress: progress)
    case .sums:
      try compareSums(in: transaction)
      return true
    case .dates:
      return try checkTimes(of: file.dates, named: "date", in: transaction, mayGoOn) {
        OrderedTime.encode($0.storedAt)
      }
    case .expiries:
      return try checkTimes(of: file.expiries, named: "expiry", in: transaction, mayGoOn) {
        $0.expiry.map(OrderedTime.encode)
      }
    case .indexCount:
      if try countIndex(in: transaction) != walked.entryCount { phases.insert(.index, at: 1) }
      return true
    case .index:
      return try checkIndex(in: transaction, mayGoOn)
    case .indexAgain:
      return try checkIndexAgain(in: transaction)
    }
  }

  /// A process that only looks at the store need not keep in memory what it has read.
  private mutating func noteRead(_ byteCount: Int, _ transaction: borrowing ReadTransaction) {
    // A fault maps up to 16 pages around it, and what is read leads to other tables.
    unreleasedByteCount += byteCount + 2 * 16 * file.pageByteCount
    guard unreleasedByteCount > 16 << 20, store.options.opensExistingOnly else { return }
    unreleasedByteCount = 0
    file.environment.releaseResidentPages(transaction)
  }

  // MARK: Heads and bodies

  private mutating func checkHeads(
    in transaction: borrowing ReadTransaction, mayGoOn: () -> Bool, progress: (Int, Int) -> Void
  ) throws(LMDBError) -> Bool {
    let counters = try file.counters(in: transaction)
    let purges = try store.removals.purges(in: transaction)
    let total = try file.heads.rowCount(in: transaction)
    var newestRemoval: UInt64 = 0
    var isDone = true
    try file.bodies.withCursor(in: transaction) { (bodies) throws(LMDBError) in
      var stepCount = 0
      try file.heads.forEachRow(from: nextRowID, in: transaction) { (rowID, record) throws(LMDBError) in
        if stepCount.isMultiple(of: 256) {
          nextRowID = rowID
          isDone = stepCount == 0 || mayGoOn()
          guard isDone else { return false }
          progress(walked.entryCount, max(total, walked.entryCount))
          let band = Band(rowID: rowID)?.number ?? 0
          headReadAhead[band].advance(to: try BigEndianUInt64.bytes(of: rowID), in: file.environment, transaction)
        }
        stepCount += 1
        guard let head = head(in: record, rowID, hiddenBy: purges) else {
          walked.entryCount += 1
          result.report("Head \(rowID) is malformed or does not match its checksum")
          return true
        }
        count(head)
        newestRemoval = max(newestRemoval, head.removalSequence)
        try checkRows(of: head, rowID, in: transaction)
        try checkBody(of: head, rowID, &bodies, transaction)
        noteRead(head.recordByteCount, transaction)
        return true
      }
    }
    if newestRemoval > counters.knownRemoval {
      result.report("A head is newer than removal \(newestRemoval), and only \(counters.knownRemoval) are known")
    }
    return isDone
  }

  private func head(
    in record: UnsafeRawBufferPointer, _ rowID: UInt64, hiddenBy purges: [Purge]
  ) -> Head? {
    guard let layout = HeadLayout(record), layout.hasRightChecksum else { return nil }
    return Head(
      entry: file.indexEntry(of: layout, rowID: rowID), nameDigest: layout.nameDigest,
      storedAt: OrderedTime.encode(layout.storedAt),
      removalSequence: layout.removalSequence, expiry: layout.expiry.map(OrderedTime.encode),
      bodyID: layout.bodyID(ofRow: rowID), chunks: file.chunks(of: layout), bodyByteCount: layout.bodyByteCount,
      bodyChecksum: layout.bodyChecksum,
      inlineBodyChecksum: layout.isBodyInline ? XXHash.digest64(layout.inlineBody) : nil, recordByteCount: record.count,
      isHidden: purges.contains { $0.covers(rowID: rowID, layout: layout) })
  }

  private mutating func count(_ head: Head) {
    walked.entryCount += 1
    walked.payloadByteCount += head.recordByteCount + (head.inlineBodyChecksum == nil ? head.bodyByteCount : 0)
    if head.expiry != nil { walked.expiryCount += 1 }
    guard !head.isHidden else { return }
    result.entryCount += 1
    result.bodyByteCount += head.bodyByteCount
  }

  /// The rows that a head has in the other tables.
  private mutating func checkRows(
    of head: Head, _ rowID: UInt64, in transaction: borrowing ReadTransaction
  ) throws(LMDBError) {
    switch try file.dates.value(for: DateKey(time: head.storedAt, rowID: rowID), in: transaction) {
    case nil: result.report("Row \(rowID) has no date")
    case let facts? where !IndexEntry(facts: facts, place: 0).hasSameTags(as: head.entry):
      result.report("The date of row \(rowID) names another key")
    default: break
    }
    if let expiry = head.expiry, try !file.expiries.contains(DateKey(time: expiry, rowID: rowID), in: transaction) {
      result.report("Row \(rowID) lacks its expiry")
    }
    for other in rowsInIndex(of: head.entry) where other != rowID {
      let isSame = try file.heads.withValue(for: other, in: transaction) { (record) throws(LMDBError) in
        record.withUnsafeBytes { HeadLayout($0)?.nameDigest == head.nameDigest }
      }
      if isSame == true { result.report("Row \(rowID) has the key and variant of row \(other)") }
    }
    if !rowsInIndex(of: head.entry).contains(rowID), unindexedRows.count < Self.maximumSuspectCount {
      unindexedRows.insert(rowID)
    }
  }

  private mutating func checkBody(
    of head: Head, _ rowID: UInt64, _ bodies: inout Cursor<ChunkKeyCodec, BytesCodec>,
    _ transaction: borrowing ReadTransaction
  ) throws(LMDBError) {
    if let checksum = head.inlineBodyChecksum, checksum != head.bodyChecksum {
      result.report("The body in head \(rowID) does not match its checksum")
    }
    guard head.chunks.count > 0 else { return }
    let first = ChunkKey(bodyID: head.bodyID, index: 0)
    bodyReadAhead.advance(to: try ChunkKeyCodec.bytes(of: first), in: file.environment, transaction)
    let hash = XXHash.Stream()
    var isComplete = true
    var hasChunk = try bodies.seek(atOrAfter: first)
    for index in 0..<head.chunks.count {
      guard hasChunk, try bodies.checkedKey() == ChunkKey(bodyID: head.bodyID, index: UInt32(index)) else {
        result.report("Row \(rowID) lacks chunk \(index)")
        isComplete = false
        break
      }
      let byteCount = try bodies.withValue { (chunk) throws(LMDBError) in
        chunk.withUnsafeBytes { bytes -> Int in
          hash.append(bytes)
          return bytes.count
        }
      }
      walked.chunkCount += 1
      if byteCount != head.chunks.range(index).count { isComplete = false }
      noteRead(byteCount, transaction)
      hasChunk = try bodies.next()
    }
    if !isComplete {
      result.report("The body of row \(rowID) is incomplete")
    } else if hash.digest != head.bodyChecksum {
      result.report("The body of row \(rowID) does not match its checksum")
    }
  }

  // MARK: Sums

  private mutating func compareSums(in transaction: borrowing ReadTransaction) throws(LMDBError) {
    let counters = try file.counters(in: transaction)
    if let lastRowID = try file.heads.rowID(below: .max, in: transaction), lastRowID >= counters.nextRowID {
      result.report("Row \(lastRowID) is not below the next row's number \(counters.nextRowID)")
    }
    if counters.adoptedRemoval > counters.knownRemoval {
      result.report("Removal \(counters.adoptedRemoval) was adopted, and only \(counters.knownRemoval) are known")
    }
    result.hasComparedSums = isOneSnapshot
    // Where others wrote meanwhile, LMDB's own count is of the same moment as the counters.
    let entryCount = isOneSnapshot ? walked.entryCount : try file.heads.rowCount(in: transaction)
    if counters.entryCount != UInt64(entryCount) {
      result.report("The counters say \(counters.entryCount) entries, there are \(entryCount)")
    }
    if isOneSnapshot, counters.payloadByteCount != UInt64(walked.payloadByteCount) {
      result.report("The counters say \(counters.payloadByteCount) bytes, there are \(walked.payloadByteCount)")
    }
    if isOneSnapshot { try compareChunks(in: transaction) }
    let dateCount = try file.dates.statistics(in: transaction).entryCount
    let expiryCount = try file.expiries.statistics(in: transaction).entryCount
    if !isOneSnapshot || dateCount != entryCount { phases.append(.dates) }
    if !isOneSnapshot || expiryCount != walked.expiryCount { phases.append(.expiries) }
    phases += [isOneSnapshot ? .indexCount : .index, .indexAgain]
  }

  /// Those of a body that is being written or removed belong to no head yet, or no more.
  private mutating func compareChunks(in transaction: borrowing ReadTransaction) throws(LMDBError) {
    var partialCount = 0
    for body in try store.partialBodies(in: transaction) {
      try file.bodies.withCursor(in: transaction) { (cursor) throws(LMDBError) in
        var more = try cursor.seek(atOrAfter: ChunkKey(bodyID: body.bodyID, index: 0))
        while more, try cursor.checkedKey().bodyID == body.bodyID {
          partialCount += 1
          more = try cursor.next()
        }
      }
    }
    let count = try file.bodies.statistics(in: transaction).entryCount
    if count > walked.chunkCount + partialCount {
      result.report("\(count - walked.chunkCount - partialCount) chunks belong to no head")
    }
  }

  // MARK: From the other tables to heads

  /// Looks each row of a table of times up in `heads`.
  private mutating func checkTimes<Value>(
    of table: Table<DateKeyCodec, Value>, named name: String, in transaction: borrowing ReadTransaction,
    _ mayGoOn: () -> Bool, _ time: (HeadLayout) -> UInt64?
  ) throws(LMDBError) -> Bool {
    try table.withCursor(in: transaction) { (cursor) throws(LMDBError) -> Bool in
      var more = try cursor.seek(atOrAfter: nextTime)
      var stepCount = 0
      while more {
        nextTime = try cursor.checkedKey()
        if stepCount.isMultiple(of: 256), stepCount > 0, !mayGoOn() { return false }
        stepCount += 1
        let rowID = nextTime.rowID
        let stored = try file.heads.withValue(for: rowID, in: transaction) { (record) throws(LMDBError) in
          record.withUnsafeBytes { HeadLayout($0).flatMap(time) }
        }
        if stored != nextTime.time { result.report("The \(name) of row \(rowID) is not its head's") }
        noteRead(file.pageByteCount, transaction)
        more = try cursor.next()
      }
      nextTime = DateKey(time: 0, rowID: 0)
      return true
    }
  }

  // MARK: The index

  /// The most rows and records that are looked at again.
  private static let maximumSuspectCount = 1024

  /// The rows that the index names for a record's key.
  private func rowsInIndex(of entry: IndexEntry) -> [UInt64] { file.indexedRows(of: entry.tag << 24) }

  /// Whether the index should have exactly the records of a snapshot.
  private func isIndexExact(in transaction: borrowing ReadTransaction) throws(LMDBError) -> Bool {
    guard let index = file.index.current, index.isComplete, !index.hasJournal else { return false }
    return try file.counters(in: transaction).firstUnindexedRowID == 0
      && file.environment.lastTransactionID == transaction.id
  }

  /// How many records the index has; as many as there are where it cannot tell.
  private func countIndex(in transaction: borrowing ReadTransaction) throws(LMDBError) -> Int {
    guard try isIndexExact(in: transaction), let index = file.index.current else { return walked.entryCount }
    var count = 0
    index.forEachEntry(in: 0..<index.allSlotCount) { _ in count += 1 }
    return index.recordCount == count ? count : -1
  }

  /// Looks each record of the index up in `heads`.
  private mutating func checkIndex(
    in transaction: borrowing ReadTransaction, _ mayGoOn: () -> Bool
  ) throws(LMDBError) -> Bool {
    guard let index = file.index.current, index.isComplete else { return true }
    while nextSlot < index.allSlotCount {
      var entries: [IndexEntry] = []
      index.forEachEntry(in: nextSlot..<min(nextSlot + 256, index.allSlotCount)) { entries.append($0) }
      nextSlot += 256
      for entry in entries where strayEntries.count < Self.maximumSuspectCount {
        if try !file.heads.contains(entry.rowID, in: transaction) { strayEntries.insert(entry) }
        noteRead(file.pageByteCount, transaction)
      }
      if nextSlot < index.allSlotCount, !mayGoOn() { return false }
    }
    return true
  }

  /// Reports what is still wrong when the snapshot is that of the last commit. Where others write all the time, nothing is said.
  private mutating func checkIndexAgain(in transaction: borrowing ReadTransaction) throws(LMDBError) -> Bool {
    guard try isIndexExact(in: transaction), let index = file.index.current else { return true }
    var violations: [String] = []
    if isOneSnapshot, index.recordCount != walked.entryCount {
      violations.append("The index says \(index.recordCount) records, there are \(walked.entryCount)")
    }
    for rowID in unindexedRows.sorted() {
      let entry = try file.heads.withValue(for: rowID, in: transaction) { (record) throws(LMDBError) in
        record.withUnsafeBytes { record in HeadLayout(record).map { file.indexEntry(of: $0, rowID: rowID) } }
      }
      guard case .some(.some(let entry)) = entry, !rowsInIndex(of: entry).contains(rowID) else { continue }
      violations.append("Row \(rowID) is not in the index under its key")
    }
    for entry in strayEntries.sorted(by: { $0.rowID < $1.rowID })
    where index.slot(of: entry.tag, rowID: entry.rowID) != nil {
      if try !file.heads.contains(entry.rowID, in: transaction) {
        violations.append("The index names row \(entry.rowID), which has no head")
      }
    }
    guard try isIndexExact(in: transaction), file.index.current === index else { return true }
    for violation in violations { result.report(violation) }
    return true
  }
}

extension IndexEntry {
  /// Whether both may be of one key.
  func hasSameTags(as other: IndexEntry) -> Bool { tag == other.tag && hostTag == other.hostTag }
}

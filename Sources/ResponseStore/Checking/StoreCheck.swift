import CacheModel
import FoundationEssentials
import Glibc
import LMDB

/// A check of all tables against each other, in steps that hold a bounded number of rows.
///
/// The check keeps no set of the rows that it has seen. It looks up the rows of each record header in the other tables
/// and in the index. Each record header has its own rows there, so equal counts mean that no other row exists.
///
/// The index follows the last commit, not a snapshot. Apparent errors in the index are checked again in a snapshot of
/// the last commit. An absent index is not checked.
struct StoreCheck {
  let context: StoreContext
  let database: RecordDatabase
  private let maximumSnapshotAge: Duration
  var result: StoreVerification

  private var phases: [Phase] = [.heads, .sums, .index]
  private var lastSnapshot: UInt64?
  /// Whether no process has committed since the beginning, so that all counts belong to one snapshot.
  var isOneSnapshot = true
  private var unreleasedByteCount = 0
  private var nextRowID: UInt64 = 0
  /// Whether the snapshot was renewed for the check of the index.
  private var hasSnapshotForIndex = false
  /// Rows that the index seems to lack.
  var unindexedRows: Set<UInt64> = []
  var walked = Sums()
  private var headReadAhead = RecordReadAhead()
  private var bodyReadAhead = ReadAhead(table: StorageFormat.bodiesTable)

  private enum Phase {
    /// Checks record headers with their bodies, and their rows in the other tables.
    case heads
    /// Compares the counts.
    case sums
    /// Compares the index with the record headers.
    case index
  }

  /// Counts over all record headers.
  struct Sums {
    var entryCount = 0
    /// Of these, the records of key spaces.
    var spaceCount = 0
    var payloadByteCount = 0
    var chunkCount = 0
  }

  init(_ context: StoreContext, maximumSnapshotAge: Duration, result: StoreVerification) {
    self.context = context
    database = context.database
    self.maximumSnapshotAge = maximumSnapshotAge
    self.result = result
  }

  mutating func run(progress: (Int, Int) -> Void) throws(LMDBError) -> StoreVerification {
    let environment = database.environment
    while !phases.isEmpty {
      try environment.read { (transaction) throws(LMDBError) in
        let id = transaction.id
        if lastSnapshot != nil, lastSnapshot != id { isOneSnapshot = false }
        lastSnapshot = id
        let deadline = MonotonicTime.now + maximumSnapshotAge
        while let phase = phases.first {
          // A snapshot of the last commit prevents no reuse of pages.
          let mayGoOn = { environment.lastTransactionID == id || MonotonicTime.now < deadline }
          guard try advance(phase, in: transaction, mayGoOn, progress) else { return }
          phases.removeFirst()
        }
      }
    }
    return result
  }

  // MARK: Steps

  /// Continues a phase. Returns false if the snapshot must be renewed before the phase ends.
  private mutating func advance(
    _ phase: Phase, in transaction: borrowing ReadTransaction, _ mayGoOn: () -> Bool, _ progress: (Int, Int) -> Void
  ) throws(LMDBError) -> Bool {
    switch phase {
    case .heads:
      return try checkHeads(in: transaction, mayGoOn: mayGoOn, progress: progress)
    case .sums:
      try compareSums(in: transaction)
      return true
    case .index:
      // In a new snapshot, because the index follows the last commit.
      if !hasSnapshotForIndex, database.environment.lastTransactionID != transaction.id {
        hasSnapshotForIndex = true
        return false
      }
      try checkIndex(in: transaction)
      return true
    }
  }

  /// Counts the bytes read, and releases resident pages in a process that only inspects the store.
  mutating func noteRead(_ byteCount: Int, _ transaction: borrowing ReadTransaction) {
    // Each read leads to other tables.
    unreleasedByteCount += byteCount + database.pageByteCount
    guard unreleasedByteCount > Self.releasedByteCount, context.options.opensExistingOnly else { return }
    unreleasedByteCount = 0
    database.environment.releaseResidentPages(in: transaction)
    database.index.current?.releaseResidentPages()
  }

  /// The bytes that are read between two releases. A page fault in the index maps 16 of its pages, so after more
  /// records all of it would be resident.
  private static let releasedByteCount = 2 << 20

  // MARK: Heads and bodies

  private mutating func checkHeads(
    in transaction: borrowing ReadTransaction, mayGoOn: () -> Bool, progress: (Int, Int) -> Void
  ) throws(LMDBError) -> Bool {
    let counters = try database.counters(in: transaction)
    let tombstones = try context.removals.activeTombstones(in: transaction)
    let total = try database.heads.rowCount(in: transaction)
    var newestRemoval: UInt64 = 0
    var isDone = true
    var stepCount = 0
    try database.heads.forEachRow(from: nextRowID, in: transaction) { (rowID, record) throws(LMDBError) in
      if stepCount.isMultiple(of: 256) {
        nextRowID = rowID
        isDone = stepCount == 0 || mayGoOn()
        guard isDone else { return false }
        progress(walked.entryCount, max(total, walked.entryCount))
        try headReadAhead.advance(to: rowID, in: database.environment, transaction)
      }
      stepCount += 1
      guard let head = RecordHeaderView(record), head.hasRightChecksum else {
        walked.entryCount += 1
        result.report("The record header of row \(rowID) is malformed or does not match its checksum")
        return true
      }
      count(head, isHidden: tombstones.hide(rowID: rowID, head))
      newestRemoval = max(newestRemoval, head.removalSequence)
      try checkRows(of: head, rowID, in: transaction)
      try checkBody(of: head, rowID, in: transaction)
      noteRead(record.count, transaction)
      return true
    }
    if newestRemoval > counters.knownRemoval {
      result.report("A record is newer than removal \(newestRemoval), and only \(counters.knownRemoval) are known")
    }
    return isDone
  }

  private mutating func count(_ head: RecordHeaderView, isHidden: Bool) {
    walked.entryCount += 1
    walked.payloadByteCount += head.storedByteCount
    // The record of a key space is no response.
    let isKeySpace = RequestKey.isKeySpace(head.key)
    if isKeySpace { walked.spaceCount += 1 }
    guard !isHidden, !isKeySpace else { return }
    result.entryCount += 1
    result.bodyByteCount += head.bodyByteCount
  }

  /// Checks the rows of a record header in the other tables.
  private mutating func checkRows(
    of head: RecordHeaderView, _ rowID: UInt64, in transaction: borrowing ReadTransaction
  ) throws(LMDBError) {
    let entry = database.indexEntry(of: head, rowID: rowID)
    let date = DateKey(time: SortableTimestamp.encode(head.updatedAt), rowID: rowID)
    switch try database.tagWord(of: date, in: transaction) {
    case nil: result.report("Row \(rowID) has no date")
    case let tagWord? where !IndexEntry(tagWord: tagWord, rowWord: 0).hasSameTags(as: entry):
      result.report("The date of row \(rowID) names another key")
    default: break
    }
    let name = head.nameDigest
    for other in rowsInIndex(of: entry) where other != rowID {
      let isSame = try database.heads.withHeader(of: other, in: transaction) { $0.nameDigest == name }
      if isSame == true {
        result.report("Row \(rowID) has the key and variant of row \(other)")
      }
    }
    if unindexedRows.count < Self.maximumSuspectCount, !rowsInIndex(of: entry).contains(rowID) {
      unindexedRows.insert(rowID)
    }
  }

  private mutating func checkBody(
    of head: RecordHeaderView, _ rowID: UInt64, in transaction: borrowing ReadTransaction
  ) throws(LMDBError) {
    if head.isBodyInline, XXHash.digest64(head.inlineBody) != head.bodyChecksum {
      result.report("The body in row \(rowID) does not match its checksum")
    }
    let chunks = database.chunks(of: head)
    guard chunks.count > 0 else { return }
    let bodyID = head.bodyID(ofRow: rowID)
    let first = ChunkKey(bodyID: bodyID, index: 0)
    bodyReadAhead.advance(to: try ChunkKeyCodec.bytes(of: first), in: database.environment, transaction)
    var checksum = BodyChecksum()
    var isComplete = true
    var count = 0
    var tableRowCount = 0
    var hasRightTable = true
    try database.forEachChunk(ofBody: bodyID, in: transaction) { (index, chunk) in
      if BlockTable.contains(ChunkKey(bodyID: bodyID, index: index)), count == chunks.count {
        if tableRowCount == 0 { _ = checksum.digest() }
        let blocks = checksum.takeBlocks(min(BlockTable.blockCountPerRow, checksum.blocks.count))
        if BlockTable.checksums(chunk, 0..<chunk.count / 8) != blocks { hasRightTable = false }
        tableRowCount += 1
        return true
      }
      guard count < chunks.count, index == count else { return false }
      // At once, because a page fault reads one page.
      let start = UInt(bitPattern: chunk.baseAddress) & ~UInt(database.pageByteCount - 1)
      madvise(UnsafeMutableRawPointer(bitPattern: start), chunk.count, MADV_WILLNEED)
      checksum.append(chunk)
      if chunk.count != chunks.range(count).count { isComplete = false }
      count += 1
      noteRead(chunk.count, transaction)
      return true
    }
    walked.chunkCount += count + tableRowCount
    if !hasRightTable || tableRowCount != BlockTable.rowCount(bodyByteCount: head.bodyByteCount) {
      result.report("The table of the body of row \(rowID) is wrong")
    }
    if count < chunks.count {
      result.report("Row \(rowID) lacks chunk \(count)")
      isComplete = false
    }
    if !isComplete {
      result.report("The body of row \(rowID) is incomplete")
    } else if checksum.digest() != head.bodyChecksum {
      result.report("The body of row \(rowID) does not match its checksum")
    }
  }

  // MARK: Sums

  private mutating func compareSums(in transaction: borrowing ReadTransaction) throws(LMDBError) {
    let counters = try database.counters(in: transaction)
    if let lastRowID = try database.heads.lastRowID(in: transaction), lastRowID >= counters.nextRowID {
      result.report("Row \(lastRowID) is not below the next row's number \(counters.nextRowID)")
    }
    if counters.lastAppliedRemoval > counters.knownRemoval {
      result.report("Removal \(counters.lastAppliedRemoval) was applied, but only \(counters.knownRemoval) are known")
    }
    result.hasComparedSums = isOneSnapshot
    // If other processes wrote, LMDB's own count is from the same moment as the counters.
    let entryCount = isOneSnapshot ? walked.entryCount : try database.heads.rowCount(in: transaction)
    if counters.entryCount != UInt64(entryCount) {
      result.report("The counters say \(counters.entryCount) entries, there are \(entryCount)")
    }
    if isOneSnapshot, counters.spaceCount != UInt64(walked.spaceCount) {
      result.report("The counters say \(counters.spaceCount) records of key spaces, there are \(walked.spaceCount)")
    }
    if isOneSnapshot, counters.payloadByteCount != UInt64(walked.payloadByteCount) {
      result.report("The counters say \(counters.payloadByteCount) bytes, there are \(walked.payloadByteCount)")
    }
    if isOneSnapshot { try compareChunks(in: transaction) }
    let counts = try database.rowCounts(in: transaction)
    if counts.dates != counts.records {
      result.report("There are \(counts.dates) dates and \(counts.records) records")
    }
  }

  /// Compares the number of chunks. Chunks of a body that is being written or deleted have no record header.
  private mutating func compareChunks(in transaction: borrowing ReadTransaction) throws(LMDBError) {
    var partialCount = 0
    for body in try database.unfinishedBodies(in: transaction) {
      try database.forEachChunk(ofBody: body.bodyID, in: transaction) { (_, _) in
        partialCount += 1
        return true
      }
    }
    let count = try database.rowCounts(in: transaction).chunks
    if count > walked.chunkCount + partialCount {
      result.report("\(count - walked.chunkCount - partialCount) chunks belong to no record")
    }
  }
}

extension IndexEntry {
  /// Whether both entries may have the same key.
  func hasSameTags(as other: IndexEntry) -> Bool {
    tag == other.tag && hostTag == other.hostTag && isKeySpace == other.isKeySpace
  }
}

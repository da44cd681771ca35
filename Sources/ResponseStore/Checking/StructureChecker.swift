import CacheModel
import Glibc
import LMDB
import Synchronization

/// Checks the pages that lead to records after a crash.
///
/// These pages have no checksums. liblmdb could crash on a corrupt page, or store rows that are not found again. A
/// small file is checked completely when it is opened. The eviction thread checks a large one in steps while the store
/// is in use. Until it has finished, every lookup and every write checks the pages on its own path first.
///
/// Owns the positions of the check. Calls no other component.
final class StructureChecker: Sendable {
  /// The maximum number of pages of a file that is checked in one go: before it is opened, or while writers wait.
  static let pageCountCheckedAtOnce = 2048
  /// The number of pages that one step reads.
  private static let stepPageCount = 64

  /// Whether the check of the pages that lead to records has not finished.
  let isUnchecked = Atomic(false)

  private let context: StoreContext
  private let database: RecordDatabase
  private let state = Monitor(State())

  private struct State {
    /// The position of the check; nil when there is nothing to check.
    var position: DataFile.StructurePosition?
    /// The position of the check of `dates`, which precedes the building of the index.
    var datesPosition: DataFile.StructurePosition?
    var areDatesChecked = false
  }

  init(_ context: StoreContext) {
    self.context = context
    database = context.database
  }

  /// Prepares a store that is being opened: joins a check in progress, and checks the outermost pages of each table.
  func prepare() throws(LMDBError) {
    follow()
    guard isUnchecked.load(ordering: .relaxed) else { return }
    let names =
      Band.all.map(RecordLogs.table) + [
        RecordLogs.segmentsTable, StorageFormat.bodiesTable, StorageFormat.datesTable, StorageFormat.metaTable,
      ]
    for name in names {
      for byte in [UInt8.min, .max] {
        try BytesCodec.withEncoded([UInt8](repeating: byte, count: 32)) { (key) throws(LMDBError) in
          try inOneSnapshot { (transaction) throws(LMDBError) in
            let reason = try database.environment.findBrokenPath(to: key, inTable: name, transaction)
            if reason != nil { throw LMDBError(code: .corrupted, function: "mdb_get") }
          }
        }
      }
    }
  }

  /// Requests a check of the structure by the eviction thread, unless corruption was already reported.
  ///
  /// The report is cleared when the next process that is alone opens the directory.
  func request() {
    guard context.storeDirectory.requestStructureCheck() else { return }
    isUnchecked.store(true, ordering: .relaxed)
    state.withLock { $0 = State(position: .start) }
    context.wakeMaintenance()
  }

  /// Joins a check that another process has begun, or continues it if that process has ended.
  func follow() {
    guard context.storeDirectory.integrityCheckReason != nil else {
      // A check that this process requested continues.
      if state.withLock({ $0.position == nil }) { isUnchecked.store(false, ordering: .relaxed) }
      return
    }
    isUnchecked.store(true, ordering: .relaxed)
    guard !context.options.opensExistingOnly, context.storeDirectory.claimCheck() else { return }
    state.withLock { if $0.position == nil { $0.position = .start } }
  }

  // MARK: Steps

  /// Checks some pages. A broken page fails the store. Returns true if there are more pages to check.
  func step() throws(LMDBError) -> Bool {
    guard let position = state.withLock({ $0.position }) else { return false }
    let start = MonotonicTime.now
    var finding = DataFile.StructureFinding.unfinished(position)
    if position == .start {
      finding = try database.environment.findBrokenStructure(maximumPageCount: Self.pageCountCheckedAtOnce)
    }
    if case .unfinished = finding {
      finding = try database.environment.findBrokenStructure(from: position, pageCount: Self.stepPageCount)
    }
    switch finding {
    case .broken(let reason):
      context.fail(reason)
      return false
    case .sound:
      state.withLock { $0.position = nil }
      context.storeDirectory.endCheck()
      isUnchecked.store(false, ordering: .relaxed)
      return false
    case .unfinished(let next):
      state.withLock { $0.position = next }
      // Use at most a quarter of the disk's time.
      let elapsed = MonotonicTime.now.nanoseconds - start.nanoseconds
      if context.options.runsInBackground { usleep(UInt32(min(elapsed / 1000 * 3, 50_000))) }
      return true
    }
  }

  /// Checks some pages of `dates`, from which the index is built. Returns whether all of them are checked.
  func checkDates() throws(LMDBError) -> Bool {
    guard isUnchecked.load(ordering: .relaxed) else { return true }
    let (position, isDone) = state.withLock { ($0.datesPosition ?? .start, $0.areDatesChecked) }
    if isDone { return true }
    switch try database.environment.findBrokenStructure(
      from: position, pageCount: 8 * Self.stepPageCount, inTable: StorageFormat.datesTable)
    {
    case .broken(let reason): context.fail(reason)
    case .sound: state.withLock { $0.areDatesChecked = true }
    case .unfinished(let next): state.withLock { $0.datesPosition = next }
    }
    return false
  }

  /// Whether so many pages are leaked that they explain a map that stays full.
  ///
  /// The free list is then corrupt, and no write or deletion can succeed again.
  func hasLeakedPages() -> Bool {
    do throws(LMDBError) {
      // A few leaked pages would not fill the map.
      return try database.environment.leakedPageCount() > 16
    } catch {
      return error.isCorruption
    }
  }

  // MARK: Single paths

  /// Checks the pages that lead to all rows of a key.
  /// - Throws: ``LMDBError``: ``LMDBError/Code/corrupted`` if one is broken.
  func checkPaths(to key: [UInt8], in transaction: borrowing ReadTransaction) throws(LMDBError) {
    for rowID in database.indexedRows(of: database.keyDigest(of: key)) {
      guard let band = Band(rowID: rowID) else { continue }
      try BigEndianUInt64Codec.withEncoded(rowID) { (key) throws(LMDBError) in
        try checkPath(to: key, inTable: RecordLogs.table(of: band), transaction)
      }
      let body = try database.heads.withHeader(of: rowID, in: transaction) { head -> (id: UInt64, chunkCount: Int)? in
        head.hasRightChecksum ? (head.bodyID(ofRow: rowID), database.chunks(of: head).count) : nil
      }
      guard let body else { continue }
      for chunk in 0..<body.chunkCount {
        let key = ChunkKey(bodyID: body.id, index: UInt32(truncatingIfNeeded: chunk))
        try ChunkKeyCodec.withEncoded(key) { (key) throws(LMDBError) in
          try checkPath(to: key, inTable: StorageFormat.bodiesTable, transaction)
        }
      }
    }
  }

  /// Checks the pages that lead to the rows that a batch replaces, and to the rows that it adds.
  func checkPaths(of writes: [PendingWrite]) throws(LMDBError) {
    for write in writes {
      try inOneSnapshot { (transaction) throws(LMDBError) in try checkPaths(to: write.key.bytes, in: transaction) }
    }
  }

  /// Runs a check of a few pages, and repeats it if other commits outdate its snapshot.
  private func inOneSnapshot(
    _ check: (borrowing ReadTransaction) throws(LMDBError) -> Void
  ) throws(LMDBError) {
    var tryCount = 1
    while true {
      do throws(LMDBError) {
        return try database.environment.read(check)
      } catch {
        guard error.isOutdatedSnapshot, tryCount < 1000 else { throw error }
      }
      tryCount += 1
    }
  }

  private func checkPath(
    to key: UnsafeRawBufferPointer, inTable table: String, _ transaction: borrowing ReadTransaction
  ) throws(LMDBError) {
    guard let reason = try database.environment.findBrokenPath(to: key, inTable: table, transaction) else { return }
    context.fail(reason)
    throw LMDBError(code: .corrupted, function: "mdb_get")
  }
}

import Glibc
import LMDB
import Synchronization
import SystemFiles

/// The page budget in force, and write transactions within it.
///
/// Owns the budget that follows from the capacity, whether the data file is to shrink, and how much disk space is
/// reserved for it. Every thread may use it; the budget's lock is held only to copy numbers. Calls no other component.
final class DiskSpace: Sendable {
  private let context: StoreContext
  private let database: RecordDatabase
  private let currentBudget: Monitor<PageBudget>
  /// Whether a lower capacity was applied and the file still takes more.
  private let isShrinking = Atomic(false)
  /// The pages before this number have disk space.
  private let reservedPageEnd = Atomic(0)

  init(_ context: StoreContext) {
    self.context = context
    database = context.database
    let capacity = context.options.capacityByteCount
    currentBudget = Monitor(Self.budget(capacityByteCount: capacity, in: context))
    setIndexLimit(capacityByteCount: capacity)
  }

  // MARK: Budget

  var budget: PageBudget { currentBudget.withLock { $0 } }
  var capacityByteCount: Int { currentBudget.withLock { $0.capacityByteCount } }
  /// The number of queued bytes at which the writer stops waiting for more.
  var batchByteCount: Int { currentBudget.withLock { $0.batchByteCount } }

  /// The largest body that can be stored together with others: half of the live pages that the capacity allows.
  var maximumBodyByteCount: Int { currentBudget.withLock { $0.maximumLivePageCount } * database.pageByteCount / 2 }

  /// The largest record header: key, header fields, attachment. It is one value, and needs contiguous pages.
  var maximumHeadByteCount: Int {
    currentBudget.withLock {
      min(max($0.batchByteCount, 256 << 10), $0.maximumLivePageCount * database.pageByteCount / 8)
    }
  }

  func setBudget(capacityByteCount: Int) {
    currentBudget.withLock { $0 = Self.budget(capacityByteCount: capacityByteCount, in: context) }
    setIndexLimit(capacityByteCount: capacityByteCount)
  }

  /// The capacity that a process has set last. This process applies it when it writes.
  ///
  /// Costs a read transaction.
  var storedCapacityByteCount: Int {
    // If it cannot be read, it counts as unchanged. The next call reads it again.
    guard let counters = try? database.counters() else { return capacityByteCount }
    let capacity = Int(clamping: counters.capacityByteCount)
    return capacity >= ResponseStore.minimumCapacityByteCount ? capacity : capacityByteCount
  }

  /// Applies a capacity that another process has set.
  func refreshCapacity() throws(LMDBError) {
    try database.environment.read { (transaction) throws(LMDBError) in try refreshCapacity(in: transaction) }
  }

  private func refreshCapacity(in transaction: borrowing some Transaction & ~Copyable) throws(LMDBError) {
    let capacity = Int(clamping: try database.counters(in: transaction).capacityByteCount)
    let previous = capacityByteCount
    guard capacity != previous, capacity >= ResponseStore.minimumCapacityByteCount else { return }
    setBudget(capacityByteCount: capacity)
    if capacity < previous { beginShrinking() }
  }

  private func setIndexLimit(capacityByteCount: Int) {
    database.index.setMaximumByteCount(StorageFormat.indexByteCount(capacityByteCount: capacityByteCount))
  }

  private static func budget(capacityByteCount: Int, in context: StoreContext) -> PageBudget {
    let (database, information) = (context.database, context.database.environment.information)
    return PageBudget(
      capacityByteCount: capacityByteCount, filePageCount: information.lastPageNumber + 1,
      // Includes three small files of a page each, and a lock file with 64 bytes per reader and a header. Does not
      // include the counters, nor the events, which exist only while a process watches.
      otherByteCount: context.removalLog.byteCount
        + StorageFormat.indexByteCount(capacityByteCount: capacityByteCount) * 3 / 2
        + 64 * information.maximumReaders + 4 * database.pageByteCount,
      chunkByteCount: database.chunkByteCount, pageByteCount: database.pageByteCount)
  }

  // MARK: Shrinking

  /// Whether a lower capacity is being applied.
  var isFileToShrink: Bool { isShrinking.load(ordering: .relaxed) }

  func beginShrinking() {
    isShrinking.store(true, ordering: .relaxed)
  }

  func endShrinking() {
    isShrinking.store(false, ordering: .relaxed)
  }

  // MARK: Sizes

  /// The bytes that the directory's files take on disk. Costs a few system calls.
  var diskByteCount: Int { context.storeDirectory.diskByteCount() }

  /// The disk usage of the directory when the whole map is in use.
  var diskCeiling: Int {
    let capacity = capacityByteCount
    return StorageFormat.mapByteCount(capacityByteCount: capacity, pageByteCount: database.pageByteCount)
      + StorageFormat.otherFilesByteCount + capacity / 32
      + StorageFormat.lockFileByteCount(capacityByteCount: capacity)
  }

  /// The bytes on disk beyond the capacity and its 10%.
  var excessByteCount: Int {
    max(0, diskByteCount - StorageFormat.boundByteCount(capacityByteCount: capacityByteCount))
  }

  /// The number of live pages. Costs a few hundred nanoseconds.
  func livePageCount() throws(LMDBError) -> Int {
    try database.environment.read { (transaction) throws(LMDBError) in
      try database.environment.livePageCount(in: transaction)
    }
  }

  /// The numbers of live pages and of records.
  func usage() throws(LMDBError) -> (pageCount: Int, entryCount: Int) {
    try database.environment.read { (transaction) throws(LMDBError) in
      (
        try database.environment.livePageCount(in: transaction),
        Int(clamping: try database.counters(in: transaction).entryCount)
      )
    }
  }

  /// Enlarges the map to the size for a capacity, unless it is already larger, and the data file to the size of the
  /// map.
  ///
  /// The file is as long as the map, with holes. A commit may count pages at the end that liblmdb never wrote, and a
  /// file without them would be like a truncated one.
  ///
  /// - Parameter extendsFile: False for a store that is only inspected.
  func growMap(toCapacity capacity: Int, extendsFile: Bool = true) throws(LMDBError) {
    let environment = database.environment
    let presentByteCount = environment.information.mapByteCount
    let mapByteCount = max(
      presentByteCount,
      StorageFormat.mapByteCount(capacityByteCount: capacity, pageByteCount: database.pageByteCount))
    let directory = context.storeDirectory
    if extendsFile, directory.dataFileByteCount < mapByteCount {
      // Within a write transaction, another process cannot extend the file further in between.
      try environment.write { (_) throws(LMDBError) in
        guard directory.dataFileByteCount < mapByteCount else { return }
        let isSet = WriteSignals.suppressing { directory.setDataFileByteCount(mapByteCount) }
        guard isSet else { throw LMDBError(code: .init(rawValue: errno), function: "ftruncate") }
      }
    }
    if mapByteCount > presentByteCount { try environment.setMapByteCount(mapByteCount) }
  }

  // MARK: Reserve

  /// Keeps disk space beyond the end of the data file, so that removals can be applied on a full disk.
  ///
  /// Call this before responses are written. Removals use the space without calling it. Usually costs nothing.
  ///
  /// - Parameter pageCount: The number of pages to be written.
  /// - Throws: ``LMDBError`` if the disk is full and the file has too few free pages.
  func reserve(writing pageCount: Int) throws(LMDBError) {
    let information = database.environment.information
    let end = information.lastPageNumber + 1
    // In proportion to the file, because a removal changes more pages among more records.
    let reserve = min(max(end / 8, 16), Self.maximumReservePageCount)
    let limit = min(information.mapByteCount / database.pageByteCount, budget.maximumFilePageCount)
    guard min(end + reserve, limit) > reservedPageEnd.load(ordering: .relaxed) else { return }
    let wanted = min(end + 2 * reserve, limit)
    do throws(LMDBError) {
      try database.environment.reserveFileSpace(upToPage: wanted)
      reservedPageEnd.store(wanted, ordering: .relaxed)
    } catch {
      guard error.isOutOfSpace, try end - livePageCount() >= 2 * pageCount else { throw error }
    }
  }

  private static let maximumReservePageCount = 1024

  /// Notes that the reserve was returned to the file system.
  func noteReleasedReserve() {
    reservedPageEnd.store(0, ordering: .relaxed)
  }

  // MARK: Write transactions

  /// Runs `body` in a write transaction, which begins only if the page budget allows it.
  ///
  /// - Parameter changesRecords: See ``RecordDatabase/write(changesRecords:_:)``.
  /// - Throws: ``LMDBError``: ``LMDBError/Code/mapFull`` if the budget is exhausted.
  func commit<R>(
    changesRecords: Bool = true, _ body: (borrowing WriteTransaction) throws(LMDBError) -> R
  ) throws(LMDBError) -> R {
    let result = try writeWithinPageBudget(changesRecords: changesRecords, body)
    noteCommit()
    return result
  }

  /// Commits a transaction without changes, so that pages freed before become reusable sooner.
  ///
  /// The one or two pages that it needs are always free.
  func commitEmptyTransaction() throws(LMDBError) {
    try database.write(changesRecords: false) { (transaction) throws(LMDBError) in
      try database.change(in: transaction) { _ in }
    }
    noteCommit()
  }

  /// Counts a commit. Call this after every commit of records.
  func noteCommit() {
    context.counts.count(1, .commits)
  }

  /// Begins a transaction on an oversized file only if the disk usage leaves space for the pages of one transaction.
  ///
  /// The map of an oversized file does not limit its disk usage. Each transaction first writes to the oldest free
  /// pages, which are holes.
  private func writeWithinPageBudget<R>(
    changesRecords: Bool, _ body: (borrowing WriteTransaction) throws(LMDBError) -> R
  ) throws(LMDBError) -> R {
    var attempt = 0
    while true {
      // Check with the write lock held, so that no other thread or process writes in between.
      let result = try database.write(changesRecords: changesRecords) { (transaction) throws(LMDBError) -> R? in
        try fitsPageBudget(isLastAttempt: attempt == 2, in: transaction) ? try body(transaction) : nil
      }
      if let result { return result }
      let environment = database.environment
      if attempt == 1, environment.oldestReaderTransactionID() >= environment.lastTransactionID {
        // Pages freed by the last transactions can be punched only after two more commits. If a reader pins those
        // pages, the commits would only take more of them.
        for _ in 0..<2 { try commitEmptyTransaction() }
      }
      try environment.releaseFreePages()
      attempt += 1
    }
  }

  private func fitsPageBudget(isLastAttempt: Bool, in transaction: borrowing WriteTransaction) throws(LMDBError) -> Bool
  {
    try refreshCapacity(in: transaction)
    var budget = budget
    let filePageCount = database.environment.information.lastPageNumber + 1
    guard filePageCount > budget.maximumFilePageCount else { return true }
    if !budget.isFileOversized {
      // The file has become oversized, because a reader pinned free pages.
      setBudget(capacityByteCount: budget.capacityByteCount)
      budget = self.budget
    }
    let pageCount = context.storeDirectory.allocatedDataByteCount / database.pageByteCount
    if pageCount <= budget.transactionStartPageCount { return true }
    // While a lower capacity is being applied, eviction must write to free pages. Other writes continue, too.
    if try database.environment.livePageCount(in: transaction) > budget.shrinkingPageCount { return true }
    if isFileToShrink { return true }
    guard isLastAttempt else { return false }
    throw LMDBError(code: .mapFull, function: "mdb_put")
  }
}

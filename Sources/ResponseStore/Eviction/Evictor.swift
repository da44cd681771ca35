import CacheActivity
import Glibc
import LMDB

/// Evicts records, so that the live pages and the index stay within the capacity.
///
/// The eviction thread works ahead of the writer, between two watermarks. If that is not enough, and after
/// `MDB_MAP_FULL`, the writer thread evicts, too. Every step is one bounded transaction, because the pages that it
/// frees become reusable only two transactions later.
///
/// Owns the segment that is being freed. Calls ``DiskSpace`` and ``RemovalSweep``.
struct Evictor: Sendable {
  let context: StoreContext
  private var database: RecordDatabase { context.database }
  let space: DiskSpace
  let sweep: RemovalSweep
  /// Its lock is held during a step.
  private let cleaner = Monitor(SegmentCleaner())
  /// Whether eviction has begun at the high watermark and not yet reached the low one.
  private let isEvicting = Monitor(false)

  // MARK: Watermarks

  /// Whether live pages or records are above the high watermark.
  func isAboveHighWatermark() throws(LMDBError) -> Bool {
    let budget = space.budget
    let usage = try space.usage()
    return usage.pageCount > budget.highPageCount || usage.entryCount > budget.highEntryCount
  }

  /// Evicts some records, from the high watermark down to the low one. Returns false if there is nothing to do.
  func evictToLowWatermark() throws(LMDBError) -> Bool {
    try space.refreshCapacity()
    let budget = space.budget
    let (live, entryCount) = try space.usage()
    let (wasEvicting, isEvicting) = self.isEvicting.withLock { isEvicting -> (Bool, Bool) in
      let wasEvicting = isEvicting
      isEvicting =
        wasEvicting
        ? live > budget.lowPageCount || entryCount > budget.lowEntryCount
        : live > budget.highPageCount || entryCount > budget.highEntryCount
      return (wasEvicting, isEvicting)
    }
    guard isEvicting else { return false }
    if !wasEvicting {
      // Another process may have been killed while it wrote a body.
      try database.noteUnfinishedBodies(isAlone: false)
      if try deleteOrphanedChunks() { return true }
    }
    guard live > budget.lowPageCount else {
      return try evict(pageCount: .max, entryCount: entryCount - budget.lowEntryCount) > 0
    }
    return try evict(pageCount: live - budget.lowPageCount) > 0
  }

  /// Evicts until `pageCount` more pages and `entryCount` more records may be written.
  ///
  /// Throws if the disk then has no space for later removals.
  ///
  /// While a lower capacity is being applied, evicts only twice as much as is written, so that writes continue. The
  /// eviction thread evicts the rest.
  func ensureFreePages(_ pageCount: Int, entryCount: Int = 0) throws(LMDBError) {
    try space.refreshCapacity()
    try space.reserve(writing: pageCount)
    let budget = space.budget
    var usage = try space.usage()
    if usage.pageCount > budget.shrinkingPageCount {
      context.wakeMaintenance()
      _ = try evict(pageCount: 2 * pageCount)
      return
    }
    if usage.entryCount > budget.shrinkingEntryCount {
      context.wakeMaintenance()
      _ = try evict(pageCount: .max, entryCount: 2 * max(entryCount, 1))
      return
    }
    while true {
      let excess = usage.pageCount + pageCount - budget.maximumLivePageCount
      let excessEntries = usage.entryCount + entryCount - budget.entryCount
      guard excess > 0 || excessEntries > 0 else { return }
      // Delete removed records before evicting useful ones.
      var hasHelped = try deleteOrphanedChunks()
      if !hasHelped { hasHelped = try sweep.freePages() }
      if !hasHelped, excess > 0 { hasHelped = try evict(pageCount: excess) > 0 }
      if !hasHelped { hasHelped = try evict(pageCount: .max, entryCount: max(excessEntries, 1)) > 0 }
      guard hasHelped else { return }
      usage = try space.usage()
    }
  }

  // MARK: Map full, index full

  /// Evicts after the index had no free cell for a record. Returns false if there was nothing to evict.
  ///
  /// The index can be smaller than the budget assumes, if the disk has no space for a larger one. And another process
  /// may have used the cells that ``ensureFreePages(_:entryCount:)`` freed, so this frees twice as many.
  func recoverFromFullIndex(_ error: LMDBError, entryCount: Int) -> Bool {
    let cause = database.index.cause(of: error)
    if cause.function != IndexFile.reservation {
      context.log(.fullIndex, "The index cannot grow, so responses are evicted below the capacity: \(cause)")
    }
    var evictedCount = 0
    do throws(LMDBError) {
      while evictedCount < 2 * entryCount {
        let count = try evict(pageCount: .max, entryCount: 2 * entryCount - evictedCount)
        if count == 0 { break }
        evictedCount += count
      }
    } catch {
      context.log(.failedEviction, "The index is full and eviction failed: \(error)")
    }
    return evictedCount > 0
  }

  /// Makes a transaction possible again after `MDB_MAP_FULL`. Returns false if that failed.
  ///
  /// Clears stale readers, deletes orphaned chunks and waits a moment for slow readers. If that does not help, evicts a
  /// share of the map in ever smaller transactions. Evicts nothing if less than half of the map is live: then the
  /// freed pages are too new, or a reader pins them, and evicting more would empty the store in vain.
  func recoverFromMapFull() -> Bool {
    do throws(LMDBError) {
      try database.environment.clearStaleReaders()
      while try deleteOrphanedChunks() {}
      let budget = space.budget
      let start = try space.livePageCount()
      // Wait first: while a snapshot pins the freed pages, eviction gains nothing.
      if waitForSlowReaders(), start <= budget.maximumLivePageCount {
        for _ in 0..<2 { try space.commitEmptyTransaction() }
        return true
      }
      let target = max(start - max(budget.maximumLivePageCount / 32, 16), budget.maximumLivePageCount / 2)
      var pageCount = budget.cautiousPageCount
      while case let live = try space.livePageCount(), live > target {
        if try deleteOrphanedChunks() { continue }
        do throws(LMDBError) {
          guard try evict(pageCount: min(pageCount, live - target), isCautious: true) > 0 else { break }
        } catch {
          guard error.code == .mapFull, pageCount > 1 else { throw error }
          pageCount /= 4
        }
      }
      // Pages freed by a transaction become reusable two transactions later.
      for _ in 0..<2 { try space.commitEmptyTransaction() }
      return true
    } catch {
      context.log(
        .failedEviction, "The database is full and eviction freed no reusable pages: \(error); \(pageNumbers)")
      return false
    }
  }

  /// Numbers for the log that show whether the map is full of records, or a reader pins its pages.
  private var pageNumbers: String {
    let mapPageCount = database.environment.information.mapByteCount / database.pageByteCount
    // The line is logged because of another error, and is useful without this number.
    let live = (try? space.livePageCount()).map { "\($0)" } ?? "?"
    let oldest = database.environment.oldestReaderTransactionID()
    return "\(live) of \(mapPageCount) pages in use; last commit \(database.environment.lastTransactionID), "
      + (oldest == .max ? "no reader" : "oldest reader \(oldest)")
  }

  /// Waits up to 0.1 s for readers that pin freed pages. Returns false if there were none, or they did not end.
  ///
  /// A lookup takes microseconds, but its thread may wait for a processor.
  private func waitForSlowReaders() -> Bool {
    let newest = database.environment.lastTransactionID
    guard database.environment.oldestReaderTransactionID() < newest else { return false }
    for _ in 0..<100 {
      usleep(1000)
      if database.environment.oldestReaderTransactionID() >= newest { return true }
    }
    return false
  }

  // MARK: Steps

  /// Evicts records in bounded transactions, until one of them has evicted some or nothing is left.
  ///
  /// A transaction ends when it has freed about `pageCount` pages or `entryCount` records, or reached its own limits.
  ///
  /// - Parameter isCautious: Whether hardly any page is free, as after `MDB_MAP_FULL`. No record is then moved.
  /// - Returns: The number of evicted records; 0 if there was nothing to evict.
  func evict(pageCount: Int, entryCount: Int = .max, isCautious: Bool = false) throws(LMDBError) -> Int {
    let goal = EvictionGoal(
      pageCount: pageCount, entryCount: entryCount, isCautious: isCautious, budget: space.budget)
    // A step may evict nothing, and only drop a segment whose records were all deleted.
    for _ in 0..<Self.maximumStepCount {
      switch try freeSegment(goal) {
      case nil: return 0
      case 0?: continue
      case let count?: return count
      }
    }
    return 0
  }

  private static let maximumStepCount = 256

  /// Deletes some chunks of an orphaned body. Returns false if there is none.
  func deleteOrphanedChunks() throws(LMDBError) -> Bool {
    guard let bodyID = database.orphanedBodies.first else { return false }
    let isDone = try space.commit { (transaction) throws(LMDBError) in
      try database.removeOrphanedBody(bodyID, pageCount: FreeingBudget.defaultPageCount, in: transaction)
    }
    if isDone { database.orphanedBodies.forget(bodyID) }
    return true
  }

  // MARK: Segments

  /// Frees a part of a segment. Returns the number of evicted records; nil if there is no segment, or no index.
  private func freeSegment(_ goal: EvictionGoal) throws(LMDBError) -> Int? {
    // This process does one step at a time, because the next one begins at the end of this one.
    try cleaner.withLock { cleaner in
      Result { () throws(LMDBError) in try freeSegment(goal, with: &cleaner) }
    }.get()
  }

  private func freeSegment(_ goal: EvictionGoal, with cleaner: inout SegmentCleaner) throws(LMDBError) -> Int? {
    guard let index = database.index.current else { return nil }
    let rows = try database.environment.read { (transaction) throws(LMDBError) in
      let tombstones = try context.removals.tombstones(in: transaction)
      return try cleaner.choose(
        database.heads, open: database.counters(in: transaction).openSegments, index: index, limit: goal.recordCount,
        byteCount: goal.byteCount, in: database.environment, transaction
      ) { (rowID, record) in examine(rowID, record, tombstones: tombstones, goal) }
    }
    guard let rows else { return nil }
    var removed: [RemovalReason: Int] = [:]
    let known = cleaner
    let step = try space.commit { (transaction) throws(LMDBError) -> SegmentCleaner.Step? in
      removed = [:]
      guard let index = database.index.current else { return nil }
      let tombstones = try context.removals.tombstones(in: transaction)
      let live = try database.environment.livePageCount(in: transaction)
      var count = 0
      return try database.change(in: transaction, freeing: goal.freeablePageCount) { (changes) throws(LMDBError) in
        try known.clean(database.heads, rows: rows, index: index, changes: &changes, in: transaction) {
          (rows, changes) throws(LMDBError) in
          let freed =
            try live - database.environment.livePageCount(in: transaction) + changes.freeing.deferredPageCount
          if changes.freeing.isExhausted || count >= goal.entryCount || (count > 0 && freed >= goal.pageCount) {
            return 0
          }
          let rows = rows.prefix(goal.entryCount - count)
          let next = try evict(rows, changes: &changes, &removed, in: transaction)
          let doneCount = next.flatMap { next in rows.firstIndex { $0.rowID >= next } } ?? rows.count
          count += doneCount
          return doneCount
        } move: { (entry, changes) throws(LMDBError) in
          try database.move(
            entry, to: entry.band(inflation: index.inflation), unlessHiddenBy: tombstones, changes: &changes,
            in: transaction)
        }
      }
    }
    guard let step else { return nil }
    cleaner.finish(step)
    for (reason, count) in removed { context.counts.countRemovals(count, reason) }
    return removed.values.reduce(0, +)
  }

  /// Decides whether a record must be deleted, and prepares its deletion.
  private func examine(
    _ rowID: UInt64, _ record: UnsafeRawBufferPointer, tombstones: [Tombstone], _ goal: EvictionGoal
  ) -> SegmentCleaner.Examination {
    guard let head = RecordHeaderView(record), head.hasRightChecksum else {
      return SegmentCleaner.Examination(removable: nil, reason: .overCapacity)
    }
    var reason: RemovalReason? = goal.isCautious ? .overCapacity : nil
    if tombstones.hide(rowID: rowID, head) { reason = .requested }
    let use: UseCountFate = reason ?? .overCapacity == .overCapacity ? .remember : .forget
    return SegmentCleaner.Examination(
      removable: database.removableRecord(rowID, head: head, use: use), reason: reason)
  }

  /// Deletes rows of a segment, and counts those that still existed.
  ///
  /// - Returns: The first row that is left for the next transaction; nil if none is.
  func evict(
    _ rows: ArraySlice<SegmentCleaner.Row>, changes: inout RecordChanges, _ removed: inout [RemovalReason: Int],
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> UInt64? {
    let removal = try database.remove(
      rows.compactMap(\.removable), unreadable: rows.filter { $0.removable == nil }.map(\.rowID), changes: &changes,
      isInRun: true, in: transaction
    ) { (_, _) in .remember }
    // The removed rows are in the order of their logs, and the others in ascending order.
    var removedRows = removal.rowIDs.sorted()[...]
    for row in rows where row.rowID == removedRows.first {
      removed[row.reason, default: 0] += 1
      removedRows.removeFirst()
    }
    if removal.otherCount > 0 { removed[.overCapacity, default: 0] += removal.otherCount }
    return removal.next
  }
}

/// The goal of one eviction transaction, and the limits of its work.
private struct EvictionGoal {
  let pageCount: Int
  let entryCount: Int
  let isCautious: Bool
  /// The maximum number of records that a step examines in a segment.
  let recordCount: Int
  /// The approximate maximum of the bytes of the examined records.
  let byteCount: Int
  let freeablePageCount: Int

  init(pageCount: Int, entryCount: Int, isCautious: Bool, budget: PageBudget) {
    self.pageCount = pageCount
    self.entryCount = entryCount
    self.isCautious = isCautious
    recordCount = min(budget.cleaningRecordCount, isCautious ? max(pageCount, 1) : .max)
    byteCount = budget.cleaningByteCount
    freeablePageCount = isCautious ? FreeingBudget.defaultPageCount : budget.freeablePageCount
  }
}

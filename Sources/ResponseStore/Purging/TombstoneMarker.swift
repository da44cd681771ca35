import LMDB

/// Marks the records that soft tombstones make stale, in bounded steps, and then deletes the tombstones.
///
/// Owns the progress. The eviction thread runs the steps. Lookups treat an unmarked record as a marked one, so this
/// only ends their comparisons with the tombstones. Calls ``DiskSpace``.
struct TombstoneMarker: Sendable {
  let context: StoreContext
  private var database: RecordDatabase { context.database }
  let space: DiskSpace
  private let progress = TombstoneProgress()

  /// Marks some of the records that soft ones of the tombstones cover. Returns false if there is nothing to mark now.
  func markRecords(of tombstones: [Tombstone]) throws(LMDBError) -> Bool {
    try progress.step(
      among: tombstones.filter { $0.mode != .hard }, in: database, isPaced: context.options.runsInBackground
    ) { (work, isCautious) throws(LMDBError) in try markSome(of: work, isCautious: isCautious) }
  }

  /// Marks some of the records, and deletes the tombstones after the last one. Returns what is left.
  ///
  /// A step copies the pages of records without freeing any. So it changes half as many as a step that deletes records.
  private func markSome(of work: TombstoneWork, isCautious: Bool) throws(LMDBError) -> TombstoneWork? {
    let budget = space.budget
    let tombstone = work.first
    // Read before the write lock is taken, since reading takes longer than marking.
    let found = try database.environment.read {
      (transaction) throws(LMDBError) -> (rows: [UInt64], end: ScanPosition?) in
      let candidates = try database.findCoveredRows(
        tombstone, limit: budget.scatteredRemovalCount, from: work.position, in: transaction)
      let rows = try database.unmarkedRows(among: candidates?.rows ?? [], coveredBy: work.tombstones, in: transaction)
      return (rows, candidates?.end)
    }
    return try space.commit { (transaction) throws(LMDBError) -> TombstoneWork? in
      var work = work
      // Another process may have finished the marking, or the index may have been lost since.
      guard try database.meta.contains(tombstone.metaKey, in: transaction) else { return nil }
      guard database.isIndexComplete || tombstone.scope == .everything, work.position.confirmPass() else { return nil }
      var counters = try database.counters(in: transaction)
      if !isCautious { counters.freeablePageCount = budget.freeablePageCount / 2 }
      var rows = found.rows
      if case .key = tombstone.scope { rows = try database.rows(coveredBy: tombstone, in: transaction) }
      // The writer waits meanwhile; callers of `store(_:)` do not.
      let deadline = MonotonicTime.now + .milliseconds(16)
      let next = try database.markStale(
        rows, coveredBy: work.tombstones, until: deadline, counters: &counters,
        isInRun: !tombstone.scope.needsHostPass, in: transaction)
      // The next step finds the rows that are left from the same position.
      var rest: TombstoneWork? = work
      if next == nil {
        if let end = found.end {
          rest?.position = end
        } else {
          try database.remove(work.tombstones, counters: &counters, in: transaction)
          rest = nil
        }
      }
      try database.setCounters(counters, in: transaction)
      return rest
    }
  }
}

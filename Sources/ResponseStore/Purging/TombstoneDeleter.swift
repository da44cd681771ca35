import LMDB

/// Deletes the records that hard tombstones hide, in bounded steps, and then the tombstones.
///
/// Owns the progress. The eviction thread runs the steps; the writer thread runs them, too, when it needs free pages.
/// Calls ``DiskSpace`` and ``HolePuncher``.
struct TombstoneDeleter: Sendable {
  let context: StoreContext
  private var database: RecordDatabase { context.database }
  let space: DiskSpace
  let puncher: HolePuncher
  private let progress = TombstoneProgress()
  /// A step deletes up to 16,384 records, two of which fill a page.
  private let readAhead = Monitor(RecordReadAhead(windowPageCount: 8192))

  /// Deletes some records that hard ones of the tombstones hide. Returns false if there is nothing to delete now.
  func deleteRecords(of tombstones: [Tombstone]) throws(LMDBError) -> Bool {
    try progress.step(
      among: tombstones.filter { $0.mode == .hard }, in: database, isPaced: context.options.runsInBackground
    ) { (work, isCautious) throws(LMDBError) in try deleteSome(of: work, isCautious: isCautious) }
  }

  /// The maximum number of changes of one transaction, which the index's journal limits.
  private var maximumChangeCount: Int { max(database.index.journalCapacity, IndexLayout.minimumJournalCapacity) }

  /// Deletes some of the records, and the tombstones after the last one. Returns what is left.
  private func deleteSome(of work: TombstoneWork, isCautious: Bool) throws(LMDBError) -> TombstoneWork? {
    let budget = space.budget
    let scope = work.first.scope
    let limit = min(scope.needsHostPass ? budget.scatteredRemovalCount : budget.removedRunCount, maximumChangeCount)
    // Find the records without the write lock, because reading takes longer than deleting. Only a write transaction is
    // sure to find all rows of a key.
    var early: CoveredRecords?
    if case .key = scope {
    } else {
      early = try database.environment.read { (transaction) throws(LMDBError) in
        if case .row(let rowID) = work.position { try readAhead(toFirstOf: [rowID], transaction) }
        let found = try database.findCoveredRows(work.first, limit: limit, from: work.position, in: transaction)
        guard let candidates = found else { return CoveredRecords() }
        try readAhead(toFirstOf: candidates.rows, transaction)
        return try coveredRecords(among: candidates, of: work, in: transaction)
      }
    }
    let (removed, rest) = try space.commit { (transaction) throws(LMDBError) -> (Int, TombstoneWork?) in
      var work = work
      // Another process may have finished the deletion, or the index may have been lost in between.
      guard try database.meta.contains(work.first.metaKey, in: transaction) else { return (0, nil) }
      guard database.isIndexComplete || scope == .everything, work.position.confirmPass() else { return (0, nil) }
      var counters = try database.counters(in: transaction)
      if !isCautious { counters.freeablePageCount = budget.freeablePageCount }
      let covered: CoveredRecords
      if let early {
        covered = early
      } else {
        let rows = try database.rows(coveredBy: work.first, in: transaction)
        covered = try coveredRecords(among: (rows, nil), of: work, in: transaction)
      }
      // After a cautious start the freed pages need not be contiguous.
      let (removed, next) = try remove(
        covered, of: work.tombstones, counters: &counters, isInRun: !isCautious && !scope.needsHostPass, in: transaction
      )
      var rest: TombstoneWork? = work
      if let next {
        if case .found(var pass) = work.position {
          pass.advance(to: next)
          rest?.position = .found(pass)
        }
      } else if let end = covered.end {
        rest?.position = end
      } else {
        try database.remove(work.tombstones, counters: &counters, in: transaction)
        rest = nil
      }
      try database.setCounters(counters, in: transaction)
      return (removed, rest)
    }
    context.counts.countRemovals(removed, .requested)
    if rest == nil { puncher.noteRemoval() }
    return rest
  }

  /// Records that tombstones hide.
  private struct CoveredRecords {
    var records: [RemovableRecord] = []
    var corrupt: [UInt64] = []
    /// The position to continue from; nil at the end.
    var end: ScanPosition?
  }

  private typealias Candidates = (rows: [UInt64], end: ScanPosition?)

  private func readAhead(toFirstOf rowIDs: [UInt64], _ transaction: borrowing ReadTransaction) throws(LMDBError) {
    try readAhead.withLock { readAhead in
      Result { () throws(LMDBError) in
        try readAhead.advance(toFirstOf: rowIDs, in: database.environment, transaction)
      }
    }.get()
  }

  private func coveredRecords(
    among candidates: Candidates, of work: TombstoneWork, in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> CoveredRecords {
    let found = try database.removableRecords(candidates.rows, in: transaction) { (rowID, head) in
      work.tombstones.hide(rowID: rowID, head) ? .forget : nil
    }
    return CoveredRecords(records: found.records, corrupt: found.corrupt, end: candidates.end)
  }

  /// Deletes covered records until the transaction has freed enough pages or taken 16 ms.
  ///
  /// Returns their number, and the first row that is left for the next transaction.
  private func remove(
    _ covered: CoveredRecords, of tombstones: [Tombstone], counters: inout PersistentCounters, isInRun: Bool,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> (removed: Int, next: UInt64?) {
    // The writer waits during this transaction; callers of `store(_:)` do not.
    let deadline = MonotonicTime.now + .milliseconds(16)
    var removed = 0
    // Records that are corrupt or changed after they were read. They are read again.
    var others = covered.corrupt
    var rest = covered.records[...]
    while let first = rest.first {
      if removed > 0, counters.hasFreedEnough || MonotonicTime.now > deadline {
        return (removed, min(first.rowID, others.min() ?? .max))
      }
      let part = rest.prefix(Self.deletedTogetherCount)
      let step = try database.remove(Array(part), counters: &counters, isInRun: isInRun, in: transaction)
      removed += step.rowIDs.count
      others += step.changed
      if let next = step.next { rest = rest.drop { $0.rowID < next } } else { rest = rest.dropFirst(part.count) }
    }
    guard !others.isEmpty else { return (removed, nil) }
    let step = try database.removeRecords(others.sorted(), coveredBy: tombstones, counters: &counters, in: transaction)
    return (removed + step.removed, step.next)
  }

  /// The number of records that are deleted between two checks of the deadline.
  private static let deletedTogetherCount = 128
}

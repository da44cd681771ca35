import LMDB

/// Deletes the records that hard tombstones hide, in bounded steps, and then the tombstones.
///
/// Owns the positions of the deletions. The eviction thread runs the steps; the writer thread runs them, too, when it
/// needs free pages. Calls ``DiskSpace`` and ``HolePuncher``.
final class TombstoneDeleter: Sendable {
  private let context: StoreContext
  private let database: RecordDatabase
  private let space: DiskSpace
  private let puncher: HolePuncher
  private let state = Monitor(State())

  private struct State {
    /// The position of the deletion for each tombstone; the key is its row in `meta`.
    var positions: [[UInt8]: ScanPosition] = [:]
    /// The tombstones by host, prefix or group that are being worked on.
    var hostWork: HostWork?
    /// When the next pass over the index may begin.
    var nextHostPass = MonotonicTime.now
  }

  /// Tombstones by host, prefix or group that share one pass over the index.
  private struct HostWork {
    var tombstones: [Tombstone]
    var pass: HostPass
  }

  init(_ context: StoreContext, space: DiskSpace, puncher: HolePuncher) {
    self.context = context
    database = context.database
    self.space = space
    self.puncher = puncher
  }

  /// Deletes some of the records that tombstones hide. Returns false if there is nothing to delete now.
  ///
  /// While the index is rebuilt the tombstones stay: a record may have an older one of the same key, which would
  /// reappear.
  func deleteTombstonedRecords() throws(LMDBError) -> Bool {
    try deleteRecords(of: try context.removals.tombstones())
  }

  /// As ``deleteTombstonedRecords()``, with the tombstones of the last commit.
  func deleteRecords(of tombstones: [Tombstone]) throws(LMDBError) -> Bool {
    guard !tombstones.isEmpty else { return false }
    let tombstones = tombstones.filter { $0.mode == .hard }
    guard !tombstones.isEmpty else { return false }
    let isComplete = database.isIndexComplete
    let single = tombstones.first { !$0.scope.needsHostPass && (isComplete || $0.scope == .everything) }
    if let single {
      try retrying { (isCautious) throws(LMDBError) in try deleteSome(behind: single, isCautious: isCautious) }
      return true
    }
    guard isComplete, let work = hostWork(among: tombstones) else { return false }
    try retrying { (isCautious) throws(LMDBError) in try deleteSome(of: work, isCautious: isCautious) }
    return true
  }

  /// Repeats a step that failed with `MDB_MAP_FULL` in a way that needs no contiguous pages.
  private func retrying(_ body: (_ isCautious: Bool) throws(LMDBError) -> Void) throws(LMDBError) {
    do throws(LMDBError) {
      try body(false)
    } catch {
      guard error.code == .mapFull else { throw error }
      try body(true)
    }
  }

  /// The maximum number of changes of one transaction, which the index's journal limits.
  private var maximumChangeCount: Int { max(database.index.journalCapacity, IndexLayout.minimumJournalCapacity) }

  // MARK: By date, by key, and everything

  private func deleteSome(behind tombstone: Tombstone, isCautious: Bool) throws(LMDBError) {
    let position = state.withLock { $0.positions[tombstone.metaKey] } ?? .start
    let budget = space.budget
    let limit = min(budget.removedRunCount, maximumChangeCount)
    var walk: CoveredRecords?
    if case .key = tombstone.scope {} else { walk = try findCovered([tombstone], limit: limit, from: position) }
    let (removed, end) = try space.commit { (transaction) throws(LMDBError) -> (Int, ScanPosition?) in
      // Another process may have finished the deletion, or the index may have been lost in between.
      guard try database.meta.contains(tombstone.metaKey, in: transaction) else { return (0, nil) }
      guard database.isIndexComplete || tombstone.scope == .everything else { return (0, position) }
      var counters = try database.counters(in: transaction)
      if !isCautious { counters.freeablePageCount = budget.freeablePageCount }
      let found: CoveredRecords
      if let walk {
        found = walk
      } else {
        found = try findCovered([tombstone], limit: limit, from: position, in: transaction)
      }
      // After a cautious start the freed pages need not be contiguous.
      let (removed, next) = try remove(found, counters: &counters, isInRun: !isCautious, in: transaction)
      let end = next == nil ? found.end : position
      if end == nil {
        _ = try database.meta.remove(tombstone.metaKey, in: transaction)
        counters.lastTombstoneChange = transaction.id
      }
      try database.setCounters(counters, in: transaction)
      return (removed, end)
    }
    context.counts.countRemovals(removed, .requested)
    state.withLock { $0.positions[tombstone.metaKey] = end }
    if end == nil { puncher.noteRemoval() }
  }

  /// Records that tombstones hide.
  private struct CoveredRecords {
    var tombstones: [Tombstone]
    var records: [RemovableRecord] = []
    var damaged: [UInt64] = []
    /// The position to continue from; nil at the end.
    var end: ScanPosition?
  }

  /// Finds covered records without the write lock, because reading takes longer than deleting.
  private func findCovered(_ tombstones: [Tombstone], limit: Int, from position: ScanPosition) throws(LMDBError)
    -> CoveredRecords
  {
    try database.environment.read { (transaction) throws(LMDBError) in
      try findCovered(tombstones, limit: limit, from: position, in: transaction)
    }
  }

  private func findCovered(
    _ tombstones: [Tombstone], limit: Int, from position: ScanPosition,
    in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> CoveredRecords {
    var walk = CoveredRecords(tombstones: tombstones)
    guard let tombstone = tombstones.first,
      let candidates = try database.findCoveredRows(tombstone, limit: limit, from: position, in: transaction)
    else { return walk }
    let found = try database.removableRecords(candidates.rows, in: transaction) { (rowID, head) in
      tombstones.hide(rowID: rowID, head) ? .forget : nil
    }
    (walk.records, walk.damaged, walk.end) = (found.records, found.damaged, candidates.end)
    return walk
  }

  /// Deletes covered records until the transaction has freed enough pages or taken 16 ms.
  ///
  /// Returns their number, and the first row that is left for the next transaction.
  private func remove(
    _ walk: CoveredRecords, counters: inout PersistentCounters, isInRun: Bool,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> (removed: Int, next: UInt64?) {
    // The writer waits during this transaction; callers of `store(_:)` do not.
    let deadline = MonotonicTime.now + .milliseconds(16)
    var removed = 0
    // Records that are corrupt or changed after they were read. They are read again.
    var others = walk.damaged
    var rest = walk.records[...]
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
    let step = try database.removeRecords(
      others.sorted(), coveredBy: walk.tombstones, counters: &counters, in: transaction)
    return (removed + step.removed, step.next)
  }

  /// The number of records that are deleted between two checks of the deadline.
  private static let deletedTogetherCount = 128

  // MARK: By host, prefix and group

  /// Returns the work in progress, or that of a new pass over the index; nil if the next pass is not due.
  private func hostWork(among tombstones: [Tombstone]) -> HostWork? {
    let known = state.withLock { $0.hostWork }
    if let known, !known.pass.isExhausted, tombstones.contains(where: { $0 == known.tombstones.first }) { return known }
    let start = MonotonicTime.now
    // Passes take at most a quarter of the time.
    guard !context.options.runsInBackground || start >= state.withLock({ $0.nextHostPass }) else { return nil }
    database.index.followReplacement()
    var work: HostWork?
    if let known, known.pass.isExhausted {
      work = known.pass.next(over: database.index).map { HostWork(tombstones: known.tombstones, pass: $0) }
    } else {
      let tombstones = Array(tombstones.filter { $0.scope.needsHostPass }.prefix(1024))
      let tags = tombstones.map { $0.scope.hostPrefix.flatMap { database.hostTag(ofPrefix: $0) } }
      let hostTags = tags.contains(nil) ? nil : Set(tags.compactMap(\.self))
      work = HostPass(over: database.index, hostTags: hostTags).map { HostWork(tombstones: tombstones, pass: $0) }
    }
    let elapsed = start.duration(to: .now)
    state.withLock { state in
      state.hostWork = work
      state.nextHostPass = .now + elapsed * 3
    }
    return work
  }

  private func deleteSome(of work: HostWork, isCautious: Bool) throws(LMDBError) {
    let budget = space.budget
    let limit = min(budget.scatteredRemovalCount, maximumChangeCount)
    let walk = try findCovered(work.tombstones, limit: limit, from: .found(work.pass))
    let (removed, rest) = try space.commit { (transaction) throws(LMDBError) -> (Int, HostWork?) in
      guard database.isIndexComplete else { return (0, nil) }
      var work = work
      var counters = try database.counters(in: transaction)
      if !isCautious { counters.freeablePageCount = budget.freeablePageCount }
      let (removed, next) = try remove(walk, counters: &counters, isInRun: false, in: transaction)
      if let next { work.pass.advance(to: next) } else { work.pass.advance(by: limit) }
      if work.pass.isDone {
        for tombstone in work.tombstones { try database.meta.remove(tombstone.metaKey, in: transaction) }
        counters.lastTombstoneChange = transaction.id
      }
      try database.setCounters(counters, in: transaction)
      return (removed, work.pass.isDone ? nil : work)
    }
    context.counts.countRemovals(removed, .requested)
    state.withLock { $0.hostWork = rest }
    if rest == nil { puncher.noteRemoval() }
  }
}

import LMDB

/// Deletes the records that hard tombstones hide, and chunks without a record header, in bounded steps.
///
/// Owns the positions of the deletions. The eviction thread runs the steps; the writer thread runs them, too, when it
/// needs free pages. Calls ``DiskSpace`` and ``HolePuncher``.
final class Purger: Sendable {
  private let context: StoreContext
  private let database: RecordDatabase
  private let space: DiskSpace
  private let puncher: HolePuncher
  private let state = Monitor(State())

  private struct State {
    /// The position of the deletion for each tombstone; the key is its row in `meta`.
    var positions: [[UInt8]: ScanPosition] = [:]
    /// The purges by host that are in progress.
    var hostPurges: HostPurges?
    /// When the next pass over the index may begin.
    var nextHostPass = MonotonicTime.now
  }

  /// Purges by host, prefix or group that share one pass over the index.
  private struct HostPurges {
    var purges: [Tombstone]
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
    guard isComplete, let work = hostPurges(among: tombstones) else { return false }
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

  private func deleteSome(behind purge: Tombstone, isCautious: Bool) throws(LMDBError) {
    let position = state.withLock { $0.positions[purge.metaKey] } ?? .start
    let budget = space.budget
    let limit = min(budget.purgedRunCount, maximumChangeCount)
    var walk: CoveredRecords?
    if case .key = purge.scope {} else { walk = try findCovered([purge], limit: limit, from: position) }
    let (removed, end) = try space.commit { (transaction) throws(LMDBError) -> (Int, ScanPosition?) in
      // Another process may have finished the purge, or the index may have been lost in between.
      guard try database.meta.contains(purge.metaKey, in: transaction) else { return (0, nil) }
      guard database.isIndexComplete || purge.scope == .everything else { return (0, position) }
      var counters = try database.counters(in: transaction)
      if !isCautious { counters.freeablePageCount = budget.freeablePageCount }
      let found: CoveredRecords
      if let walk {
        found = walk
      } else {
        found = try findCovered([purge], limit: limit, from: position, in: transaction)
      }
      // After a cautious start the freed pages need not be contiguous.
      let (removed, next) = try remove(found, counters: &counters, isInRun: !isCautious, in: transaction)
      let end = next == nil ? found.end : position
      if end == nil {
        _ = try database.meta.remove(purge.metaKey, in: transaction)
        counters.lastPurgeChange = transaction.id
      }
      try database.setCounters(counters, in: transaction)
      return (removed, end)
    }
    context.counts.countRemovals(removed, .requested)
    state.withLock { $0.positions[purge.metaKey] = end }
    if end == nil { puncher.notePurge() }
  }

  /// Records that purges cover.
  private struct CoveredRecords {
    var purges: [Tombstone]
    var records: [RemovableRecord] = []
    var damaged: [UInt64] = []
    /// The position to continue from; nil at the end.
    var end: ScanPosition?
  }

  /// Finds covered records without the write lock, because reading takes longer than deleting.
  private func findCovered(_ purges: [Tombstone], limit: Int, from position: ScanPosition) throws(LMDBError)
    -> CoveredRecords
  {
    try database.environment.read { (transaction) throws(LMDBError) in
      try findCovered(purges, limit: limit, from: position, in: transaction)
    }
  }

  private func findCovered(
    _ purges: [Tombstone], limit: Int, from position: ScanPosition,
    in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> CoveredRecords {
    var walk = CoveredRecords(purges: purges)
    guard let purge = purges.first,
      let candidates = try database.findCoveredRows(purge, limit: limit, from: position, in: transaction)
    else { return walk }
    let found = try database.removableRecords(candidates.rows, in: transaction) { (rowID, head) in
      purges.hide(rowID: rowID, head) ? .forget : nil
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
      others.sorted(), coveredBy: walk.purges, counters: &counters, in: transaction)
    return (removed + step.removed, step.next)
  }

  /// The number of records that are deleted between two checks of the deadline.
  private static let deletedTogetherCount = 128

  // MARK: By host, prefix and group

  /// Returns the purges in progress, or those of a new pass over the index; nil if the next pass is not due.
  private func hostPurges(among tombstones: [Tombstone]) -> HostPurges? {
    let known = state.withLock { $0.hostPurges }
    if let known, !known.pass.isExhausted, tombstones.contains(where: { $0 == known.purges.first }) { return known }
    let start = MonotonicTime.now
    // Passes take at most a quarter of the time.
    guard !context.options.runsInBackground || start >= state.withLock({ $0.nextHostPass }) else { return nil }
    database.index.followReplacement()
    var work: HostPurges?
    if let known, known.pass.isExhausted {
      work = known.pass.next(over: database.index).map { HostPurges(purges: known.purges, pass: $0) }
    } else {
      let purges = Array(tombstones.filter { $0.scope.needsHostPass }.prefix(1024))
      let tags = purges.map { $0.scope.hostPrefix.flatMap { database.hostTag(ofPrefix: $0) } }
      let hostTags = tags.contains(nil) ? nil : Set(tags.compactMap(\.self))
      work = HostPass(over: database.index, hostTags: hostTags).map { HostPurges(purges: purges, pass: $0) }
    }
    let elapsed = start.duration(to: .now)
    state.withLock { state in
      state.hostPurges = work
      state.nextHostPass = .now + elapsed * 3
    }
    return work
  }

  private func deleteSome(of work: HostPurges, isCautious: Bool) throws(LMDBError) {
    let budget = space.budget
    let limit = min(budget.scatteredPurgeCount, maximumChangeCount)
    let walk = try findCovered(work.purges, limit: limit, from: .found(work.pass))
    let (removed, rest) = try space.commit { (transaction) throws(LMDBError) -> (Int, HostPurges?) in
      guard database.isIndexComplete else { return (0, nil) }
      var work = work
      var counters = try database.counters(in: transaction)
      if !isCautious { counters.freeablePageCount = budget.freeablePageCount }
      let (removed, next) = try remove(walk, counters: &counters, isInRun: false, in: transaction)
      if let next { work.pass.advance(to: next) } else { work.pass.advance(by: limit) }
      if work.pass.isDone {
        for purge in work.purges { try database.meta.remove(purge.metaKey, in: transaction) }
        counters.lastPurgeChange = transaction.id
      }
      try database.setCounters(counters, in: transaction)
      return (removed, work.pass.isDone ? nil : work)
    }
    context.counts.countRemovals(removed, .requested)
    state.withLock { $0.hostPurges = rest }
    if rest == nil { puncher.notePurge() }
  }

  // MARK: Orphaned chunks

  /// Records the unfinished bodies that no process writes as orphaned.
  ///
  /// - Parameter isAlone: Whether no other process has the directory open.
  func noteUnfinishedBodies(isAlone: Bool) throws(LMDBError) {
    let unfinished = try database.environment.read { (transaction) throws(LMDBError) in
      try unfinishedBodies(in: transaction)
    }
    for body in unfinished where isAlone || body.isAbandoned { database.orphanedBodies.note(body.bodyID) }
  }

  /// Deletes some chunks of an orphaned body. Returns false if there is none.
  func deleteOrphanedChunks() throws(LMDBError) -> Bool {
    guard let bodyID = database.orphanedBodies.first else { return false }
    let isDone = try space.commit { (transaction) throws(LMDBError) -> Bool in
      // Without this row, the record header was committed after all.
      guard try database.meta.contains(MetaKey.partial(bodyID), in: transaction) else { return true }
      let pageCount = try database.counters(in: transaction).freeablePageCount
      guard try database.removeChunks(of: bodyID, pageCount: pageCount, in: transaction) else { return false }
      return try database.meta.remove(MetaKey.partial(bodyID), in: transaction)
    }
    if isDone { database.orphanedBodies.forget(bodyID) }
    return true
  }

  func unfinishedBodies(
    in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> [UnfinishedBody] {
    var bodies: [UnfinishedBody] = []
    try database.meta.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      var more = try cursor.seek(atOrAfter: MetaKey.partialPrefix)
      while more {
        guard let bodyID = MetaKey.number(in: try cursor.checkedKey(), after: MetaKey.partialPrefix) else { return }
        let processID = try cursor.withValue { (bytes) throws(LMDBError) in
          bytes.withUnsafeBytes { bytes -> UInt64 in
            var reader = ByteReader(bytes)
            return reader.read(UInt64.self) ?? 0
          }
        }
        bodies.append(UnfinishedBody(bodyID: bodyID, processID: Int32(truncatingIfNeeded: processID)))
        more = try cursor.next()
      }
    }
    return bodies
  }
}

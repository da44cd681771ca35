import LMDB

/// Marks the records that soft tombstones make stale, in bounded steps, and deletes the tombstones when all are marked.
///
/// Owns the positions. The eviction thread runs the steps. Lookups treat an unmarked record as a marked one, so this
/// only ends their comparisons with the tombstones. Calls ``DiskSpace``.
final class TombstoneMarker: Sendable {
  private let context: StoreContext
  private let database: RecordDatabase
  private let space: DiskSpace
  private let state = Monitor(State())

  private struct State {
    /// The position of the marking for each tombstone; the key is its row in `meta`.
    var positions: [[UInt8]: ScanPosition] = [:]
    /// The tombstones by host, prefix or group that one pass over the index marks together.
    var hostWork: Work?
    /// When the next pass over the index may begin.
    var nextHostPass = MonotonicTime.now
  }

  private struct Work {
    var tombstones: [Tombstone]
    var position: ScanPosition
  }

  init(_ context: StoreContext, space: DiskSpace) {
    self.context = context
    database = context.database
    self.space = space
  }

  /// Marks some of the records that soft tombstones cover. Returns false if there is nothing to mark now.
  ///
  /// - Parameter tombstones: The tombstones of the last commit.
  func markRecords(of tombstones: [Tombstone]) throws(LMDBError) -> Bool {
    guard !tombstones.isEmpty else { return false }
    let tombstones = tombstones.filter { $0.mode != .hard }
    guard !tombstones.isEmpty else { return false }
    let isComplete = database.isIndexComplete
    if let single = tombstones.first(where: { !$0.scope.needsHostPass && (isComplete || $0.scope == .everything) }) {
      let position = state.withLock { $0.positions[single.metaKey] } ?? .start
      let rest = try mark(Work(tombstones: [single], position: position))
      state.withLock { $0.positions[single.metaKey] = rest?.position }
      return true
    }
    guard isComplete, let work = hostWork(among: tombstones) else { return false }
    let rest = try mark(work)
    state.withLock { $0.hostWork = rest }
    return true
  }

  /// Marks some records. Returns what is left to do.
  private func mark(_ work: Work) throws(LMDBError) -> Work? {
    do throws(LMDBError) {
      return try mark(work, isCautious: false)
    } catch {
      guard error.code == .mapFull else { throw error }
      return try mark(work, isCautious: true)
    }
  }

  /// A step copies the pages of records without freeing any. So it changes half as many as a step that deletes records.
  private func mark(_ work: Work, isCautious: Bool) throws(LMDBError) -> Work? {
    let budget = space.budget
    let tombstone = work.tombstones[0]
    // Read before the write lock is taken, since reading takes longer than marking.
    let found = try database.environment.read {
      (transaction) throws(LMDBError) -> (rows: [UInt64], end: ScanPosition?) in
      let candidates = try database.findCoveredRows(
        tombstone, limit: budget.scatteredRemovalCount, from: work.position, in: transaction)
      let rows = try database.unmarkedRows(among: candidates?.rows ?? [], coveredBy: work.tombstones, in: transaction)
      return (rows, candidates?.end)
    }
    return try space.commit { (transaction) throws(LMDBError) -> Work? in
      // Another process may have finished the marking, or the index may have been lost since.
      guard try database.meta.contains(tombstone.metaKey, in: transaction) else { return nil }
      guard database.isIndexComplete || tombstone.scope == .everything else { return nil }
      var counters = try database.counters(in: transaction)
      if !isCautious { counters.freeablePageCount = budget.freeablePageCount / 2 }
      var rows = found.rows
      if case .key = tombstone.scope {
        // Only here does the index surely have the rows of the last commit.
        rows = try database.findCoveredRows(tombstone, limit: .max, from: .start, in: transaction)?.rows ?? []
      }
      // The writer waits meanwhile; callers of `store(_:)` do not.
      let deadline = MonotonicTime.now + .milliseconds(16)
      let next = try database.markStale(
        rows, coveredBy: work.tombstones, until: deadline, counters: &counters, isInRun: !tombstone.scope.needsHostPass,
        in: transaction)
      var rest = work
      // The next step finds the rows that are left from the same position.
      if next == nil, let end = found.end { rest.position = end }
      let isDone = next == nil && found.end == nil
      if isDone {
        for tombstone in work.tombstones { try database.meta.remove(tombstone.metaKey, in: transaction) }
        counters.lastTombstoneChange = transaction.id
      }
      try database.setCounters(counters, in: transaction)
      return isDone ? nil : rest
    }
  }

  /// The work of the present pass over the index, or of a new one; nil if the next pass is not due.
  private func hostWork(among tombstones: [Tombstone]) -> Work? {
    let known = state.withLock { $0.hostWork }
    let start = MonotonicTime.now
    var work: Work?
    if let known, case .found(let pass) = known.position, tombstones.contains(known.tombstones[0]) {
      guard pass.isExhausted else { return known }
      database.index.followReplacement()
      work = pass.next(over: database.index).map { Work(tombstones: known.tombstones, position: .found($0)) }
    } else {
      // Passes take at most a quarter of the time.
      guard !context.options.runsInBackground || start >= state.withLock({ $0.nextHostPass }) else { return nil }
      database.index.followReplacement()
      let tombstones = Array(tombstones.filter { $0.scope.needsHostPass }.prefix(1024))
      let tags = tombstones.map { $0.scope.hostPrefix.flatMap { database.hostTag(ofPrefix: $0) } }
      work = HostPass(over: database.index, hostTags: tags.contains(nil) ? nil : Set(tags.compactMap(\.self))).map {
        Work(tombstones: tombstones, position: .found($0))
      }
    }
    let elapsed = start.duration(to: .now)
    state.withLock { state in
      state.hostWork = work
      state.nextHostPass = .now + elapsed * 3
    }
    return work
  }
}

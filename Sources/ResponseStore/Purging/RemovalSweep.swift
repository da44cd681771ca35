import CacheModel
import LMDB

/// Deletes the records that hard tombstones cover, marks those that soft ones cover, and then deletes the tombstones.
///
/// A sweep is one walk over `dates` in bounded steps, for all tombstones that exist when it begins. Later ones wait for
/// the next sweep. The position is in the database (``SweepProgress``), so that any process continues the sweep, also
/// after a crash. The eviction thread runs the steps; the writer thread runs them, too, when it needs free pages.
///
/// Owns the time of the next search. Calls ``DiskSpace`` and ``HolePuncher``.
struct RemovalSweep: Sendable {
  let context: StoreContext
  private var database: RecordDatabase { context.database }
  let space: DiskSpace
  let puncher: HolePuncher
  /// The rows of `dates` whose records were requested from the disk.
  private let requested = Monitor<ClosedRange<DateKey>?>(nil)
  /// When the next step may search, after one that found nothing.
  private let nextSearch = Monitor(MonotonicTime.now)

  /// The result of a step.
  struct Outcome {
    /// The number of deleted records.
    var removedCount = 0
    /// Whether records were found that had to be deleted or marked.
    var hasFound = false
    /// Whether a sweep is unfinished.
    var hasMore = false
  }

  // MARK: Steps

  /// Does a step. While searches find nothing, they take at most a quarter of the time of the eviction thread.
  func step() throws(LMDBError) -> Outcome {
    if context.options.runsInBackground, nextSearch.withLock({ $0 }) > .now { return Outcome(hasMore: true) }
    let start = MonotonicTime.now
    let outcome = try step { !$0.isEmpty }
    nextSearch.withLock { $0 = .now + (outcome.hasFound ? .zero : start.duration(to: .now) * 3) }
    return outcome
  }

  /// Does a step if the sweep deletes records. Returns whether the step has deleted some.
  func freePages() throws(LMDBError) -> Bool {
    try step { $0.contains { $0.removal.isHard } }.removedCount > 0
  }

  private func step(if isWanted: ([Tombstone]) -> Bool) throws(LMDBError) -> Outcome {
    do throws(LMDBError) {
      return try step(isCautious: false, if: isWanted)
    } catch {
      guard error.code == .mapFull else { throw error }
      return try step(isCautious: true, if: isWanted)
    }
  }

  /// - Parameter isCautious: Whether hardly any page is free, so that the step must need no contiguous pages.
  private func step(isCautious: Bool, if isWanted: ([Tombstone]) -> Bool) throws(LMDBError) -> Outcome {
    guard var batch = try firstBatch(), isWanted(batch.tombstones) else { return Outcome() }
    // Several read transactions, so that none pins pages for long.
    for _ in 0..<Self.maximumSearchCount where batch.parts.isEmpty && batch.end != nil {
      batch = try database.environment.read { (transaction) throws(LMDBError) in
        try search(batch, in: transaction)
      }
    }
    let outcome = try space.commit { (transaction) throws(LMDBError) -> Outcome in
      try process(batch, isCautious: isCautious, in: transaction)
    }
    context.counts.countRemovals(outcome.removedCount, .requested)
    if !outcome.hasMore {
      puncher.noteRemoval()
      // What the next sweep reads may no longer be in the page cache.
      requested.withLock { $0 = nil }
    }
    return outcome
  }

  /// The number of read transactions in a step that finds nothing.
  private static let maximumSearchCount = 8
  /// The maximum number of rows of `dates` that one read transaction examines.
  private static let maximumExaminedCount = 1 << 17
  /// The number of rows that are processed together, between two checks of the deadline.
  private static let rowsTogetherCount = 128

  // MARK: Searching

  /// Covered records, which a read transaction found. Reading takes longer than deleting, so it takes no write lock.
  private struct Batch {
    /// The progress before the step; nil if the sweep begins.
    let known: SweepProgress?
    let tombstones: [Tombstone]
    let selection: RemovalSelection
    /// The progress at the end of the batch.
    var progress: SweepProgress
    /// The first row after the batch; nil at the end of the table.
    var end: DateKey?
    var parts: [Part] = []
  }

  /// The covered records among neighboring rows of `dates`.
  private struct Part {
    let start: DateKey
    var removable: [RemovableRecord] = []
    var unmarked: [UInt64] = []
    /// Records that cannot be read.
    var corrupt: [UInt64] = []
    /// Rows of `dates` without a record, which corruption left.
    var strays: [DateKey] = []

    var isEmpty: Bool { removable.isEmpty && unmarked.isEmpty && corrupt.isEmpty && strays.isEmpty }
  }

  /// Returns the first batch of a step; nil if there is no tombstone.
  private func firstBatch() throws(LMDBError) -> Batch? {
    try database.environment.read { (transaction) throws(LMDBError) -> Batch? in
      let all = try context.removals.tombstones(in: transaction)
      guard let last = all.map(\.lastRowID).max() else { return nil }
      let known = try database.sweepProgress(in: transaction)
      var tombstones = all.filter { $0.lastRowID <= known?.lastRowID ?? 0 }
      var progress = known
      if tombstones.isEmpty { (tombstones, progress) = (all, nil) }
      let selection = database.selection(of: tombstones)
      let first = progress ?? SweepProgress(lastRowID: last, next: selection.start)
      return try search(
        Batch(known: known, tombstones: tombstones, selection: selection, progress: first, end: first.next),
        in: transaction)
    }
  }

  private func search(_ batch: Batch, in transaction: borrowing ReadTransaction) throws(LMDBError) -> Batch {
    var batch = batch
    let budget = space.budget
    // The journal of the index limits the changes of a transaction.
    let limit = min(
      batch.selection.isRun ? budget.removedRunCount : budget.scatteredRemovalCount,
      max(database.index.journalCapacity, IndexLayout.minimumJournalCapacity))
    let found = try database.rows(
      of: batch.selection, from: batch.end ?? batch.selection.start, limit: limit,
      examinedLimit: Self.maximumExaminedCount, in: transaction)
    batch.progress.examinedCount += UInt64(found.examinedCount)
    batch.end = found.end
    if let end = found.end { batch.progress.next = end }
    var soon = found.rows
    if let end = found.end, !soon.isEmpty {
      // The next batch, too: the disk reads it while this one is deleted.
      soon += try database.rows(
        of: batch.selection, from: end, limit: limit, examinedLimit: Self.maximumExaminedCount, in: transaction
      ).rows
    }
    request(soon, transaction)
    var rest = found.rows[...]
    while let start = rest.first {
      let rows = rest.prefix(Self.rowsTogetherCount)
      rest = rest.dropFirst(rows.count)
      let part = try part(of: rows, from: start, coveredBy: batch.tombstones, in: transaction)
      if !part.isEmpty { batch.parts.append(part) }
    }
    return batch
  }

  private func part(
    of rows: ArraySlice<DateKey>, from start: DateKey, coveredBy tombstones: [Tombstone],
    in transaction: borrowing ReadTransaction
  ) throws(LMDBError) -> Part {
    var part = Part(start: start)
    let rowIDs = rows.map(\.rowID).sorted()
    var recordCount = 0
    (part.removable, part.corrupt) = try database.removableRecords(rowIDs, in: transaction) { (rowID, head) in
      recordCount += 1
      return tombstones.fate(rowID: rowID, head)
    }
    if recordCount < rowIDs.count {
      for date in rows where try !database.heads.contains(date.rowID, in: transaction) { part.strays.append(date) }
    }
    if tombstones.contains(where: { !$0.removal.isHard }) {
      part.unmarked = try database.unmarkedRows(among: rowIDs, coveredBy: tombstones, in: transaction)
    }
    return part
  }

  /// Asks the operating system to read records that were not requested before. LMDB would read them one by one.
  private func request(_ rows: [DateKey], _ transaction: borrowing ReadTransaction) {
    guard let first = rows.first, let last = rows.last else { return }
    let known = requested.withLock { requested in
      defer { requested = first...last }
      return requested
    }
    let new = rows.filter { row in known.map { !$0.contains(row) } ?? true }
    database.heads.requestLeaves(of: new.map(\.rowID).sorted(), in: database.environment, transaction)
  }

  // MARK: Deleting and marking

  /// Deletes and marks the records of a batch, until the transaction has freed enough pages or taken 16 ms. Deletes the
  /// tombstones at the end of the sweep.
  private func process(
    _ batch: Batch, isCautious: Bool, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Outcome {
    // Another process may have done the same step since.
    guard let first = batch.tombstones.first, try database.contains(first, in: transaction),
      try database.sweepProgress(in: transaction) == batch.known
    else { return Outcome(hasMore: true) }
    // Marking copies the pages of records without freeing any, so it changes half as many.
    let marks = batch.tombstones.contains { !$0.removal.isHard }
    let pageCount =
      isCautious ? FreeingBudget.defaultPageCount : space.budget.freeablePageCount / (marks ? 2 : 1)
    // After a cautious start the freed pages need not be contiguous.
    let isInRun = !isCautious && batch.selection.isRun
    // The writer waits during this transaction; callers of `store(_:)` do not.
    let deadline = MonotonicTime.now + .milliseconds(16)
    return try database.change(in: transaction, freeing: pageCount) { (changes) throws(LMDBError) in
      var outcome = Outcome(hasFound: !batch.parts.isEmpty)
      var rest: DateKey?
      for (number, part) in batch.parts.enumerated() {
        rest = part.start
        if number > 0, changes.freeing.isExhausted || MonotonicTime.now > deadline { break }
        let step = try process(part, of: batch.tombstones, changes: &changes, isInRun: isInRun, in: transaction)
        outcome.removedCount += step.removed
        guard step.isDone else { break }
        rest = nil
      }
      outcome.hasMore = rest != nil || batch.end != nil
      if outcome.hasMore {
        var progress = batch.progress
        if let rest { progress.next = rest }
        try database.setSweepProgress(progress, in: transaction)
      } else {
        try database.endSweep(of: batch.tombstones, changes: &changes, in: transaction)
      }
      return outcome
    }
  }

  /// Deletes and marks the records of a part. Returns the number of deleted records, and whether none is left.
  private func process(
    _ part: Part, of tombstones: [Tombstone], changes: inout RecordChanges, isInRun: Bool,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> (removed: Int, isDone: Bool) {
    try database.removeStrayDates(part.strays, in: transaction)
    let removal = try database.remove(
      part.removable, unreadable: part.corrupt, changes: &changes, isInRun: isInRun, in: transaction,
      use: tombstones.fate)
    let removed = removal.rowIDs.count + removal.otherCount
    guard removal.next == nil else { return (removed, false) }
    let next = try database.markStale(
      part.unmarked, coveredBy: tombstones, changes: &changes, isInRun: isInRun, in: transaction)
    return (removed, next == nil)
  }
}

/// The progress of the present sweep: a row of `meta`. Without such a row, no sweep is in progress.
struct SweepProgress: Sendable, Equatable {
  /// The sweep is for the tombstones up to this ``Tombstone/lastRowID``.
  var lastRowID: UInt64
  /// The next row of `dates` to examine.
  var next: DateKey
  /// The number of rows that were examined.
  var examinedCount: UInt64 = 0

  init(lastRowID: UInt64, next: DateKey) {
    self.lastRowID = lastRowID
    self.next = next
  }

  /// Decodes the row; nil if it is corrupt. The sweep then begins again.
  init?(_ bytes: UnsafeRawBufferPointer) {
    guard let content = ChecksummedValue.content(of: bytes) else { return nil }
    var reader = ByteReader(content)
    guard let lastRowID = reader.read(UInt64.self), let time = reader.read(UInt64.self),
      let rowID = reader.read(UInt64.self), let examinedCount = reader.read(UInt64.self)
    else { return nil }
    self.init(lastRowID: lastRowID, next: DateKey(time: time, rowID: rowID))
    self.examinedCount = examinedCount
  }

  var encoded: [UInt8] {
    var writer = ByteWriter()
    for number in [lastRowID, next.time, next.rowID, examinedCount] { writer.append(number) }
    return ChecksummedValue.encode(writer.bytes)
  }
}

import LMDB

/// Frees segments: chooses one, has the records appended again that are worth keeping, and the others deleted. In
/// bounded steps, each within a write transaction of the caller.
///
/// The choice and how far it has come are this process's own. When the process ends within a segment, what is left of
/// the segment is a smaller one.
struct SegmentCleaner {
  /// A record of the segment that is being freed.
  struct Row {
    let rowID: UInt64
    /// Nil if the record cannot be read or the index lacks it. Then it is evicted.
    let entry: IndexEntry?
    /// The data needed to delete the record; nil if the record cannot be read.
    let removable: RemovableRecord?
    /// Why it goes, if it goes.
    let reason: RemovalReason
    /// Whether it is appended again.
    let survives: Bool
  }

  /// The next rows of a segment, as a read transaction has found them.
  struct Rows {
    fileprivate(set) var found: [Row] = []
    /// The row to go on with, if there are more.
    fileprivate var next: UInt64?
  }

  /// The result of examining a record.
  struct Examination {
    /// Nil if the record cannot be read.
    var removable: RemovableRecord?
    /// Why the record goes, however much it is used; nil if it may survive.
    var reason: RemovalReason?
  }

  /// The result of one step. It holds once its transaction is committed.
  struct Step {
    fileprivate(set) var evictedCount = 0
    fileprivate(set) var movedCount = 0
    /// Where the next step begins; nil when the segment is free, or another process has freed it.
    fileprivate var next: UInt64?
  }

  /// How many rows are gone through together: so that their leaves are changed at once, and no step frees much more
  /// than it should.
  private static let rowsTogetherCount = 32

  private var plan: EvictionPlan?
  private var position: UInt64 = 0
  private var random: UInt64

  /// - Parameter seed: Of the choice, so that a run can be repeated.
  init(seed: UInt64 = .random(in: .min ... .max)) {
    random = seed
  }

  /// Chooses a segment, unless one is being freed, and decides on its next records: in a read transaction, since to
  /// read and check them takes longer than to remove them.
  ///
  /// - Parameters:
  ///   - limit: How many records are looked at, at most. Each is a change in the index's journal.
  ///   - byteCount: Of the records, about: what the step frees or writes in the logs.
  ///   - examine: Reads a record.
  /// - Returns: Nil if there is nothing to evict.
  mutating func choose(
    _ logs: RecordLogs, open: OpenSegments, index: RecordIndex, limit: Int, byteCount: Int,
    in transaction: borrowing some Transaction & ~Copyable,
    examine: (UInt64, UnsafeRawBufferPointer) -> Examination
  ) throws(LMDBError) -> Rows? {
    if plan == nil {
      let segments = try logs.segments(open: open, in: transaction)
      // A full period of all 64-bit numbers; the upper bits are random enough to begin at.
      random = random &* 6_364_136_223_846_793_005 &+ 1_442_695_040_888_963_407
      plan = EvictionPlan(segments: segments, index: index, random: random)
      let first = plan?.segment.firstRowID ?? 0
      // In front of a band's first segment is nothing, or what damage has left of another one.
      let isFirst = !segments.contains { $0.firstRowID < first && Band(rowID: $0.firstRowID) == Band(rowID: first) }
      position = isFirst ? 0 : first
    }
    guard let plan, let band = Band(rowID: plan.segment.firstRowID) else { return nil }
    var rows = Rows()
    let limit = min(limit, index.journalCapacity / 2)
    var left = byteCount
    try logs.forEachRow(of: band, from: position, in: transaction) { (rowID, record) in
      guard rowID < plan.end ?? .max else { return false }
      guard rows.found.count < limit, left > 0 else {
        rows.next = rowID
        return false
      }
      left -= record.count
      let examination = examine(rowID, record)
      let slot = examination.removable.flatMap { index.slot(of: $0.tag, rowID: rowID) }
      let entry = slot.map { IndexEntry(tagWord: index.tagWord($0), rowWord: index.rowWord($0)) }
      rows.found.append(
        Row(
          rowID: rowID, entry: entry, removable: examination.removable, reason: examination.reason ?? .overCapacity,
          survives: entry.map { plan.keeps($0) && examination.reason == nil } ?? false))
      return true
    }
    return rows
  }

  /// Frees a part of the chosen segment.
  ///
  /// - Parameters:
  ///   - rows: What ``choose(_:open:index:limit:byteCount:in:examine:)`` has found.
  ///   - counters: Of the transaction; the open segments among them.
  ///   - evict: Deletes records, in the order of their rows, and returns how many it is done with. The rest is kept for
  ///     the next step.
  ///   - move: Appends a record again and deletes it in its old place. Returns false if it must not survive after all.
  /// - Returns: Pass it to ``finish(_:)`` once the transaction is committed.
  func clean(
    _ logs: RecordLogs, rows: Rows, index: RecordIndex, counters: inout PersistentCounters,
    in transaction: borrowing WriteTransaction, evict: ([Row], inout PersistentCounters) throws(LMDBError) -> Int,
    move: (IndexEntry, inout PersistentCounters) throws(LMDBError) -> Bool
  ) throws(LMDBError) -> Step {
    var step = Step()
    guard let plan, let band = Band(rowID: plan.segment.firstRowID) else { return step }
    let first = plan.segment.firstRowID
    // Its rows are freed, so it takes no more.
    if let closed = counters.openSegments.close(first) { try logs.put(closed, in: transaction) }
    let segments = try logs.segments(open: counters.openSegments, in: transaction)
    guard segments.contains(where: { $0.firstRowID == first }) else { return step }
    let end = segments.first { $0.firstRowID > first && Band(rowID: $0.firstRowID) == band }?.firstRowID ?? .max
    if index.inflation < plan.inflation { index.inflation = plan.inflation }
    var rest = rows.found[...]
    while !rest.isEmpty {
      let part = rest.prefix(Self.rowsTogetherCount)
      rest = rest.dropFirst(part.count)
      var leaving: [Row] = []
      for row in part {
        if row.survives, let entry = row.entry, try move(entry, &counters) {
          step.movedCount += 1
        } else {
          leaving.append(row)
        }
      }
      let count = leaving.isEmpty ? 0 : try evict(leaving, &counters)
      step.evictedCount += count
      if count < leaving.count {
        step.next = leaving[count].rowID
        return step
      }
    }
    // While it was open, it may have got more since it was read.
    step.next = rows.next
    if step.next == nil {
      let start = (rows.found.last?.rowID ?? position) + 1
      step.next = try logs.firstRowID(of: band, from: start, in: transaction).flatMap { $0 < end ? $0 : nil }
    }
    if step.next == nil { try logs.remove(plan.segment, in: transaction) }
    return step
  }

  /// Notes that the transaction of a step is committed.
  mutating func finish(_ step: Step) {
    if let next = step.next { position = next } else { plan = nil }
  }
}

import LMDB

/// Frees segments: chooses one, has the records appended again that are worth keeping, and the others deleted. In bounded steps, each
/// within a write transaction of the caller.
///
/// The choice and how far it has come are this process's own. When the process ends within a segment, what is left of the
/// segment is a smaller one.
struct SegmentCleaner {
  /// A record of the segment that is being freed.
  struct Row {
    let rowID: UInt64
    let record: [UInt8]
    /// Nil if the record cannot be read or the index lacks it. Then it is evicted.
    let entry: IndexEntry?
  }

  /// What one step did. Nothing counts before its transaction is committed.
  struct Step {
    fileprivate(set) var evictedCount = 0
    fileprivate(set) var movedCount = 0
    /// Where the next step begins; nil when the segment is free, or another process has freed it.
    fileprivate var next: UInt64?
  }

  private var plan: EvictionPlan?
  private var position: UInt64 = 0
  private var random: UInt64

  /// - Parameter seed: Of the choice, so that a run can be repeated.
  init(seed: UInt64 = .random(in: .min ... .max)) {
    random = seed
  }

  /// Chooses a segment, unless one is being freed, and has the records of the next step in memory before the write lock is
  /// taken.
  ///
  /// - Parameter limit: The number of records of the step.
  /// - Returns: False if there is nothing to evict.
  mutating func choose(
    _ logs: RecordLogs, open: OpenSegments, index: RecordIndex, limit: Int,
    in transaction: borrowing some Transaction & ~Copyable
  ) throws(LMDBError) -> Bool {
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
    guard let plan, let band = Band(rowID: plan.segment.firstRowID) else { return false }
    var count = 0
    // To walk over leaves is to read them.
    try logs.forEachRow(of: band, from: position, in: transaction) { (_, _) in
      count += 1
      return count < limit
    }
    return true
  }

  /// Frees a part of the chosen segment.
  ///
  /// - Parameters:
  ///   - limit: How many records are looked at, at most. Each is a change in the index's journal.
  ///   - byteCount: Of the records, about: what the transaction frees or writes in the logs.
  ///   - counters: Of the transaction; the open segments among them.
  ///   - digest: The digest of a record's key; nil if the record cannot be read.
  ///   - mayKeep: Whether a record may survive: not one that has expired, or that a purge covers.
  ///   - evict: Deletes a record. Returns false to keep the rest for the next step.
  ///   - move: Appends a record again and deletes it in its old place.
  /// - Returns: Pass it to ``finish(_:)`` once the transaction is committed.
  func clean(
    _ logs: RecordLogs, index: IndexFile, limit: Int, byteCount: Int, counters: inout Counters,
    in transaction: borrowing WriteTransaction, digest: (UnsafeRawBufferPointer) -> UInt64?,
    mayKeep: (Row) throws(LMDBError) -> Bool, evict: (Row, inout Counters) throws(LMDBError) -> Bool,
    move: (Row, IndexEntry, inout Counters) throws(LMDBError) -> Void
  ) throws(LMDBError) -> Step {
    var step = Step()
    guard let plan, let current = index.current, let band = Band(rowID: plan.segment.firstRowID) else { return step }
    let first = plan.segment.firstRowID
    // Its rows are freed, so it takes no more.
    if let closed = counters.openSegments.close(first) { try logs.put(closed, in: transaction) }
    let segments = try logs.segments(open: counters.openSegments, in: transaction)
    guard segments.contains(where: { $0.firstRowID == first }) else { return step }
    let end = segments.first { $0.firstRowID > first && Band(rowID: $0.firstRowID) == band }?.firstRowID ?? .max
    if current.inflation < plan.inflation { current.inflation = plan.inflation }
    let rows = try rows(
      of: band, from: position, to: end, limit: min(limit, current.journalCapacity / 2), byteCount: byteCount, logs,
      current, in: transaction, digest)
    for row in rows.found {
      if let entry = row.entry, plan.keeps(entry), try mayKeep(row) {
        try move(row, entry, &counters)
        step.movedCount += 1
      } else {
        guard try evict(row, &counters) else {
          step.next = row.rowID
          return step
        }
        step.evictedCount += 1
      }
    }
    step.next = rows.next
    if step.next == nil { try logs.remove(plan.segment, in: transaction) }
    return step
  }

  /// Notes that the transaction of a step is committed.
  mutating func finish(_ step: Step) {
    if let next = step.next { position = next } else { plan = nil }
  }

  /// Copies rows out, since the log is changed next; and the row to go on with, if there are more.
  private func rows(
    of band: Band, from start: UInt64, to end: UInt64, limit: Int, byteCount: Int, _ logs: RecordLogs,
    _ index: RecordIndex, in transaction: borrowing WriteTransaction, _ digest: (UnsafeRawBufferPointer) -> UInt64?
  ) throws(LMDBError) -> (found: [Row], next: UInt64?) {
    var found: [Row] = []
    var next: UInt64?
    var left = byteCount
    try logs.forEachRow(of: band, from: start, in: transaction) { (rowID, record) in
      guard rowID < end else { return false }
      guard found.count < limit, left > 0 else {
        next = rowID
        return false
      }
      left -= record.count
      let slot = digest(record).flatMap { index.slot(of: IndexEntry.tag(of: $0), rowID: rowID) }
      let entry = slot.map { IndexEntry(facts: index.facts($0), place: index.place($0)) }
      found.append(Row(rowID: rowID, record: [UInt8](record), entry: entry))
      return true
    }
    return (found, next)
  }
}

import CacheActivity
import LMDB

/// Frees segments: chooses one, appends the records that are worth keeping again, and deletes the others.
///
/// Works in bounded steps, each within a write transaction of the caller. The choice and the position belong to this
/// process. If the process ends within a segment, the rest of the segment remains as a smaller one.
struct SegmentCleaner {
  /// A record of the segment that is being freed.
  struct Row {
    let rowID: UInt64
    /// The record in the index; nil if the record cannot be read or is not in the index. Then it is evicted.
    let entry: IndexEntry?
    /// The data needed to delete the record; nil if the record cannot be read.
    let removable: RemovableRecord?
    /// The reason for the deletion, unless the record survives.
    let reason: RemovalReason
    /// Whether it is appended again.
    let survives: Bool
  }

  /// The next rows of a segment, found in a read transaction.
  struct Rows {
    fileprivate(set) var found: [Row] = []
    /// The row to continue from; nil if there are no more.
    fileprivate var next: UInt64?
  }

  /// The result of examining a record.
  struct Examination {
    /// The data needed to delete the record; nil if the record cannot be read.
    var removable: RemovableRecord?
    /// The reason why the record must be deleted regardless of its use; nil if it may survive.
    var reason: RemovalReason?
  }

  /// The result of one step, valid if its transaction commits.
  struct Step {
    /// The row at which the next step begins; nil if the segment is free.
    fileprivate var next: UInt64?
  }

  /// The number of rows that are processed together.
  ///
  /// Their leaves are changed at once. The limit keeps a step from freeing much more than intended.
  private static let rowsTogetherCount = 32

  private var plan: EvictionPlan?
  private var position: UInt64 = 0
  /// The segment's records were written long ago, so in a store that is larger than memory they come from the disk.
  private var readAhead: ReadAhead?
  private var random: UInt64

  /// - Parameter seed: The seed of the choice, so that a run can be repeated.
  init(seed: UInt64 = .random(in: .min ... .max)) {
    random = seed
  }

  /// Chooses a segment, unless one is being freed, and decides which of its next records survive.
  ///
  /// Runs in a read transaction, because reading and checking the records takes longer than deleting them.
  ///
  /// - Parameters:
  ///   - limit: The maximum number of records to examine. Each is a change in the index's journal.
  ///   - byteCount: The approximate maximum of the records' bytes, which the step frees or writes in the logs.
  ///   - environment: The environment of `transaction`.
  ///   - examine: Examines a record.
  /// - Returns: Nil if there is nothing to evict.
  mutating func choose(
    _ logs: RecordLogs, open: OpenSegments, index: RecordIndex, limit: Int, byteCount: Int,
    in environment: LMDBEnvironment, _ transaction: borrowing ReadTransaction,
    examine: (UInt64, UnsafeRawBufferPointer) -> Examination
  ) throws(LMDBError) -> Rows? {
    if plan == nil {
      index.preferInPageCache()
      let segments = try logs.segments(open: open, in: transaction)
      // A linear congruential generator. Its upper bits are random enough for the start of a sample.
      random = random &* 6_364_136_223_846_793_005 &+ 1_442_695_040_888_963_407
      plan = EvictionPlan(segments: segments, index: index, random: random)
      let first = plan?.segment.firstRowID ?? 0
      // Rows before a band's first segment can only be left over from corruption. Free them, too.
      let isFirst = !segments.contains { $0.firstRowID < first && Band(rowID: $0.firstRowID) == Band(rowID: first) }
      position = isFirst ? 0 : first
      readAhead = try plan.flatMap { (plan) throws(LMDBError) in try Self.readAhead(of: plan) }
    }
    guard let plan, let band = Band(rowID: plan.segment.firstRowID) else { return nil }
    readAhead?.advance(to: try BigEndianUInt64Codec.bytes(of: position), in: environment, transaction)
    var rows = Rows()
    let limit = min(limit, index.journalCapacity / 2)
    var left = byteCount
    var examined: [(rowID: UInt64, examination: Examination)] = []
    try logs.forEachRow(of: band, from: position, in: transaction) { (rowID, record) in
      guard rowID < plan.end ?? .max else { return false }
      guard examined.count < limit, left > 0 else {
        rows.next = rowID
        return false
      }
      left -= record.count
      examined.append((rowID, examine(rowID, record)))
      return true
    }
    index.loadCells(of: examined.lazy.compactMap { $0.examination.removable?.tag })
    rows.found = examined.map { (rowID, examination) in
      let cell = examination.removable.flatMap { index.cell(of: $0.tag, rowID: rowID) }
      let entry = cell.map(index.entry(in:))
      return Row(
        rowID: rowID, entry: entry, removable: examination.removable, reason: examination.reason ?? .overCapacity,
        survives: entry.map { plan.keeps($0) && examination.reason == nil } ?? false)
    }
    return rows
  }

  /// Returns the read-ahead of a segment; nil if the segment is small, because then the store fits in memory.
  private static func readAhead(of plan: EvictionPlan) throws(LMDBError) -> ReadAhead? {
    guard let band = Band(rowID: plan.segment.firstRowID), plan.segment.byteCount >= 4 << 20 else { return nil }
    let end = try plan.end.map { (end) throws(LMDBError) in try BigEndianUInt64Codec.bytes(of: end) }
    return ReadAhead(table: RecordLogs.table(of: band), end: end)
  }

  /// Frees a part of the chosen segment.
  ///
  /// - Parameters:
  ///   - rows: The result of ``choose(_:open:index:limit:byteCount:in:_:examine:)``.
  ///   - changes: The counters of the transaction, with the open segments.
  ///   - evict: Deletes records in the order of their rows, and returns the number of processed ones. The next step
  ///     processes the rest.
  ///   - move: Appends a record again and deletes its old row. Returns false if the record must not survive after all.
  /// - Returns: The step. Pass it to ``finish(_:)`` after the transaction has committed.
  func clean(
    _ logs: RecordLogs, rows: Rows, index: RecordIndex, changes: inout RecordChanges,
    in transaction: borrowing WriteTransaction, evict: ([Row], inout RecordChanges) throws(LMDBError) -> Int,
    move: (IndexEntry, inout RecordChanges) throws(LMDBError) -> Bool
  ) throws(LMDBError) -> Step {
    var step = Step()
    guard let plan, let band = Band(rowID: plan.segment.firstRowID) else { return step }
    let first = plan.segment.firstRowID
    // Close the segment, so that it takes no more records.
    if let closed = changes.counters.openSegments.close(first) { try logs.put(closed, in: transaction) }
    let segments = try logs.segments(open: changes.counters.openSegments, in: transaction)
    guard segments.contains(where: { $0.firstRowID == first }) else { return step }
    let end = segments.first { $0.firstRowID > first && Band(rowID: $0.firstRowID) == band }?.firstRowID ?? .max
    if index.inflation < plan.inflation { index.inflation = plan.inflation }
    var rest = rows.found[...]
    while !rest.isEmpty {
      let part = rest.prefix(Self.rowsTogetherCount)
      rest = rest.dropFirst(part.count)
      var leaving: [Row] = []
      for row in part {
        if row.survives, let entry = row.entry, try move(entry, &changes) { continue }
        leaving.append(row)
      }
      let count = leaving.isEmpty ? 0 : try evict(leaving, &changes)
      if count < leaving.count {
        step.next = leaving[count].rowID
        return step
      }
    }
    // If the segment was open, records may have been appended after it was read.
    step.next = rows.next
    if step.next == nil {
      let start = (rows.found.last?.rowID ?? position) + 1
      step.next = try logs.firstRowID(of: band, from: start, in: transaction).flatMap { $0 < end ? $0 : nil }
    }
    if step.next == nil { try logs.remove(plan.segment, in: transaction) }
    return step
  }

  /// Moves to the end of a step. Call this after its transaction has committed.
  mutating func finish(_ step: Step) {
    if let next = step.next { position = next } else { plan = nil }
  }
}

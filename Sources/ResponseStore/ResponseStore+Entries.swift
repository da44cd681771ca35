import FoundationEssentials
import HTTPCaching
import LMDB

/// What the store tells of an entry without its body.
public struct StoredEntry: Sendable {
  /// The record's number. It says nothing about its age: eviction gives another one to a record that it keeps.
  public let rowID: UInt64
  /// What the response answers.
  public let key: RequestKey
  /// The HTTP status code; 0 for a response that is not HTTP.
  public let status: Int
  /// When it was stored.
  public let storedAt: Date
  /// Date, age and lifetime.
  public let facts: FreshnessFacts
  /// The header fields by which its variant was chosen.
  public let varyNames: [String]
  /// The body's size in bytes.
  public let bodyByteCount: Int
}

/// The order in which a walk visits the entries.
public enum EntryOrder: Sendable {
  /// The order on disk, which is the fastest.
  case stored
  /// By the time of storing, oldest first.
  case time
}

extension ResponseStore {
  /// Calls `body` with each committed entry until it returns false. What is stored or removed meanwhile may or may not be seen.
  ///
  /// Nothing is held between two calls, so `body` may take its time. At most ``EntryWalk/maximumBatchCount`` entries are in memory.
  /// A walk reads ahead of itself, but for its beginning.
  ///
  /// - Complexity: O(entries).
  public func forEachEntry<E: Error>(
    in order: EntryOrder = .stored, _ body: (StoredEntry) throws(E) -> Bool
  ) throws(E) {
    try forEachEntry(in: order, coveredBy: .everything) { (entry, _) throws(E) in try body(entry) }
  }

  /// As ``forEachEntry(in:_:)``; tells `body` whether a removal of `scope` would cover the entry.
  package func forEachEntry<E: Error>(
    in order: EntryOrder = .stored, coveredBy scope: RemovalScope,
    _ body: (_ entry: StoredEntry, _ isCovered: Bool) throws(E) -> Bool
  ) throws(E) {
    guard isUsable else { return }
    let purge = Purge(sequence: .max, scope: scope, lastRowID: .max)
    var walk = EntryWalk(file: file, removals: removals, order: order, scope: purge, isAlone: options.opensExistingOnly)
    while true {
      let batch: [EntryWalk.Element]?
      do throws(LMDBError) {
        batch = try walk.nextBatch()
      } catch {
        readFailed(error)
        return
      }
      guard let batch else { return }
      for element in batch where !(try body(element.entry, element.isCovered)) { return }
    }
  }

  /// When the oldest and the newest entry were stored, of those that a purge hides and has still to delete, too; nil when there is
  /// none.
  ///
  /// - Complexity: O(log entries).
  public var storedTimes: ClosedRange<Date>? {
    guard isUsable else { return nil }
    do throws(LMDBError) {
      return try file.environment.read { (transaction) throws(LMDBError) in
        try file.dates.withCursor(in: transaction) { (cursor) throws(LMDBError) -> ClosedRange<Date>? in
          guard try cursor.first() else { return nil }
          let oldest = OrderedTime.decode(try cursor.checkedKey().time)
          guard try cursor.last() else { return nil }
          return oldest...max(oldest, OrderedTime.decode(try cursor.checkedKey().time))
        }
      }
    } catch {
      readFailed(error)
      return nil
    }
  }
}

/// A walk over the entries in batches, each in a read transaction of its own.
struct EntryWalk {
  typealias Element = (entry: StoredEntry, isCovered: Bool)

  /// The most entries of a batch. The first batches are smaller, so that the first entry comes soon.
  static let maximumBatchCount = 1024

  private let file: StoreFile
  private let removals: RemovalView
  private let order: EntryOrder
  /// Of each entry is told whether this would cover it.
  private let scope: Purge
  /// Whether this process only looks at the store, and can do without pages that it has read.
  private let isAlone: Bool
  private var batchCount = 64
  private var nextRowID: UInt64? = 0
  private var nextDate: DateKey? = DateKey(time: 0, rowID: 0)
  private var headReadAhead = Band.all.map { ReadAhead(table: RecordLogs.table(of: $0)) }
  private var dateReadAhead = ReadAhead(table: StorageFormat.datesTable, windowPageCount: 64)

  init(file: StoreFile, removals: RemovalView, order: EntryOrder, scope: Purge, isAlone: Bool) {
    self.file = file
    self.removals = removals
    self.order = order
    self.scope = scope
    self.isAlone = isAlone
  }

  /// The next entries, maybe none; nil at the end.
  mutating func nextBatch() throws(LMDBError) -> [Element]? {
    guard nextRowID != nil, nextDate != nil else { return nil }
    defer { batchCount = min(2 * batchCount, Self.maximumBatchCount) }
    return try file.environment.read { (transaction) throws(LMDBError) in
      defer { if isAlone, batchCount == Self.maximumBatchCount { file.environment.releaseResidentPages(transaction) } }
      let purges = try removals.purges(in: transaction)
      return order == .stored
        ? try batchInOrderOfRows(purges, transaction) : try batchInOrderOfTime(purges, transaction)
    }
  }

  private mutating func batchInOrderOfRows(
    _ purges: [Purge], _ transaction: borrowing ReadTransaction
  ) throws(LMDBError) -> [Element] {
    let start = nextRowID ?? 0
    try readAheadOfHeads(from: start, transaction)
    var entries: [Element] = []
    var rowCount = 0
    nextRowID = nil
    try file.heads.forEachRow(from: start, in: transaction) { (rowID, record) in
      guard rowCount < batchCount else {
        nextRowID = rowID
        return false
      }
      rowCount += 1
      if let element = element(rowID, record, hiddenBy: purges) { entries.append(element) }
      return true
    }
    return entries
  }

  private mutating func batchInOrderOfTime(
    _ purges: [Purge], _ transaction: borrowing ReadTransaction
  ) throws(LMDBError) -> [Element] {
    let start = nextDate ?? DateKey(time: .max, rowID: .max)
    if batchCount == Self.maximumBatchCount {
      dateReadAhead.advance(to: try DateKeyCodec.bytes(of: start), in: file.environment, transaction)
    }
    var rowIDs: [UInt64] = []
    nextDate = try file.dates.withCursor(in: transaction) { (cursor) throws(LMDBError) -> DateKey? in
      var more = try cursor.seek(atOrAfter: start)
      for _ in 0..<batchCount where more {
        rowIDs.append(try cursor.checkedKey().rowID)
        more = try cursor.next()
      }
      return more ? try cursor.checkedKey() : nil
    }
    // In each log most rows have the order of their times.
    for band in Band.all {
      if let first = rowIDs.first(where: { Band(rowID: $0) == band }) { try readAheadOfHeads(from: first, transaction) }
    }
    var entries: [Element] = []
    for rowID in rowIDs {
      let entry = try file.heads.withValue(for: rowID, in: transaction) { (record) throws(LMDBError) in
        record.withUnsafeBytes { element(rowID, $0, hiddenBy: purges) }
      }
      if case .some(.some(let entry)) = entry { entries.append(entry) }
    }
    return entries
  }

  private mutating func readAheadOfHeads(
    from rowID: UInt64, _ transaction: borrowing ReadTransaction
  ) throws(LMDBError) {
    guard batchCount == Self.maximumBatchCount, let band = Band(rowID: rowID)?.number else { return }
    headReadAhead[band].advance(to: try BigEndianUInt64.bytes(of: rowID), in: file.environment, transaction)
  }

  /// Nil for a record that is damaged or hidden.
  private func element(
    _ rowID: UInt64, _ record: UnsafeRawBufferPointer, hiddenBy purges: [Purge]
  ) -> Element? {
    guard let layout = HeadLayout(record), layout.hasRightChecksum else { return nil }
    guard !purges.contains(where: { $0.covers(rowID: rowID, layout: layout) }) else { return nil }
    let entry = StoredEntry(
      rowID: rowID, key: RequestKey(storedBytes: [UInt8](layout.key)), status: layout.status,
      storedAt: layout.storedAt, facts: layout.facts,
      varyNames: FieldCoding.decodeVary(layout.vary).selectors.map(\.name), bodyByteCount: layout.bodyByteCount)
    return (entry, scope.covers(rowID: rowID, layout: layout))
  }
}

extension KeyCodec {
  /// The encoded key.
  static func bytes(of key: Value) throws(LMDBError) -> [UInt8] {
    try withEncoded(key) { (bytes) throws(LMDBError) in [UInt8](bytes) }
  }
}

import CacheModel
import FoundationEssentials
import HTTPCaching
import LMDB

/// A walk over the entries in batches, each in its own read transaction.
struct EntryWalk {
  /// The maximum number of entries of a batch. The first batches are smaller, so that the first entry arrives soon.
  static let maximumBatchCount = 1024

  private let context: StoreContext
  private var database: RecordDatabase { context.database }
  private let order: EntryOrder
  /// See ``StoredResponseInfo/isCovered``.
  private let scope: Tombstone
  private var batchCount = 64
  private var nextRowID: UInt64? = 0
  private var nextDate: DateKey? = DateKey(time: 0, rowID: 0)
  private var headReadAhead = RecordReadAhead()

  init(_ entries: StoredEntries) {
    context = entries.store.context
    order = entries.order
    scope = Tombstone(removal: Removal(entries.scope))
  }

  /// Returns the next entries, possibly none; nil at the end.
  mutating func nextBatch() throws(LMDBError) -> [StoredResponseInfo]? {
    guard nextRowID != nil, nextDate != nil else { return nil }
    defer { batchCount = min(2 * batchCount, Self.maximumBatchCount) }
    return try database.environment.read { (transaction) throws(LMDBError) in
      defer {
        // A process that only inspects the store need not keep the pages.
        if context.options.opensExistingOnly, batchCount == Self.maximumBatchCount {
          database.environment.releaseResidentPages(in: transaction)
        }
      }
      let tombstones = try context.removals.activeTombstones(in: transaction)
      return order == .stored
        ? try batchInOrderOfRows(tombstones, transaction) : try batchInOrderOfTime(tombstones, transaction)
    }
  }

  private mutating func batchInOrderOfRows(
    _ tombstones: [Tombstone], _ transaction: borrowing ReadTransaction
  ) throws(LMDBError) -> [StoredResponseInfo] {
    let start = nextRowID ?? 0
    try readAheadOfHeads(from: start, transaction)
    var entries: [StoredResponseInfo] = []
    var rowCount = 0
    nextRowID = nil
    try database.heads.forEachRow(from: start, in: transaction) { (rowID, record) in
      guard rowCount < batchCount else {
        nextRowID = rowID
        return false
      }
      rowCount += 1
      if let head = RecordHeaderView(record), let entry = entry(rowID, head, hiddenBy: tombstones) {
        entries.append(entry)
      }
      return true
    }
    return entries
  }

  private mutating func batchInOrderOfTime(
    _ tombstones: [Tombstone], _ transaction: borrowing ReadTransaction
  ) throws(LMDBError) -> [StoredResponseInfo] {
    let start = nextDate ?? DateKey(time: .max, rowID: .max)
    let found = try database.rows(from: start, limit: batchCount, in: transaction)
    nextDate = found.end
    let rowIDs = found.rows.map(\.rowID)
    // In each log, most rows are in the order of their times.
    for band in Band.all {
      if let first = rowIDs.first(where: { Band(rowID: $0) == band }) { try readAheadOfHeads(from: first, transaction) }
    }
    var entries: [StoredResponseInfo] = []
    for rowID in rowIDs {
      let entry = try database.heads.withHeader(of: rowID, in: transaction) {
        self.entry(rowID, $0, hiddenBy: tombstones)
      }
      if let entry { entries.append(entry) }
    }
    return entries
  }

  private mutating func readAheadOfHeads(
    from rowID: UInt64, _ transaction: borrowing ReadTransaction
  ) throws(LMDBError) {
    guard batchCount == Self.maximumBatchCount else { return }
    try headReadAhead.advance(to: rowID, in: database.environment, transaction)
  }

  /// Nil for a record that is corrupt or hidden.
  private func entry(
    _ rowID: UInt64, _ layout: RecordHeaderView, hiddenBy tombstones: [Tombstone]
  ) -> StoredResponseInfo? {
    guard layout.hasRightChecksum else { return nil }
    var freshness = layout.freshness
    switch tombstones.effect(rowID: rowID, layout) {
    case .none: break
    case .stale(let date): freshness = freshness.softPurged(at: date)
    case .removed: return nil
    }
    return StoredResponseInfo(
      rowID: rowID, key: RequestKey(storedBytes: [UInt8](layout.key)), status: layout.status,
      storedAt: layout.storedAt, updatedAt: layout.updatedAt, freshness: freshness,
      vary: layout.vary.isEmpty ? VaryKey(fields: []) : FieldCoding.decodeVary(layout.vary),
      bodyByteCount: layout.bodyByteCount,
      contentType: FieldCoding.firstValue(of: "content-type", in: layout.fields),
      isCovered: scope.covers(rowID: rowID, layout: layout) { FieldCoding.decodeFields(layout.fields) })
  }
}

extension KeyCodec {
  static func bytes(of key: Value) throws(LMDBError) -> [UInt8] {
    try withEncoded(key) { (bytes) throws(LMDBError) in [UInt8](bytes) }
  }
}

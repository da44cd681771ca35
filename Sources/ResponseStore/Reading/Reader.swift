import CacheActivity
import CacheModel
import FoundationEssentials
import Glibc
import HTTPCaching
import LMDB

/// Looks responses up: first in the pending writes, then on disk.
///
/// Runs on the caller's thread, never waits for the writer, and holds no lock during disk access. Owns the verified
/// checksums. Queues corrupt records for the writer to delete.
final class Reader: Sendable {
  let context: StoreContext
  let database: RecordDatabase
  let pendingWrites: PendingWrites
  let verified = VerifiedChecksums()
  // Direct references to parts of the context, so that a lookup follows and counts as few references as possible.
  private let removalLog: RemovalLog
  let removals: KnownRemovals
  private let environment: Unretained<LMDBEnvironment>
  private let index: Unretained<IndexMapping>
  private let lookups: StripedLookupCounter
  private let activity: Unretained<ActivityReference>
  private let unretainedContext: Unretained<StoreContext>
  private let opensExistingOnly: Bool
  private let verifiesEveryRead: Bool

  init(_ context: StoreContext) {
    self.context = context
    database = context.database
    pendingWrites = context.pendingWrites
    removalLog = context.removalLog
    removals = context.removals
    environment = context.environment
    index = context.index
    lookups = context.counts.lookups
    activity = Unretained(context.counts.activity)
    unretainedContext = Unretained(context)
    opensExistingOnly = context.options.opensExistingOnly
    verifiesEveryRead = context.options.verifiesEveryRead
  }

  /// Whether the store is usable. Traps after it was closed.
  @inline(__always)
  var isUsable: Bool { unretainedContext.use { $0.isUsable } }

  @inline(__always)
  func count(isHit: Bool) {
    lookups.count(isHit: isHit)
    activity.use { $0.countLookup(isHit: isHit) }
  }

  /// See ``ResponseStore/lookup(_:leavingBodiesBeyond:where:)``.
  ///
  /// - Parameter large: The maximum size of a body that is copied, and the store in which a larger body stays and which
  ///   that body keeps open; nil to copy any body.
  @inline(__always)
  func lookup(
    _ key: RequestKey, leaving large: (limit: Int, store: ResponseStore)? = nil, isCounted: Bool,
    where matches: (VaryKey) -> Bool
  ) -> StoredResponse? {
    guard isUsable else { return nil }
    let found = find(key, leaving: large, where: matches)
    if isCounted { count(isHit: found != nil) }
    return found
  }

  /// See ``ResponseStore/forEachVariant(of:_:)``.
  func forEachVariant(of key: RequestKey, _ body: (VaryKey) -> Void) {
    guard isUsable else { return }
    _ = find(key) { vary in
      body(vary)
      return false
    }
  }

  @inline(__always)
  private func find(
    _ key: RequestKey, leaving large: (limit: Int, store: ResponseStore)? = nil, where matches: (VaryKey) -> Bool
  ) -> StoredResponse? {
    // Search pending writes before the disk: a write committed between the two searches is then found on disk.
    pendingWrites.mightContain(key)
      ? findPendingOrOnDisk(key, leaving: large, where: matches) : findOnDisk(key, leaving: large, where: matches)
  }

  /// Finds the best response of a key among the pending writes and on disk.
  private func findPendingOrOnDisk(
    _ key: RequestKey, leaving large: (limit: Int, store: ResponseStore)?, where matches: (VaryKey) -> Bool
  ) -> StoredResponse? {
    var best: (response: PendingWrite, rank: VariantRank)?
    var pendingVariants: [VaryKey] = []
    for write in pendingWrites.variants(of: key) {
      // If another process has replaced the record of an update, the newer one is found on disk.
      if write.isUpdate, !hasRecord(ofUpdate: write) { continue }
      // Also of a removed write: the record on disk is older still.
      pendingVariants.append(write.vary)
      let effect = removals.effect(on: write)
      guard effect != .removed, matches(write.vary) else { continue }
      let rank = VariantRank(vary: write.vary, date: write.freshness.date)
      if best.map({ $0.rank < rank }) ?? true, let response = write.applying(effect) { best = (response, rank) }
    }
    let onDisk = findOnDisk(key, above: best?.rank, besides: pendingVariants.count, leaving: large) { vary in
      !pendingVariants.contains(vary) && matches(vary)
    }
    return onDisk ?? best.flatMap { response(of: $0.response, leaving: large) }
  }

  /// Whether an index is in use. Otherwise lookups find only pending writes.
  var isDiskTierOn: Bool { index.use { $0.unretained != nil } }

  /// Whether the record of an update still exists, and is not hidden, or is a pending write.
  func hasRecord(ofUpdate write: PendingWrite) -> Bool {
    let rowID = write.rowID
    guard rowID != 0 else { return true }
    do throws(LMDBError) {
      return try read { (transaction) throws(LMDBError) in
        let tombstones = try removals.activeTombstones(in: transaction)
        guard let rowID = try database.row(of: write.head, lastKnownAs: rowID, in: transaction) else { return false }
        if tombstones.isEmpty { return true }
        return try database.heads.withHeader(of: rowID, in: transaction) { !tombstones.hide(rowID: rowID, $0) } ?? false
      }
    } catch {
      context.readFailed(error)
      return false
    }
  }

  /// The rank of a matching response: one with Vary fields ranks above one without, then the newer one is higher (RFC
  /// 9111, sections 4 and 4.1).
  struct VariantRank: Comparable {
    var hasVaryFields: Bool
    var date: Date

    init(vary: VaryKey, date: Date) {
      hasVaryFields = vary.hasVaryFields
      self.date = date
    }

    static func < (left: VariantRank, right: VariantRank) -> Bool {
      left.hasVaryFields == right.hasVaryFields ? left.date < right.date : right.hasVaryFields
    }
  }

  /// Finds the best record of a key on disk.
  ///
  /// - Parameters:
  ///   - pending: The rank of the best pending write; only a higher record is returned.
  ///   - pendingCount: The number of pending variants of the key.
  ///   - countsUse: False for a lookup that must not affect eviction.
  func findOnDisk(
    _ key: RequestKey, above pending: VariantRank? = nil, besides pendingCount: Int = 0,
    leaving large: (limit: Int, store: ResponseStore)? = nil, countsUse: Bool = true, where matches: (VaryKey) -> Bool
  ) -> StoredResponse? {
    do throws(LMDBError) {
      // The checksum of a record whose body in the store was just verified. The record is looked up again, because it
      // may have been removed in between.
      var intactChecksum: UInt64?
      for _ in 0..<4 {
        var isOutdated = false
        var unverified: StoredBody?
        let found = try read { (transaction) throws(LMDBError) -> StoredResponse? in
          let choice = try selectRecord(key, above: pending, in: transaction, isOutdated: &isOutdated, where: matches)
          guard var selected = choice else { return nil }
          if pendingCount > 0 { selected.hasOthers = true }
          if countsUse { recordUse(of: selected) }
          if let large, selected.head.isReadInPieces(beyond: large.limit) {
            let isIntact = selected.head.checksum == intactChecksum
            return copyHead(of: selected, large.store, isIntact: isIntact, in: transaction, unverified: &unverified)
          }
          let record = try copy(selected, in: transaction)
          if record == nil { reportCorruptRecord(selected.rowID) }
          return record
        }
        guard let record = found else {
          if isOutdated { continue }
          return nil
        }
        guard let body = unverified else { return record }
        switch try isIntact(record, body) {
        case true?:
          let checksum = record.withHead { $0.checksum }
          let hasTable = BlockTable.rowCount(bodyByteCount: body.byteCount) > 0
          verified.insert(rowID: record.rowID, checksum: hasTable ? ~checksum : checksum)
          intactChecksum = checksum
        case false?:
          reportCorruptRecord(record.rowID)
          return nil
        // The record was replaced or evicted. Look again.
        case nil: break
        }
      }
    } catch {
      context.readFailed(error)
    }
    return nil
  }

  @inline(__always)
  func read<R>(_ body: (borrowing ReadTransaction) throws(LMDBError) -> R) throws(LMDBError) -> R {
    try environment.use { environment in
      Result { () throws(LMDBError) in try environment.read(body) }
    }.get()
  }

  /// A record on disk. The header is in the map, and is valid until the transaction ends.
  struct SelectedRecord {
    var rowID: UInt64
    var head: RecordHeaderView
    /// The cell of the index; nil if the record was found by the index's journal.
    var cell: IndexCell?
    /// Whether the key has other records.
    var hasOthers: Bool
    /// Whether a soft removal covers it and has not marked it yet.
    var isSoftPurged: Bool
    /// The last removal before the lookup.
    var removalSequence: UInt64
  }

  /// Returns the best record of a key that `matches` accepts, if it ranks above the pending writes.
  ///
  /// - Parameter isOutdated: Set if the result is nil, but a newer snapshot or index may contain a record. Try again.
  func selectRecord(
    _ key: RequestKey, above pending: VariantRank?, in transaction: borrowing ReadTransaction, isOutdated: inout Bool,
    where matches: (VaryKey) -> Bool
  ) throws(LMDBError) -> SelectedRecord? {
    // Read this number before the removals, so that every later removal is compared with the copy.
    let removalSequence = removalLog.sequence
    let tombstones = try removals.activeTombstones(in: transaction)
    var best = Best(rank: pending, removalSequence: removalSequence)
    var usable = self.index.use { $0.unretained }
    if usable == nil { usable = try privateIndex(in: transaction) }
    guard let index = usable else { return nil }
    var hasMissing = false
    let digest = key.bytes.withUnsafeBytes { database.keyDigest(of: $0) }
    var cells = index._withUnsafeGuaranteedRef { $0.matches(of: digest) }
    while let match = cells.next() {
      if try consider(match.rowID, (index, match), key, &best, tombstones, in: transaction, where: matches) { continue }
      // Eviction may have moved the record, or another process replaced it, while the index still has its old row.
      if let newer = index._withUnsafeGuaranteedRef({ $0.rowID(following: match.rowID) }),
        try consider(newer, nil, key, &best, tombstones, in: transaction, where: matches)
      {
        continue
      }
      hasMissing = true
      if !index._withUnsafeGuaranteedRef({ $0.hasRow(of: match) }) { isOutdated = true }
    }
    if hasMissing, database.environment.lastTransactionID != transaction.id { isOutdated = true }
    // The record that was not found may rank above the best one so far.
    if isOutdated { return nil }
    if best.selected == nil {
      // The index may have been replaced during the search.
      isOutdated = self.index.use { $0.unretained?.toOpaque() != index.toOpaque() }
    }
    return best.selected
  }

  /// Returns an index in private memory for a store that is only inspected, and does not build the shared one.
  @inline(never)
  private func privateIndex(in transaction: borrowing ReadTransaction) throws(LMDBError) -> Unmanaged<RecordIndex>? {
    guard opensExistingOnly else { return nil }
    try database.buildPrivateIndex(in: transaction)
    return index.use { $0.unretained }
  }

  typealias IndexCell = (index: Unmanaged<RecordIndex>, match: RecordIndex.Match)

  /// The result of a lookup so far.
  private struct Best {
    var rank: VariantRank?
    let removalSequence: UInt64
    var selected: SelectedRecord?
    var count = 0
  }

  /// Compares a record with the best one so far. Returns false if its row does not exist.
  ///
  /// The index follows the commits, so it may name a row that the snapshot does not have.
  @inline(__always)
  private func consider(
    _ rowID: UInt64, _ cell: IndexCell?, _ key: RequestKey, _ best: inout Best, _ tombstones: [Tombstone],
    in transaction: borrowing ReadTransaction, where matches: (VaryKey) -> Bool
  ) throws(LMDBError) -> Bool {
    let record = try database.heads.withValue(for: rowID, in: transaction) { (record) throws(LMDBError) in
      record.withUnsafeBytes { $0 }
    }
    guard let record else { return false }
    guard let head = RecordHeaderView(record), isIntact(head, rowID: rowID) else {
      reportCorruptRecord(rowID)
      return true
    }
    guard head.hasKey(key.bytes) else { return true }
    best.count += 1
    best.selected?.hasOthers = true
    var isSoftPurged = false
    if !tombstones.isEmpty {
      switch tombstones.effect(rowID: rowID, head) {
      case .none: break
      case .stale: isSoftPurged = true
      case .removed: return true
      }
    }
    let vary = head.vary.isEmpty ? VaryKey(fields: []) : FieldCoding.decodeVary(head.vary)
    guard matches(vary) else { return true }
    let rank = VariantRank(vary: vary, date: head.freshness.date)
    if let other = best.rank, !(other < rank) {
      // Of records with equal rank, select the one that was stored later.
      guard !(rank < other), let selected = best.selected,
        (selected.head.storedAt, selected.rowID) < (head.storedAt, rowID)
      else { return true }
    }
    best.rank = rank
    best.selected = SelectedRecord(
      rowID: rowID, head: head, cell: cell, hasOthers: best.count > 1, isSoftPurged: isSoftPurged,
      removalSequence: best.removalSequence)
    return true
  }

  @inline(__always)
  func recordUse(of selected: SelectedRecord) {
    guard let cell = selected.cell else { return }
    cell.index._withUnsafeGuaranteedRef { $0.recordUse(of: cell.match) }
  }

  /// Whether a header matches its checksum. A verified header is not checked again until it changes.
  private func isIntact(_ head: RecordHeaderView, rowID: UInt64) -> Bool {
    // The header is recorded as verified only after the body was verified, too.
    isVerified(head, rowID: rowID) || head.hasRightChecksum
  }

  func isVerified(_ head: RecordHeaderView, rowID: UInt64) -> Bool {
    !verifiesEveryRead && verified.contains(rowID: rowID, checksum: head.checksum)
  }

  /// Whether the header and the table of a large body were verified, but not the body.
  func isTableVerified(_ head: RecordHeaderView, rowID: UInt64) -> Bool {
    !verifiesEveryRead && verified.contains(rowID: rowID, checksum: ~head.checksum)
  }

  // MARK: Corruption

  func reportCorruptRecord(_ rowID: UInt64) {
    guard context.queue.update({ $0.addCorrupt(rowID) }) else { return }
    context.counts.count(1, .corruptRecords)
    context.log(
      .corruptRecord, "A stored response is corrupt (checksum mismatch); it is treated as a miss and will be deleted")
  }
}

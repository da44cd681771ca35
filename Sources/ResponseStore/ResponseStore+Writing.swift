import FoundationEssentials
import LMDB

/// The writer: takes what is queued and commits it in groups.
extension ResponseStore {
  /// Work for one transaction.
  struct Batch {
    var stores: [StagedResponse] = []
    var removals: [RemovalOrder] = []
    var damagedRowIDs: Set<UInt64> = []
    var isEmpty: Bool { stores.isEmpty && removals.isEmpty && damagedRowIDs.isEmpty }
  }

  /// What a transaction did, counted once it is committed.
  struct Outcome {
    var stores = 0
    var updates = 0
    var dropped = 0
    var removed: [RemovalReason: Int] = [:]
    /// Where the responses stand now.
    var rows: [ObjectIdentifier: (row: RowReference, rowID: UInt64)] = [:]
    /// The pages that removals freed, and those that held something before.
    var freedPageCount = 0
    var pageCountBefore = 0

    mutating func note(_ row: RowReference, _ rowID: UInt64) {
      rows[ObjectIdentifier(row)] = (row, rowID)
    }

    /// The row of a response that may have been written earlier in the same transaction.
    func rowID(of row: RowReference) -> UInt64 {
      rows[ObjectIdentifier(row)]?.rowID ?? row.rowID
    }
  }

  /// Commits the next group of what is queued; false if nothing was. The writer thread does this by itself; a store
  /// opened without background threads is stepped with it.
  @discardableResult
  public func writePending() -> Bool {
    let byteLimit = limits.withLock { $0.batchByteCount }
    let batch = queue.withLock { queue -> Batch in
      var batch = Batch(removals: queue.removals, damagedRowIDs: queue.damagedRowIDs)
      queue.removals = []
      queue.removalsUnderWay = batch.removals.count
      queue.damagedRowIDs = []
      // A removal does not wait for a batch of stores.
      if batch.removals.isEmpty { batch.stores = queue.takeStores(byteLimit: byteLimit) }
      return batch
    }
    guard !batch.isEmpty else { return false }
    carryOut(batch, byteLimit: byteLimit)
    staging.remove(batch.stores)
    queue.update {
      $0.finish(batch.stores)
      $0.removalsUnderWay = 0
    }
    for removal in batch.removals {
      staging.forget(removal.staged)
      removal.finish()
    }
    return true
  }

  func carryOut(_ batch: Batch, byteLimit: Int) {
    guard !isCondemned, !isForked else {
      counts.droppedStores.add(batch.stores.count, ordering: .relaxed)
      return
    }
    if let only = batch.stores.first, batch.stores.count == 1, only.byteCount > byteLimit,
      case .insert = only.purpose
    {
      attempt(batch) { () throws(LMDBError) in try self.writeLarge(only, byteLimit: byteLimit) }
      return
    }
    attempt(batch) { () throws(LMDBError) in
      if !batch.stores.isEmpty { try self.makeRoom(pageCount: self.pageCount(for: batch.stores)) }
      return try self.commit { (transaction) throws(LMDBError) -> Outcome in
        try self.perform(batch, in: transaction)
      }
    }
  }

  /// The pages that storing takes at most, besides those that are copied to be changed.
  private func pageCount(for stores: [StagedResponse]) -> Int {
    stores.reduce(16) { sum, staged in
      // An update leaves the body where it is.
      var bodyByteCount = staged.head.isBodyInline ? 0 : staged.body.count
      if case .replaceHead = staged.purpose { bodyByteCount = 0 }
      return sum + file.pageCount(recordByteCount: staged.head.bytes.count, bodyByteCount: bodyByteCount)
    }
  }

  /// A write transaction; every change of the file goes through here.
  func commit<R>(_ body: (borrowing WriteTransaction) throws(LMDBError) -> R) throws(LMDBError) -> R {
    let result = try file.environment.write(body)
    counts.commits.add(1, ordering: .relaxed)
    do throws(LMDBError) {
      try file.environment.extendShortFile()
    } catch {
      // The transaction stands; only a crash before the next commit would find the file short, and set it aside.
      log(.failedWrite, "The data file could not be extended: \(error)")
    }
    return result
  }

  /// Tries work that is all or nothing, again after a full map. What cannot be done is dropped and counted.
  private func attempt(_ batch: Batch, _ work: () throws(LMDBError) -> Outcome) {
    var round = 0
    while true {
      do throws(LMDBError) {
        let outcome = try work()
        count(outcome)
        finish(batch, outcome)
        return
      } catch {
        round += 1
        if round < 4, relieve(error, for: batch, round: round) { continue }
        writeFailed(error, batch)
        return
      }
    }
  }

  /// Does what can be done so that the same work may succeed at the next try.
  private func relieve(_ error: LMDBError, for batch: Batch, round: Int) -> Bool {
    if error.code == .mapFull || error.code == .transactionFull {
      counts.fullMaps.add(1, ordering: .relaxed)
      return recoverFromFullMap()
    }
    // A removal is a promise; stores on a full disk are not.
    guard error.isLackOfRoom, !batch.removals.isEmpty else { return false }
    for removal in batch.removals { removal.isOnlyMarked = true }
    return storeDirectory.giveUpReserve() || (round == 1 && freeDiskSpace())
  }

  /// After a commit: what a removal promises holds from here on.
  private func finish(_ batch: Batch, _ outcome: Outcome) {
    if !batch.removals.isEmpty {
      do throws(LMDBError) {
        try file.environment.synchronize()
      } catch {
        condemn("a removal could not be made durable (\(error))")
      }
      if outcome.freedPageCount >= max(16, outcome.pageCountBefore / 4) {
        maintenance.withLock { $0.wantsRelease = true }
      }
    }
    keepWithinMap()
    wakeMaintenanceIfNeeded(afterRemoval: !batch.removals.isEmpty)
  }

  private func count(_ outcome: Outcome) {
    for (row, rowID) in outcome.rows.values { row.set(rowID) }
    counts.stores.add(outcome.stores, ordering: .relaxed)
    counts.updates.add(outcome.updates, ordering: .relaxed)
    counts.droppedStores.add(outcome.dropped, ordering: .relaxed)
    for (reason, count) in outcome.removed { counts.countRemovals(count, reason) }
  }

  private func perform(
    _ batch: Batch, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Outcome {
    var outcome = Outcome()
    var counters = try file.counters(in: transaction)
    let before = counters
    if !batch.damagedRowIDs.isEmpty {
      outcome.removed[.damaged] = try file.removeDamaged(batch.damagedRowIDs, counters: &counters, in: transaction)
    }
    if !batch.removals.isEmpty {
      outcome.pageCountBefore = try file.environment.livePageCount(in: transaction)
      for (number, removal) in batch.removals.enumerated() {
        outcome.removed[.requested, default: 0] += try file.remove(
          removal.scope, number: UInt32(number), logLimit: limits.withLock { $0.logLimit },
          onlyMarked: removal.isOnlyMarked, counters: &counters, in: transaction)
        for staged in removal.staged {
          outcome.removed[.requested, default: 0] += try file.removeVariant(
            of: staged.head, counters: &counters, in: transaction)
        }
      }
      outcome.freedPageCount = try outcome.pageCountBefore - file.environment.livePageCount(in: transaction)
    }
    if !batch.stores.isEmpty { file.uses.follow() }
    for staged in batch.stores {
      guard try isStillWanted(staged, counters: before, in: transaction) else {
        outcome.dropped += 1
        try removeWhatItReplaces(staged, counters: &counters, outcome: &outcome, in: transaction)
        continue
      }
      try write(staged, rowID: nil, counters: &counters, outcome: &outcome, in: transaction)
    }
    if !batch.stores.isEmpty { file.uses.growIfCrowded(capacityByteCount: capacityByteCount) }
    try file.setCounters(counters, in: transaction)
    return outcome
  }

  /// Whether no removal has covered the response since it was staged: one of this process takes it from the staging
  /// area, one of another process is in the log.
  func isStillWanted(
    _ staged: StagedResponse, counters: Counters, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> Bool {
    guard staging.contains(staged) else { return false }
    return try !file.wasRemoved(after: staged.snapshot, counters: counters, in: transaction) {
      staged.isCovered(by: $0)
    }
  }

  /// A response that a removal caught between its staging and its writing had taken an older one's place already, which
  /// must not come to light again: also not if the process is killed before the removal itself is written.
  func removeWhatItReplaces(
    _ staged: StagedResponse, counters: inout Counters, outcome: inout Outcome,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    guard case .insert = staged.purpose else { return }
    outcome.removed[.requested, default: 0] += try file.removeVariant(
      of: staged.head, counters: &counters, in: transaction)
  }

  /// Writes one response; with `rowID` its chunks are there already.
  func write(
    _ staged: StagedResponse, rowID reservedRowID: UInt64?, counters: inout Counters, outcome: inout Outcome,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    if case .replaceHead = staged.purpose {
      let rowID = outcome.rowID(of: staged.row)
      if try file.replaceHead(of: rowID, with: staged.head, body: staged.body, counters: &counters, in: transaction) {
        outcome.note(staged.row, rowID)
        outcome.updates += 1
      } else {
        outcome.dropped += 1
      }
      return
    }
    let rowID: UInt64
    if let reservedRowID {
      rowID = reservedRowID
    } else {
      rowID = counters.nextRowID
      counters.nextRowID += 1
      if !staged.head.isBodyInline {
        try file.putChunks(
          0..<file.chunkCount(bodyByteCount: staged.body.count), of: staged.body, rowID: rowID, in: transaction)
      }
    }
    let inserted = try file.insert(head: staged.head, rowID: rowID, counters: &counters, in: transaction)
    outcome.note(staged.row, rowID)
    outcome.stores += 1
    outcome.removed[.replaced, default: 0] += inserted.replaced
    outcome.removed[.tooManyVariants, default: 0] += inserted.pushedOut
  }

  // MARK: Failure

  private func writeFailed(_ error: LMDBError, _ batch: Batch) {
    counts.droppedStores.add(batch.stores.count, ordering: .relaxed)
    if !batch.removals.isEmpty {
      // A removal that cannot be made durable must hold all the same: better no cache than a removed answer.
      condemn("a removal could not be written (\(error))")
      return
    }
    if error.isDamage {
      condemn("\(error)")
      return
    }
    if error.isLackOfRoom {
      log(.fullDisk, "The disk is full or failing; responses are not stored until there is room: \(error)")
    } else {
      log(.failedWrite, "Responses could not be stored: \(error)")
    }
  }
}

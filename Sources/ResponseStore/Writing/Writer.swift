import CacheActivity
import CacheModel
import FoundationEssentials
import LMDB
import SystemFiles

/// Commits queued writes in groups.
///
/// The writer thread runs it. In a store without threads, ``ResponseStore/writePending()`` and calls that wait for the
/// writer run it.
/// Owns no state: the queue and the pending writes have locks of their own. Calls ``Evictor``, ``DiskSpace``,
/// ``HolePuncher`` and ``IndexMaintainer``.
struct Writer: Sendable {
  let context: StoreContext
  var database: RecordDatabase { context.database }
  private var queue: Monitor<WriteQueue> { context.queue }
  let space: DiskSpace
  let evictor: Evictor
  let puncher: HolePuncher
  let indexMaintainer: IndexMaintainer

  /// Like ``writeNext()``, but does nothing in a store that is only inspected.
  @discardableResult
  func writePending() -> Bool {
    context.options.opensExistingOnly ? false : WriteSignals.suppressing { writeNext() }
  }

  /// Commits the next group of queued writes, and applies removals. Returns false if nothing more can be done now.
  ///
  /// While the index is absent, the writes wait in the queue. If it cannot be built, they fail.
  @discardableResult
  func writeNext() -> Bool {
    _ = indexMaintainer.ensureIndex()
    let byteLimit = space.batchByteCount
    let countLimit = batchCountLimit()
    let hasRemovals = context.removalLog.hasRemovalsToApply
    var batch = queue.withLock { queue -> WriteBatch in
      let batch = WriteBatch(
        writes: queue.takeWrites(byteLimit: byteLimit, countLimit: countLimit), corruptRowIDs: queue.corruptRowIDs,
        appliesRemovals: hasRemovals && queue.mayApplyRemovals)
      queue.corruptRowIDs = []
      return batch
    }
    let isDone = batch.isEmpty || process(batch, byteLimit: byteLimit)
    context.pendingWrites.remove(batch.writes)
    let byteCount = batch.writes.reduce(0) { $0 + $1.byteCount }
    // Discards that failed are retried after a pause.
    let hasMore = !batch.isEmpty && (isDone || batch.writes.contains { !$0.isDiscard })
    queue.update { queue in
      queue.finish(&batch.writes, byteCount: byteCount)
      guard batch.appliesRemovals else { return }
      // If removals could not be applied, retry later. Meanwhile the removal log hides the records.
      queue.removalsPausedUntil = isDone ? nil : .now + (context.options.runsInBackground ? .seconds(1) : .zero)
    }
    return hasMore
  }

  /// Queues discards for writes that failed, so that the older records that they replace do not reappear.
  ///
  /// Call this before the failed writes are removed from the pending writes, so that this process continues to miss
  /// those records.
  private func discardReplacedRecords(of failed: [PendingWrite]) {
    guard context.isUsableInBackground, !context.isForked else { return }
    let limit = context.options.queueByteCountWithDiscards
    queue.withLock { queue in
      guard !queue.isClosing else { return }
      for failed in failed
      where !failed.isUpdate && context.pendingWrites.rivals(of: failed, in: queue).queued(in: queue) == nil {
        // If a newer write of the variant is queued, it replaces the older record, or becomes a discard itself. Do not
        // search the index for the older record: a record is committed before the index contains it.
        let discard = PendingWrite(
          discarding: failed.vary, of: failed.key, freshness: failed.freshness, storedAt: failed.storedAt,
          removalSequence: failed.removalSequence)
        guard queue.hasSpace(for: discard, limit: limit) else { return }
        context.pendingWrites.insert(discard)
        queue.add(discard, insteadOf: failed, pause: context.options.runsInBackground ? .seconds(1) : .zero)
      }
    }
  }

  /// Commits a batch, with retries. Returns false if it failed.
  func process(_ batch: WriteBatch, byteLimit: Int) -> Bool {
    guard !context.hasFailed, !context.isForked else {
      noteLoss(of: batch.writes, nil)
      return false
    }
    var batch = batch
    if let only = batch.writes.first, batch.writes.count == 1, only.byteCount > byteLimit,
      only.purpose == .insert
    {
      // This takes several transactions. Removals do not wait for them.
      batch.writes = []
      let isApplied = batch.isEmpty || attempt(batch) { (batch) throws(LMDBError) in try commit(batch) }
      let isWritten = attempt(WriteBatch(writes: [only])) { (batch) throws(LMDBError) in
        try writeLarge(batch.writes[0], byteLimit: byteLimit)
      }
      return isApplied && isWritten
    }
    return attempt(batch) { (batch) throws(LMDBError) in try commit(batch) }
  }

  private func commit(_ batch: WriteBatch) throws(LMDBError) -> WriteResult {
    if !batch.writes.isEmpty {
      indexMaintainer.makeSpace(for: batch.writes.count)
      try evictor.ensureFreePages(pageCount(for: batch.writes), entryCount: batch.writes.count)
    }
    return try space.commit { (transaction) throws(LMDBError) -> WriteResult in
      try perform(batch, in: transaction)
    }
  }

  /// Returns the maximum number of pages that the writes add, without pages that are copied on write.
  private func pageCount(for writes: [PendingWrite]) -> Int {
    var pageCount = 16
    var sharedByteCount = 0
    for write in writes {
      // An update keeps the body's chunks.
      let required = database.spaceRequired(
        recordByteCount: write.head.bytes.count, bodyByteCount: write.isUpdate ? 0 : write.bodyApart.count)
      pageCount += required.pageCount
      sharedByteCount += required.sharedByteCount
    }
    return pageCount + sharedByteCount / (database.pageByteCount - 16) * 9 / 8
  }

  /// Returns the maximum number of writes in one transaction.
  ///
  /// A write that replaces a record may copy a leaf of a log and one of `dates`. The copies of a few transactions
  /// must fit into the headroom, because they are pinned for two transactions or until a reader ends. The changes must
  /// fit into the index's journal, together with those of removals.
  private func batchCountLimit() -> Int {
    let journalLimit = min((max(database.index.journalCapacity, IndexLayout.minimumJournalCapacity) - 512) / 2, 3840)
    let limit = min(space.budget.batchCount, journalLimit)
    do throws(LMDBError) {
      let leafPageCount = try database.environment.read { (transaction) throws(LMDBError) in
        try database.heads.leafPageCount(in: transaction)
      }
      return leafPageCount <= limit ? journalLimit : limit
    } catch {
      // The write transaction will fail with the same error, which is handled there.
      return limit
    }
  }

  /// Runs `work` for a batch, and retries it after freeing space.
  ///
  /// Returns false if the batch failed and was dropped and counted.
  private func attempt(_ batch: WriteBatch, _ work: (WriteBatch) throws(LMDBError) -> WriteResult) -> Bool {
    var batch = batch
    var round = 0
    while true {
      do throws(LMDBError) {
        let result = try work(batch)
        count(result)
        finish(batch, result)
        return true
      } catch {
        round += 1
        if round < 5, freeSpaceForRetry(error, for: &batch, round: round) { continue }
        writeFailed(error, batch)
        guard error.isOutOfSpace, batch.appliesRemovals, batch.removalLimit > Self.smallRemovalLimit else {
          return false
        }
        // On a full disk, only the reserve is left. The removals must be applied before the removal log is full.
        batch = WriteBatch(appliesRemovals: true, removalLimit: Self.smallRemovalLimit)
      }
    }
  }

  /// Frees space for a retry of the same batch. Returns false if a retry is pointless.
  private func freeSpaceForRetry(_ error: LMDBError, for batch: inout WriteBatch, round: Int) -> Bool {
    if error.code == .mapFull || error.code == .transactionFull {
      context.counts.count(1, .mapFullRetries)
      if error.function == IndexFile.reservation {
        return evictor.recoverFromFullIndex(error, entryCount: batch.writes.count)
      }
      // Usually enough pages are free, but not contiguous.
      if round == 1 {
        batch.writes = batch.writes.map(\.withSinglePageChunks)
        return true
      }
      return evictor.recoverFromMapFull()
    }
    // The index was deleted or is not of the last commit.
    return error.function == IndexFile.beginning && indexMaintainer.ensureIndex()
  }

  /// Completes a batch after its commit.
  private func finish(_ batch: WriteBatch, _ result: WriteResult) {
    if batch.appliesRemovals {
      do throws(LMDBError) {
        // A removal's frame may be reused only when the applied removal is durable.
        try database.environment.synchronize()
        context.removalLog.markApplied(result.lastAppliedRemoval)
      } catch {
        context.log(
          .failedRemoval, "Removals could not be applied to the database and remain in the removal log: \(error)")
      }
      puncher.noteRemoval()
    }
    context.failIfDirectoryMoved()
    wakeMaintenanceIfNeeded(afterRemoval: batch.appliesRemovals)
  }

  /// Wakes the eviction thread after removals, and when live pages pass the high watermark.
  private func wakeMaintenanceIfNeeded(afterRemoval: Bool) {
    var isNeeded = afterRemoval || !database.orphanedBodies.isEmpty
    do throws(LMDBError) {
      if !isNeeded { isNeeded = try evictor.isAboveHighWatermark() }
    } catch {
      // The eviction thread will meet the same error and handle it.
      isNeeded = true
    }
    if isNeeded { context.wakeMaintenance() }
  }

  private func count(_ result: WriteResult) {
    for (response, rowID) in result.rows {
      response.setRowID(rowID)
      response.storedBody?.claim?.noteStored()
    }
    context.counts.count(result.writes, .writes)
    context.counts.count(result.writtenByteCount, .writtenBytes)
    context.counts.count(result.updates, .updates)
    context.counts.count(result.dropped, .droppedWrites)
    for (reason, count) in result.removed { context.counts.countRemovals(count, reason) }
  }

  private func perform(
    _ batch: WriteBatch, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> WriteResult {
    var result = WriteResult()
    try database.change(in: transaction) { (changes) throws(LMDBError) in
      for rowID in batch.corruptRowIDs where try database.removeRecord(rowID, changes: &changes, in: transaction) {
        result.removed[.corrupt, default: 0] += 1
      }
      if batch.appliesRemovals {
        try applyLoggedRemovals(limit: batch.removalLimit, changes: &changes, result: &result, in: transaction)
      }
      database.loadIndex(for: batch.writes.lazy.map(\.head))
      for write in batch.writes {
        guard let remaining = try afterRemovals(write, in: transaction) else {
          if !write.isDiscard { result.dropped += 1 }
          try removeSupersededVariant(write, changes: &changes, result: &result, in: transaction)
          continue
        }
        try put(remaining, changes: &changes, result: &result, in: transaction)
      }
      changes.counters.knownRemoval = max(changes.counters.knownRemoval, context.removalLog.sequence)
    }
    return result
  }

  /// The response after the removals since it was accepted; nil if one of them has removed it. A later removal hides
  /// the record, or marks it.
  func afterRemovals(
    _ write: PendingWrite, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> PendingWrite? {
    var recordDate = Date.distantPast
    if write.isUpdate, write.removalSequence != context.removalLog.sequence {
      // The record keeps its date if that is later, by another clock, and a removal by date may cover that one only.
      recordDate = try database.dateOfRecord(of: write.head, lastKnownAs: write.rowID, in: transaction) ?? recordDate
    }
    return write.applying(context.removals.effect(on: write, datedAtLeast: recordDate))
  }

  /// Deletes the older record that a removed or discarded write replaces, because it must not reappear: also the record
  /// of a removed update, which this process has read with the update.
  func removeSupersededVariant(
    _ write: PendingWrite, changes: inout RecordChanges, result: inout WriteResult,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    if write.isUpdate {
      if let rowID = try database.row(of: write.head, lastKnownAs: write.rowID, in: transaction),
        try database.removeRecord(rowID, changes: &changes, in: transaction)
      {
        result.removed[.requested, default: 0] += 1
      }
      return
    }
    result.removed[write.isDiscard ? .replaced : .requested, default: 0] += try database.removeVariant(
      of: write.head, changes: &changes, in: transaction)
  }

  /// Inserts or updates one record.
  func put(
    _ write: PendingWrite, changes: inout RecordChanges, result: inout WriteResult,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    if write.isUpdate {
      // The record has a row by now, or was dropped: an update of a queued record has become an insertion.
      if let rowID = try database.replaceHead(
        of: write.rowID, with: write.head, body: write.bodyApart, changes: &changes, in: transaction)
      {
        result.rows.append((write, rowID))
        result.updates += 1
      } else {
        result.dropped += 1
      }
      return
    }
    let bodyID = write.storedBody?.bodyID
    if let bodyID, try !database.meta.contains(MetaKey.partial(bodyID), in: transaction) {
      // Another process has taken this one for dead.
      result.dropped += 1
      return try removeSupersededVariant(write, changes: &changes, result: &result, in: transaction)
    }
    let entry = write.head.layout { database.indexEntry(of: $0, rowID: 0) }
    let others = try database.replaceVariant(of: write.head, tag: entry.tag, changes: &changes, in: transaction)
    let band =
      database.index.current?.band(for: entry, replacing: others.replacedRow) ?? entry.band(inflation: 0)
    let rowID = try database.insert(
      write.head, entry, in: band, body: write.bodyApart, writtenBodyID: bodyID, replacing: others.replacedRow,
      changes: &changes, in: transaction)
    result.rows.append((write, rowID))
    result.writes += 1
    result.writtenByteCount += write.head.bytes.count + (write.storedBody?.byteCount ?? write.bodyApart.count)
    if others.replaced > 0 { result.removed[.replaced, default: 0] += others.replaced }
    if others.pushedOut > 0 { notePushedOut(others.pushedOut, by: write, &result) }
  }

  /// Reports variants that a new one replaced because their key had the maximum number of them.
  private func notePushedOut(_ count: Int, by write: PendingWrite, _ result: inout WriteResult) {
    result.removed[.tooManyVariants, default: 0] += count
    let key = write.head.layout { RequestKey(storedBytes: Array($0.key)) }
    context.counts.activity.countRefusal(StorageFormat.tooManyVariantsRule, of: key)
    context.log(
      .tooManyVariants,
      "A URL has \(StorageFormat.maximumVariantCountPerKey) variants, and each new one replaces the oldest. Its Vary names "
        + "fields with too many values; a rule or an override can ignore them. Further cases are only counted")
  }

  // MARK: Failure

  private func noteLoss(of writes: [PendingWrite], _ cause: LMDBError?) {
    context.counts.count(writes.count { !$0.isDiscard }, .droppedWrites)
    queue.withLock { $0.noteLoss(of: writes, cause) }
  }

  private func writeFailed(_ error: LMDBError, _ batch: WriteBatch) {
    noteLoss(of: batch.writes, cause(of: error))
    discardReplacedRecords(of: batch.writes)
    handleFailure(error)
  }

  private func cause(of error: LMDBError) -> LMDBError {
    ProcessLimits.cause(of: database.index.cause(of: error), writing: context.storeDirectory.dataPath)
  }

  /// Ends the use of the data if an error requires that, and logs other errors.
  func handleFailure(_ error: LMDBError) {
    let error = cause(of: error)
    context.failIfDirectoryMoved()
    if context.fail(after: error) { return }
    if error.code == .mapFull {
      context.log(
        .fullDatabase,
        "The database or its index is full, and eviction freed too little; writes are dropped until it does: \(error)")
    } else if error.code == .fileTooLarge {
      context.log(
        .fileSizeLimit,
        "A file has the maximum size that this process may write; writes that need more are dropped: \(error). "
          + ProcessLimits.fileSizeRemedy)
    } else if error.isOutOfSpace {
      context.log(
        .fullDisk, "The disk is full or failing. Reads continue; storing resumes when space is available: \(error)")
    } else {
      context.log(.failedWrite, "Writing to the database failed; the queued responses were dropped: \(error)")
    }
  }
}

/// The work of one transaction of the writer.
struct WriteBatch {
  var writes: [PendingWrite] = []
  var corruptRowIDs: Set<UInt64> = []
  /// Whether logged removals are applied.
  var appliesRemovals = false
  /// The number of records that removals delete at once.
  var removalLimit = Writer.directRemovalLimit
  var isEmpty: Bool { writes.isEmpty && corruptRowIDs.isEmpty && !appliesRemovals }
}

/// The result of a transaction, counted once it is committed.
struct WriteResult {
  var writes = 0
  /// The bytes of their record headers and bodies.
  var writtenByteCount = 0
  var updates = 0
  var dropped = 0
  var removed: [RemovalReason: Int] = [:]
  /// The rows of the written responses.
  var rows: [(response: PendingWrite, rowID: UInt64)] = []
  /// The last logged removal that was applied.
  var lastAppliedRemoval: UInt64 = 0
}

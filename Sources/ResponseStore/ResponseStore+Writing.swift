import FoundationEssentials
import LMDB

/// The writer: takes what is queued and commits it in groups.
extension ResponseStore {
  /// Work for one transaction.
  struct Batch {
    var stores: [StagedResponse] = []
    var damagedRowIDs: Set<UInt64> = []
    /// Whether removals are taken over from the log.
    var adoptsRemovals = false
    var isEmpty: Bool { stores.isEmpty && damagedRowIDs.isEmpty && !adoptsRemovals }
  }

  /// What a transaction did, counted once it is committed.
  struct Outcome {
    var stores = 0
    var updates = 0
    var dropped = 0
    var removed: [RemovalReason: Int] = [:]
    /// Where the responses stand now.
    var rows: [(response: StagedResponse, rowID: UInt64)] = []
    /// The pages that removals freed or will, and those that held something before.
    var freedPageCount = 0
    var pageCountBefore = 0
    /// The last removal that was taken over from the log.
    var adoptedRemoval: UInt64 = 0
  }

  /// Commits the next group of what is queued; false if nothing was. The writer thread does this by itself; a store
  /// opened without background threads is stepped with it.
  @discardableResult
  public func writePending() -> Bool {
    options.opensExistingOnly ? false : writeNext()
  }

  func writeNext() -> Bool {
    let byteLimit = limits.withLock { $0.batchByteCount }
    let countLimit = batchCountLimit()
    let hasRemovals = hasRemovalsToAdopt
    var batch = queue.withLock { queue -> Batch in
      let batch = Batch(
        stores: queue.takeStores(byteLimit: byteLimit, countLimit: countLimit), damagedRowIDs: queue.damagedRowIDs,
        adoptsRemovals: hasRemovals && queue.mayAdopt)
      queue.damagedRowIDs = []
      return batch
    }
    let isDone = batch.isEmpty || carryOut(batch, byteLimit: byteLimit)
    if !isDone { discardWhatStays(behind: batch.stores) }
    staging.remove(batch.stores)
    let byteCount = batch.stores.reduce(0) { $0 + $1.byteCount }
    // What is tried again is no reason to go on at once.
    let hasMore = !batch.isEmpty && (isDone || batch.stores.contains { !$0.isDiscard })
    queue.update { queue in
      queue.finish(&batch.stores, byteCount: byteCount)
      guard batch.adoptsRemovals else { return }
      // Where the disk has no room even for that, what was removed stays hidden.
      queue.adoptionPausedUntil = isDone ? nil : .now + (options.runsInBackground ? .seconds(1) : .zero)
    }
    return hasMore
  }

  /// False if it failed.
  func carryOut(_ batch: Batch, byteLimit: Int) -> Bool {
    guard !isCondemned, !isForked else {
      noteLoss(of: batch.stores, nil)
      return false
    }
    var batch = batch
    if let only = batch.stores.first, batch.stores.count == 1, only.byteCount > byteLimit,
      case .insert = only.purpose
    {
      // It takes several transactions, for which a removal does not wait.
      batch.stores = []
      let isAdopted = batch.isEmpty || attempt(batch) { (batch) throws(LMDBError) in try commit(batch) }
      let isWritten = attempt(Batch(stores: [only])) { (batch) throws(LMDBError) in
        try self.writeLarge(batch.stores[0], byteLimit: byteLimit)
      }
      return isAdopted && isWritten
    }
    return attempt(batch) { (batch) throws(LMDBError) in try commit(batch) }
  }

  private func commit(_ batch: Batch) throws(LMDBError) -> Outcome {
    if isStructureUnchecked.load(ordering: .relaxed) { try checkPaths(of: batch) }
    if !batch.stores.isEmpty {
      try makeRoom(pageCount: pageCount(for: batch.stores), entryCount: batch.stores.count)
    }
    return try commit { (transaction) throws(LMDBError) -> Outcome in
      try perform(batch, in: transaction)
    }
  }

  /// The pages that storing takes at most, besides those that are copied to be changed.
  private func pageCount(for stores: [StagedResponse]) -> Int {
    var pageCount = 16
    var sharedByteCount = 0
    for staged in stores {
      // An update leaves the body where it is.
      var bodyByteCount = staged.bodyApart.count
      if case .replaceHead = staged.purpose { bodyByteCount = 0 }
      let room = file.room(
        recordByteCount: staged.head.bytes.count, bodyByteCount: bodyByteCount)
      pageCount += room.pageCount
      sharedByteCount += room.sharedByteCount
    }
    return pageCount + sharedByteCount / (file.pageByteCount - 16) * 9 / 8
  }

  /// How many stores go into one transaction at most. Each may copy a leaf of a log, where it
  /// replaces a record, and one of `expiries`; and the copies of a few transactions, which stay until the next but one or until a
  /// reader is done, must fit into the headroom. What each changes must fit into the index's journal, with removals beside it.
  private func batchCountLimit() -> Int {
    let journalLimit = (max(file.index.journalCapacity, IndexLayout.minimumJournalCapacity) - 512) / 2
    let limit = min(limits.withLock { $0.batchCount }, journalLimit)
    do throws(LMDBError) {
      let leafPageCount = try file.environment.read { (transaction) throws(LMDBError) in
        try file.heads.leafPageCount(in: transaction)
      }
      return leafPageCount <= limit ? journalLimit : limit
    } catch {
      // The transaction will meet the same trouble, and knows what to do.
      return limit
    }
  }

  /// A write transaction, which begins only where there is room for it.
  func commit<R>(_ body: (borrowing WriteTransaction) throws(LMDBError) -> R) throws(LMDBError) -> R {
    let result = try writeWithinRoom(body)
    noteCommit()
    return result
  }

  /// After every commit.
  func noteCommit() {
    counts.commits.add(1, ordering: .relaxed)
    do throws(LMDBError) {
      try file.environment.extendShortFile()
    } catch {
      // The transaction stands; only a crash before the next commit would find the file short, and set it aside.
      log(.failedWrite, "The data file could not be extended: \(error)")
    }
  }

  /// Tries work that is all or nothing, again after a full map. What cannot be done is dropped and counted, and the answer
  /// is false.
  private func attempt(_ batch: Batch, _ work: (Batch) throws(LMDBError) -> Outcome) -> Bool {
    var batch = batch
    var round = 0
    while true {
      do throws(LMDBError) {
        let outcome = try work(batch)
        count(outcome)
        finish(batch, outcome)
        return true
      } catch {
        round += 1
        if round < 5, relieve(error, for: &batch, round: round) { continue }
        writeFailed(error, batch)
        return false
      }
    }
  }

  /// Does what can be done so that the same work may succeed at the next try.
  private func relieve(_ error: LMDBError, for batch: inout Batch, round: Int) -> Bool {
    if error.code == .mapFull || error.code == .transactionFull {
      counts.fullMaps.add(1, ordering: .relaxed)
      // Mostly there is room enough, but not in one piece.
      if round == 1 {
        batch.stores = batch.stores.map(\.inSinglePages)
        return true
      }
      return recoverFromFullMap()
    }
    // What was removed is hidden already, but its log must not fill up.
    return error.isLackOfRoom && batch.adoptsRemovals && round == 1 && freeDiskSpace()
  }

  /// After a commit.
  private func finish(_ batch: Batch, _ outcome: Outcome) {
    if batch.adoptsRemovals {
      do throws(LMDBError) {
        // Only what no power cut takes back may go from the log.
        try file.environment.synchronize()
        removalLog.noteAdopted(outcome.adoptedRemoval)
      } catch {
        log(.failedWrite, "Removals could not be taken over into the data, and stay in their log: \(error)")
      }
      if outcome.freedPageCount >= max(16, outcome.pageCountBefore / 4) {
        maintenance.withLock { $0.wantsRelease = true }
      }
    }
    giveUpIfMoved()
    if diskByteCount > diskCeiling { storeDirectory.deleteWhatWasSetAside() }
    wakeMaintenanceIfNeeded(afterRemoval: batch.adoptsRemovals)
  }

  private func count(_ outcome: Outcome) {
    for (response, rowID) in outcome.rows { response.setRowID(rowID) }
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
    if !batch.damagedRowIDs.isEmpty {
      outcome.removed[.damaged] = try file.removeDamaged(batch.damagedRowIDs, counters: &counters, in: transaction)
    }
    if batch.adoptsRemovals { try adoptRemovals(counters: &counters, outcome: &outcome, in: transaction) }
    for staged in batch.stores {
      guard isStillWanted(staged) else {
        if !staged.isDiscard { outcome.dropped += 1 }
        try removeWhatItReplaces(staged, counters: &counters, outcome: &outcome, in: transaction)
        continue
      }
      try write(staged, bodyID: nil, counters: &counters, outcome: &outcome, in: transaction)
    }
    counters.knownRemoval = max(counters.knownRemoval, removalLog.sequence)
    try file.setCounters(counters, in: transaction)
    return outcome
  }

  /// Takes over from the log what is in force and not yet in the data.
  private func adoptRemovals(
    counters: inout Counters, outcome: inout Outcome, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    outcome.pageCountBefore = try file.environment.livePageCount(in: transaction)
    let last = removalLog.sequence
    var budget = StoreFile.directRemovalLimit
    while counters.adoptedRemoval < last {
      let sequence = counters.adoptedRemoval + 1
      if case .removal(let scope) = removalLog.content(of: sequence) {
        outcome.removed[.requested, default: 0] += try file.adopt(
          scope, sequence: sequence, budget: &budget, counters: &counters, in: transaction)
      }
      counters.adoptedRemoval = sequence
    }
    outcome.adoptedRemoval = counters.adoptedRemoval
    outcome.freedPageCount =
      try outcome.pageCountBefore - file.environment.livePageCount(in: transaction) + counters.deferredPageCount
  }

  /// Whether no removal has covered the response since it was staged. One that comes after this was asked hides the record.
  func isStillWanted(_ staged: StagedResponse) -> Bool {
    !wasRemoved(staged)
  }

  /// A response that a removal caught between its staging and its writing had taken an older one's place already, which
  /// must not come to light again.
  func removeWhatItReplaces(
    _ staged: StagedResponse, counters: inout Counters, outcome: inout Outcome,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    if case .replaceHead = staged.purpose { return }
    outcome.removed[staged.isDiscard ? .replaced : .requested, default: 0] += try file.removeVariant(
      of: staged.head, counters: &counters, in: transaction)
  }

  /// Writes one response; with `bodyID` its chunks are there already.
  func write(
    _ staged: StagedResponse, bodyID: UInt64?, counters: inout Counters, outcome: inout Outcome,
    in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    if case .replaceHead = staged.purpose {
      // An update that waited together with its record has taken its place, so the record has a row by now, or was
      // dropped.
      if let rowID = try file.replaceHead(
        of: staged.rowID, with: staged.head, body: staged.bodyApart, counters: &counters, in: transaction)
      {
        outcome.rows.append((staged, rowID))
        outcome.updates += 1
      } else {
        outcome.dropped += 1
      }
      return
    }
    let inserted = try file.insert(
      head: staged.head, body: staged.bodyApart, writtenBodyID: bodyID, counters: &counters, in: transaction)
    outcome.rows.append((staged, inserted.rowID))
    outcome.stores += 1
    if inserted.replaced > 0 { outcome.removed[.replaced, default: 0] += inserted.replaced }
    if inserted.pushedOut > 0 { outcome.removed[.tooManyVariants, default: 0] += inserted.pushedOut }
  }

  // MARK: Failure

  private func noteLoss(of stores: [StagedResponse], _ cause: LMDBError?) {
    counts.droppedStores.add(stores.count { !$0.isDiscard }, ordering: .relaxed)
    queue.withLock { $0.noteLoss(of: stores, cause) }
  }

  private func writeFailed(_ error: LMDBError, _ batch: Batch) {
    let error = file.index.cause(of: error)
    noteLoss(of: batch.stores, error)
    giveUpIfMoved()
    if error.isDamage {
      condemn("\(error)")
      return
    }
    if error.code == .mapFull, hasLostPages() {
      condemn("its list of free pages is damaged (\(error))")
      return
    }
    if error.isImpossibleWrite { suspectDamage() }
    if error.isLackOfRoom {
      log(.fullDisk, "The disk is full or failing; responses are not stored until there is room: \(error)")
    } else {
      log(.failedWrite, "Responses could not be stored: \(error)")
    }
  }
}

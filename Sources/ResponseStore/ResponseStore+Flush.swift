import LMDB
import Synchronization

extension ResponseStore {
  /// Returns when all that was stored before is safe on disk, also against a power cut, and what was removed before is
  /// deleted or, if it is much, marked.
  ///
  /// Answers for everything that was accepted since the last flush that returned or threw: it throws if any of it was
  /// lost meanwhile, even if the disk works again. Each loss is told once, to all flushes that were under way and to
  /// the next one of what was stored after they began. Responses that ``store(_:)`` refused, for their size or because
  /// of a full queue, are counted in ``StoreStatistics/droppedStores`` alone, as are updates of responses that have
  /// gone.
  ///
  /// - Throws: ``StoreError`` when responses could not be written for lack of room or because the disk failed
  ///   (``StoreError/Code/storage``), the store was given up (``StoreError/Code/givenUp``), or nothing could be written
  ///   for ``Options/stallTimeout`` (``StoreError/Code/busy``).
  public func flush() throws(StoreError) {
    try flush(since: flushMark)
  }

  /// The same for a caller that is told of losses apart from others.
  ///
  /// - Parameter mark: Up to where the caller has been told, beginning with ``acceptedNumber``. It is moved on.
  package func flush(since mark: borrowing Atomic<UInt64>) throws(StoreError) {
    let known = mark.load(ordering: .sequentiallyConsistent)
    let (accepted, isDone) = isUsable && !isForked ? waitForWriter() : (acceptedNumber, true)
    if isCondemned {
      mark.max(accepted, ordering: .sequentiallyConsistent)
      throw StoreError(
        .givenUp, directory: directory, reason: "the store was given up, and what was stored in it is lost",
        remedy: "Open the directory again, unless a cache does; it starts empty")
    }
    guard isDone else {
      throw StoreError(
        .busy, directory: directory, reason: "nothing could be written for too long",
        remedy: "See whether a process that uses the directory is stopped, and let it go on or end it")
    }
    // What can be made safe is, also when something else was lost.
    do throws(LMDBError) {
      try file.environment.synchronize()
    } catch {
      throw .storage(error, directory: directory, doing: "Flushing")
    }
    mark.max(accepted, ordering: .sequentiallyConsistent)
    if let loss = queue.withLock({ $0.loss }), loss.number > known { throw .lost(loss.cause, directory: directory) }
  }

  /// Has flushes tell that all is lost that a store accepted in whose place this was opened.
  func takeOverLoss(of before: ResponseStore) {
    let number = before.acceptedNumber
    queue.withLock { $0.noteLoss(upTo: number) }
    // Whoever called it there was told there.
    flushMark.max(number, ordering: .sequentiallyConsistent)
  }

  /// The number of the latest store that was accepted.
  package var acceptedNumber: UInt64 { queue.withLock { $0.acceptedNumber } }

  /// Waits until the writer is done with what is queued, and with what was removed.
  ///
  /// - Returns: Up to which store that is, and whether the writer got that far.
  private func waitForWriter() -> (accepted: UInt64, isDone: Bool) {
    let (target, accepted) = queue.update { queue -> (UInt64, UInt64) in
      queue.flushCount += 1
      return (queue.queuedCount, queue.acceptedNumber)
    }
    defer { queue.withLock { $0.flushCount -= 1 } }
    guard options.runsInBackground else {
      while queue.withLock({ $0.doneCount < target }) || hasRemovalsToAdopt, writePending() {}
      return (accepted, true)
    }
    // Also while the store is being closed: everything queued is done with in the end.
    let removal = removalLog.sequence
    let isDone =
      waitUnlessStalled(queue) { queue -> Bool? in
        // What cannot be taken over now stays hidden by the log.
        let isAdopted = removalLog.adopted >= removal || queue.adoptionPausedUntil != nil
        return queue.doneCount >= target && isAdopted ? true : nil
      } != nil
    return (accepted, isDone)
  }
}

extension StoreError {
  /// Responses were accepted, and could not be written.
  fileprivate static func lost(_ cause: LMDBError?, directory: String) -> StoreError {
    StoreError(
      .storage, directory: directory, reason: "responses that were stored since the last flush could not be written",
      remedy: "Make room or choose another disk, and store them again", cause: cause)
  }
}

import LMDB
import Synchronization

/// Makes accepted writes durable, and reports lost ones.
///
/// Runs on the caller's thread, which waits for the writer. Owns the number up to which losses were reported. Calls
/// ``Writer`` in a store without threads.
final class Flusher: Sendable {
  private let context: StoreContext
  private let writer: Writer
  /// The losses of writes up to this number were reported.
  private let reported = Atomic<UInt64>(0)

  init(_ context: StoreContext, writer: Writer) {
    self.context = context
    self.writer = writer
  }

  /// The number of the latest write that was accepted.
  var acceptedNumber: UInt64 { context.queue.withLock { $0.acceptedNumber } }

  /// See ``ResponseStore/flush()``.
  func flush() throws(StoreError) {
    try flush(since: reported)
  }

  /// See ``ResponseStore/flush(since:)``.
  func flush(since mark: borrowing Atomic<UInt64>) throws(StoreError) {
    let known = mark.load(ordering: .sequentiallyConsistent)
    let (accepted, isDone) = context.isUsable && !context.isForked ? waitForWriter() : (acceptedNumber, true)
    let directory = context.directory
    if context.hasFailed {
      mark.max(accepted, ordering: .sequentiallyConsistent)
      throw StoreError(
        .failed, directory: directory, reason: "the store failed, and stored responses are lost",
        remedy: "Reopen the directory; `LMDBURLCache` does so automatically")
    }
    guard isDone else { throw .busy(directory, reason: "no process has committed for too long") }
    // Sync even if some writes were lost: the others must become durable.
    do throws(LMDBError) {
      try context.database.environment.synchronize()
    } catch {
      throw .storage(error, directory: directory, doing: "Flushing")
    }
    mark.max(accepted, ordering: .sequentiallyConsistent)
    if let loss = context.queue.withLock({ $0.loss }), loss.number > known {
      throw .lost(loss.cause, directory: directory)
    }
  }

  /// Records the loss of all writes of the failed store that this one replaces, for flushes to report.
  ///
  /// - Parameter number: The ``acceptedNumber`` of the failed store.
  func takeOverLoss(upTo number: UInt64) {
    context.queue.withLock { $0.noteLoss(upTo: number) }
    // The failed store reported the loss to callers of `flush()`.
    reported.max(number, ordering: .sequentiallyConsistent)
  }

  /// Waits until the writer has finished the queued writes and the logged removals.
  ///
  /// - Returns: The number of the latest of these writes, and whether the writer finished them.
  private func waitForWriter() -> (accepted: UInt64, isDone: Bool) {
    let (target, accepted) = context.queue.update { queue -> (UInt64, UInt64) in
      queue.flushCount += 1
      return (queue.queuedCount, queue.acceptedNumber)
    }
    defer { context.queue.withLock { $0.flushCount -= 1 } }
    let removalLog = context.removalLog
    guard context.options.runsInBackground else {
      while context.queue.withLock({ $0.doneCount < target }) || removalLog.hasRemovalsToApply, writer.writePending() {}
      return (accepted, true)
    }
    // Wait also while the store is being closed, because that finishes all queued writes.
    let removal = removalLog.sequence
    let isDone =
      context.waitUnlessStalled(context.queue) { queue -> Bool? in
        // Records that cannot be deleted now stay hidden by the removal log.
        let isApplied = removalLog.lastApplied >= removal || queue.removalsPausedUntil != nil
        return queue.doneCount >= target && isApplied ? true : nil
      } != nil
    return (accepted, isDone)
  }
}

extension StoreError {
  /// Returns the error for accepted responses that could not be written.
  fileprivate static func lost(_ cause: LMDBError?, directory: String) -> StoreError {
    let remedy =
      cause?.code == .fileTooLarge ? ProcessLimits.fileSizeRemedy : "Free space or choose another disk"
    return StoreError(
      .storage, directory: directory, reason: "responses that were stored since the last flush could not be written",
      remedy: "\(remedy), and store them again", cause: cause)
  }
}

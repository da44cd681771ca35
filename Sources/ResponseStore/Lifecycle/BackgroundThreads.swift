import CacheModel
import Glibc
import LMDB

/// The writer thread and the eviction thread of a store, and the end of both.
///
/// Owns the threads. The threads retain this object only while they work. They
/// never retain the ``ResponseStore``, so its last reference is released on a caller's thread, which closes the store.
/// Calls ``Writer``, ``Maintainer`` and ``CapacityController``.
final class BackgroundThreads: Sendable {
  private let context: StoreContext
  private var queue: Monitor<WriteQueue> { context.queue }
  private let space: DiskSpace
  private let writer: Writer
  private let maintainer: Maintainer
  private let capacity: CapacityController
  private let threads = Monitor<[BackgroundThread]>([])

  init(
    _ context: StoreContext, space: DiskSpace, writer: Writer, maintainer: Maintainer, capacity: CapacityController
  ) {
    self.context = context
    self.space = space
    self.writer = writer
    self.maintainer = maintainer
    self.capacity = capacity
  }

  // MARK: Threads

  func start() throws(StoreError) {
    guard context.options.runsInBackground else { return }
    let writing = BackgroundThread { [weak self] in self?.runWriter() }
    let evicting = BackgroundThread { [weak self] in self?.runMaintenance() }
    threads.withLock { $0 = [writing, evicting].compactMap(\.self) }
    guard writing != nil, evicting != nil else {
      throw StoreError(
        .limitReached, directory: context.directory, reason: "the system cannot start another thread",
        remedy: "Raise the limits on threads and memory (ulimit -u and -v), or end some threads")
    }
    // Tombstones and orphaned chunks of an earlier process may exist.
    context.wakeMaintenance()
  }

  private func runWriter() {
    while waitForWork() { writer.writePending() }
  }

  /// Waits until there is urgent work, a full batch, or the commit delay of a write has passed.
  ///
  /// Returns false when the store closes and the queue is empty.
  private func waitForWork() -> Bool {
    let removalLog = context.removalLog
    // The queue is empty, so no caller of `store(_:)` will release these writes.
    _ = queue.withLock { $0.isEmpty ? $0.takeAllWritten() : [] }
    var isOpen: Bool?
    while isOpen == nil {
      // Wake up for discards to retry, because no thread signals them.
      let pause = queue.withLock { $0.retriesAt }.map { MonotonicTime.now.duration(to: $0) }
      isOpen = queue.wait(timeout: pause) { queue -> Bool? in
        if queue.mayWrite || (queue.mayApplyRemovals && removalLog.hasRemovalsToApply) { return true }
        return queue.isClosing ? false : nil
      }
    }
    guard isOpen == true else { return false }
    let limit = space.batchByteCount
    let now = MonotonicTime.now
    let deadline = queue.withLock { $0.oldestQueuedAt } + context.options.commitDelay
    guard now < deadline else { return true }
    _ = queue.wait(timeout: now.duration(to: deadline)) { queue -> Bool? in
      let isUrgent =
        queue.flushCount > 0 || queue.isClosing || queue.queuedByteCount >= limit
        || (queue.mayApplyRemovals && removalLog.hasRemovalsToApply)
      return isUrgent ? true : nil
    }
    return true
  }

  private func runMaintenance() {
    while waitForMaintenance() {
      while maintainer.maintain(), !context.isClosing {
        // LMDB's write lock is not fair. Without a pause, this thread would take it again and again.
        usleep(500)
      }
      // A thread that is closing the store waits for this thread, so this thread must not wait for it.
      if context.hasFailed { return close(as: .failed, waitsForOthers: false) }
    }
  }

  /// Waits until a thread asks for a step, or for five seconds. Returns false when the store closes.
  private func waitForMaintenance() -> Bool {
    let isOpen = context.maintenance.wait(timeout: .seconds(5)) { signal -> Bool? in
      if signal.isClosing { return false }
      defer { signal.isWanted = false }
      return signal.isWanted ? true : nil
    }
    return isOpen ?? true
  }

  // MARK: Closing

  /// Writes the queue, ends the threads, and sets the final state.
  ///
  /// If another thread is closing the store, waits for it instead, unless `waitsForOthers` is false.
  func close(as final: StoreContext.State, waitsForOthers: Bool = true) {
    // A forked child has neither the threads nor a right to the files.
    guard !context.isForked else { return }
    let isFirst = queue.update { queue -> Bool in
      defer { queue.isClosing = true }
      return !queue.isClosing
    }
    guard isFirst else {
      guard waitsForOthers else { return }
      // The timeout is for a caller on the closing thread itself, such as a log handler that exits the process.
      _ = queue.wait(timeout: .seconds(10)) { $0.isClosed ? true : nil }
      return
    }
    context.maintenance.update { $0.isClosing = true }
    capacity.endWaits()
    let running = threads.withLock { threads -> [BackgroundThread] in
      defer { threads = [] }
      return threads
    }
    var areDone = true
    for thread in running
    where !thread.join(waiting: { context.waitUnlessStalled($0, countsSteps: true, for: { $0 ? true : nil }) != nil }) {
      areDone = false
    }
    if areDone {
      // Write the rest, if there is no writer thread or this is the writer thread.
      while writer.writePending() {}
    } else {
      context.log(.failedClosing, "Closing timed out waiting for the write lock; queued responses were lost")
    }
    do throws(LMDBError) {
      // A store that was only inspected has nothing to write, and must not fail on a full disk.
      if !context.hasFailed, !context.options.opensExistingOnly || context.counts[.commits] > 0 {
        try context.database.environment.synchronize()
      }
    } catch {
      context.log(.failedClosing, "Closing could not flush: \(error)")
    }
    context.activityFile?.leave()
    // A failed store stays registered until another one replaces it, which continues its statistics.
    if final != .failed { StoreRegistry.shared.forget(context.storeDirectory.identity, queue: queue) }
    context.close(as: final)
    context.storeDirectory.endUse()
    queue.update { $0.isClosed = true }
  }
}

import Glibc
import LMDB

/// The two threads. They hold the store only while they work, so that it goes away when its users do.
extension ResponseStore {
  func startThreads() throws(StoreError) {
    guard options.runsInBackground else { return }
    let queue = queue
    let maintenance = maintenance
    let delay = options.commitDelay
    let (file, storeDirectory, removalLog) = (file, storeDirectory, removalLog)
    let writer = BackgroundThread { [weak self] in
      // Asked with the queue's lock, which a store that goes away wants, too: so not of the store.
      let hasRemovals = { removalLog.hasRemovalsToAdopt }
      while Self.waitForWork(
        queue, delay: delay, hasRemovals: hasRemovals, wakeByteCount: { [weak self] in self?.wakeByteCount ?? 0 })
      {
        guard let store = self else { return }
        store.writePending()
      }
      // Here, as it may wait for another process that writes.
      Self.closeIndex(of: file, in: storeDirectory)
    }
    let eviction = BackgroundThread { [weak self] in
      while Self.waitForMaintenance(maintenance) {
        guard let store = self else { return }
        if store.isCondemned, store.options.letsGoWhenGivenUp { break }
        while store.maintain(), !maintenance.withLock({ $0.isClosing }) {
          // The lock to write goes to whoever asks first: without a pause this thread would, again and again.
          usleep(500)
        }
      }
      guard self?.beginsLettingGo() == true else { return }
      // Until this is done nobody can start anew, in no process. Without holding the store meanwhile.
      while self?.closeFiles() == false { sleep(1) }
    }
    threads.withLock { $0 = [writer, eviction].compactMap(\.self) }
    guard writer != nil, eviction != nil else {
      throw StoreError(
        .storage, directory: directory, reason: "the system has no room for another thread",
        remedy: "Raise the limit on threads, or end some")
    }
    // Purges and lost pieces of an earlier life wait.
    maintenance.update { $0.isWanted = true }
  }

  /// Waits until a group is worth a commit: something urgent, a full batch, or the delay is over. False when closing
  /// and all is written.
  private static func waitForWork(
    _ queue: Monitor<WriteQueue>, delay: Duration, hasRemovals: () -> Bool, wakeByteCount: () -> Int
  ) -> Bool {
    // Nobody stores now who would do it.
    _ = queue.withLock { $0.isEmpty ? $0.takeAllWritten() : [] }
    var isOpen: Bool?
    while isOpen == nil {
      // Nobody wakes the writer for what it tries again.
      let pause = queue.withLock { $0.retriesAt }.map { MonotonicTime.now.duration(to: $0) }
      isOpen = queue.wait(timeout: pause) { queue -> Bool? in
        if queue.mayWrite || (queue.mayAdopt && hasRemovals()) { return true }
        return queue.isClosing ? false : nil
      }
    }
    guard isOpen == true else { return false }
    let limit = wakeByteCount()
    let now = MonotonicTime.now
    let deadline = queue.withLock { $0.oldestQueuedAt } + delay
    guard now < deadline else { return true }
    _ = queue.wait(timeout: .nanoseconds(deadline.nanoseconds - now.nanoseconds)) { queue -> Bool? in
      let isUrgent =
        queue.flushCount > 0 || queue.isClosing || queue.storeByteCount >= limit || (queue.mayAdopt && hasRemovals())
      return isUrgent ? true : nil
    }
    return true
  }

  /// Waits until there is something to do, or for five seconds. False when closing.
  private static func waitForMaintenance(_ maintenance: Monitor<MaintenanceState>) -> Bool {
    let isOpen = maintenance.wait(timeout: .seconds(5)) { state -> Bool? in
      if state.isClosing { return false }
      defer { state.isWanted = false }
      return state.isWanted ? true : nil
    }
    return isOpen ?? true
  }

  /// Lets the eviction thread look: after removals, and when live pages pass the upper watermark.
  func wakeMaintenanceIfNeeded(afterRemoval: Bool) {
    let (high, highEntryCount) = limits.withLock { ($0.highPageCount, $0.highEntryCount) }
    var isNeeded = afterRemoval || !file.lostBodies.isEmpty || !file.isIndexComplete
    do throws(LMDBError) {
      if !isNeeded {
        let usage = try self.usage()
        isNeeded = usage.pageCount > high || usage.entryCount > highEntryCount
      }
    } catch {
      // The eviction thread will meet the same trouble, and knows what to do.
      isNeeded = true
    }
    guard isNeeded else { return }
    maintenance.update { $0.isWanted = true }
  }

  // MARK: Waiting

  /// Something that takes long has come a step further.
  func noteProgress() {
    progress.add(1, ordering: .relaxed)
  }

  /// Waits like `Monitor.wait`, but returns nil when for ``Options/stallTimeout`` no process has committed anything, and no thread of this
  /// one has come a step further: to choose what to evict, or to give room back, may take longer.
  func waitUnlessStalled<State, R>(
    _ monitor: Monitor<State>, timeout: Duration? = nil, for body: (inout State) -> R?
  ) -> R? {
    func state() -> (UInt64, UInt64) { (file.environment.lastTransactionID, progress.load(ordering: .relaxed)) }
    var last = state()
    while true {
      if let result = monitor.wait(timeout: timeout ?? options.stallTimeout, for: body) { return result }
      let newest = state()
      if newest == last { return nil }
      last = newest
    }
  }

  // MARK: Closing

  /// Marks the index as clean, if the data is still in use where it was.
  private static func closeIndex(of file: StoreFile, in directory: StoreDirectory) {
    guard directory.condemnedFlag?.isSet != true, file.environment.isDataFile(ofDirectory: directory.path) else {
      return
    }
    file.closeIndex()
  }

  /// Writes what is queued, stops the threads and gives the directory up, when every caller of
  /// ``open(directory:options:)`` in this process has closed it. Whoever uses the store afterwards traps. A store that is
  /// not closed closes itself when its last reference goes, and when the process exits.
  ///
  /// Traps if it is called more often than the store was opened.
  public func close() {
    let isLast = openCount.withLock { count -> Bool in
      if count == 0 { Trap.closedTwice(directory) }
      count -= 1
      return count == 0
    }
    if isLast { closeNow(as: .closed) }
  }

  /// Closes, or waits until another thread that does so has finished.
  ///
  /// - Returns: Whether it was this call that closed it.
  @discardableResult
  func closeNow(as final: State, waitsForOthers: Bool = true) -> Bool {
    // A forked child has neither the threads nor a right to the file.
    guard !isForked else { return false }
    let isFirst = queue.update { queue -> Bool in
      defer { queue.isClosing = true }
      return !queue.isClosing
    }
    guard isFirst else {
      guard waitsForOthers else { return false }
      // Without end only for a caller that is within the closing itself, as a log line that exits would be.
      _ = queue.wait(timeout: .seconds(10)) { $0.isClosed ? true : nil }
      return false
    }
    maintenance.update { $0.isClosing = true }
    let running = threads.withLock { threads -> [BackgroundThread] in
      defer { threads = [] }
      return threads
    }
    var areDone = true
    for thread in running where !thread.join(waiting: { waitUnlessStalled($0, for: { $0 ? true : nil }) != nil }) {
      areDone = false
    }
    if areDone {
      // Without a writer thread, or when this is the writer itself.
      while writePending() {}
      if running.isEmpty, !options.opensExistingOnly { Self.closeIndex(of: file, in: storeDirectory) }
    } else {
      log(.failedWrite, "Closing did not wait any longer for the right to write; what was queued is lost")
    }
    do throws(LMDBError) {
      try file.environment.synchronize()
    } catch {
      log(.failedWrite, "Closing could not flush: \(error)")
    }
    storeDirectory.releaseCheck()
    // What was given up stays known until its files are closed, as nobody else in this process could see to that.
    if final != .condemned { StoreRegistry.shared.forget(self) }
    state.store(final.rawValue, ordering: .relaxed)
    queue.update { $0.isClosed = true }
    return true
  }
}

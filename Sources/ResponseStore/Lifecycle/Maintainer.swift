import CacheModel
import LMDB
import SystemFiles

/// The steps of the eviction thread: deletion of removed records, eviction, a new capacity, and hole punching.
///
/// Owns the times of the regular checks. The eviction thread runs it; in a store without threads,
/// ``ResponseStore/maintain()`` does. Calls the components whose steps it runs.
struct Maintainer: Sendable {
  let context: StoreContext
  let indexMaintainer: IndexMaintainer
  let space: DiskSpace
  let sweep: RemovalSweep
  let evictor: Evictor
  let capacity: CapacityController
  let puncher: HolePuncher
  private let state = Monitor(State())

  private struct State {
    /// When the store has served long enough to show that its data crashes no process.
    var provenAt: MonotonicTime? = .now + .seconds(60)
    var lastRegularCheck = MonotonicTime.now
    var lastDirectoryCheck = MonotonicTime.now
    var lastIdleCheck = MonotonicTime.now
    /// The number of successive steps that failed with `MDB_MAP_FULL`.
    var mapFullCount = 0

    /// Whether an interval has passed since the last check. If so, sets the time of the last check to now.
    static func isDue(_ last: inout MonotonicTime, every interval: Duration) -> Bool {
      guard last + interval <= .now else { return false }
      last = .now
      return true
    }
  }

  /// Does one step. Returns true if there may be more to do. Does nothing in a store that is only inspected.
  @discardableResult
  func maintain() -> Bool {
    context.options.opensExistingOnly ? false : WriteSignals.suppressing { maintainNext() }
  }

  /// Does one step, also in a store that is only inspected. Returns true if there may be more to do.
  func maintainNext() -> Bool {
    let options = context.options
    let (isIdleCheckDue, isDirectoryCheckDue) = state.withLock { state in
      (
        State.isDue(&state.lastIdleCheck, every: options.idleReadTimeout),
        State.isDue(&state.lastDirectoryCheck, every: options.directoryCheckInterval)
      )
    }
    // Release reader slots, because other processes share them.
    if isIdleCheckDue { context.database.environment.endIdleReads() }
    if isDirectoryCheckDue { context.failIfDirectoryMoved() }
    guard context.isUsableInBackground, !context.isForked else { return false }
    if isDirectoryCheckDue, !options.opensExistingOnly { context.storeDirectory.restoreMarker() }
    context.noteProgress()
    capacity.applyRequested()
    guard indexMaintainer.ensureIndex() else { return false }
    do throws(LMDBError) {
      let hasMore = try runSteps()
      state.withLock { $0.mapFullCount = 0 }
      return hasMore
    } catch {
      if error.code == .mapFull, isWorthAnotherTry() { return evictor.recoverFromMapFull() }
      if context.fail(after: error) { return false }
      context.log(.failedEviction, "Eviction failed: \(error)")
      return false
    }
  }

  private func runSteps() throws(LMDBError) -> Bool {
    if try evictor.deleteOrphanedChunks() { return true }
    let sweeping = try sweep.step()
    if sweeping.removedCount > 0 { return true }
    if try evictor.evictToLowWatermark() { return true }
    if indexMaintainer.replaceIndex() { return true }
    if space.isFileToShrink {
      // The capacity is applied when the disk usage is within it. Larger steps, because a thread waits for that.
      if try puncher.reclaimFreePages(maximumPageCount: 1024) { return true }
      space.endShrinking()
    }
    capacity.noteApplied()
    try checkRegularly()
    return try puncher.reclaimFreePages() || sweeping.hasMore
  }

  /// Allows a few retries. Then the thread waits until it is woken, instead of retrying all the time.
  private func isWorthAnotherTry() -> Bool {
    state.withLock { state -> Bool in
      state.mapFullCount += 1
      if state.mapFullCount <= 4 { return true }
      state.mapFullCount = 0
      return false
    }
  }

  /// Cleans up after killed processes every ten seconds. Their reader slots pin all pages freed since.
  private func checkRegularly() throws(LMDBError) {
    guard state.withLock({ State.isDue(&$0.lastRegularCheck, every: .seconds(10)) }) else { return }
    try context.database.environment.clearStaleReaders()
    try context.database.noteUnfinishedBodies(isAlone: false)
    noteService()
    // Map the index that another process has put in use, and unmap older ones. Their files take space until then.
    _ = context.database.index.current
    context.database.index.mapping.retireOlder()
    context.removalLog.discardAbandoned()
    // A killed process may have logged removals. Wake the writer, which applies them.
    if context.removalLog.hasRemovalsToApply { context.queue.update { _ in } }
  }

  /// Resets the count of crashes after a minute in which the store served.
  func noteService(until now: MonotonicTime = .now) {
    let isProven = state.withLock { state -> Bool in
      guard let time = state.provenAt, time <= now else { return false }
      state.provenAt = nil
      return true
    }
    if isProven, !context.options.opensExistingOnly { context.storeDirectory.statusPage?[.crashCount] = 0 }
  }
}

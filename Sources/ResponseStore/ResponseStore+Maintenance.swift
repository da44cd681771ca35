import LMDB

/// What the eviction thread keeps between steps.
struct MaintenanceState {
  /// How far the deletion behind each purge has come, by its row in `meta`.
  var positions: [[UInt8]: WalkPosition] = [:]
  /// Up to where a search for records that the table of uses does not know has come; nil for the beginning.
  var searchedUpTo: DateKey?
  /// The next row to enter into a table of uses that is new; nil when all are.
  var nextRowToEnter: UInt64?
  /// A capacity that was set and is still to be applied; how often one was set, and up to which time it is done.
  var wantedCapacityByteCount: Int?
  var setCapacityCount: UInt64 = 0
  var appliedCapacityCount: UInt64 = 0
  /// How far the check of the pages that lead to records has come; nil when there is nothing to check.
  var structurePosition: DataFile.StructurePosition?
  /// Somebody asked the thread to look.
  var isWanted = false
  /// Between the two watermarks: on the way down.
  var isEvicting = false
  /// Much was freed: its pages are to go back to the file system.
  var wantsRelease = false
  /// How far that has come; nil when it is done.
  var releasePosition: Environment.FreePagePosition?
  var isClosing = false
  var lastRegularCheck = MonotonicTime.now
  var lastDirectoryCheck = MonotonicTime.now
  var lastIdleCheck = MonotonicTime.now
  /// How often in a row a full map stood in the way.
  var fullMaps = 0
}

/// Steps of the eviction thread.
extension ResponseStore {
  /// One step of what the eviction thread does: deleting behind a purge, evicting down to the lower watermark, sweeping
  /// lost pieces, clearing dead readers, giving room back. True if there may be more to do. A store opened without
  /// background threads is stepped with it.
  @discardableResult
  public func maintain() -> Bool {
    options.opensExistingOnly ? false : maintainNext()
  }

  func maintainNext() -> Bool {
    if isIdleCheckDue() { file.environment.endIdleReads() }
    if isDirectoryCheckDue() { giveUpIfMoved() }
    guard isUsable, !isForked else { return false }
    applyWantedCapacity()
    do throws(LMDBError) {
      let hasMore = try maintainOnce()
      maintenance.withLock { $0.fullMaps = 0 }
      return hasMore
    } catch {
      if error.code == .mapFull, isWorthAnotherTry() { return recoverFromFullMap() }
      if error.isDamage {
        condemn("\(error)")
      } else {
        if error.isImpossibleWrite { suspectDamage() }
        log(.failedWrite, "Eviction failed: \(error)")
      }
      return false
    }
  }

  private func maintainOnce() throws(LMDBError) -> Bool {
    let isChecking = try checkStructure()
    guard isUsable else { return false }
    if try sweepLostBodies() { return true }
    if try deleteBehindPurge() { return true }
    if try enterUses() { return true }
    if try evictAhead() { return true }
    try shrinkUses()
    try checkRegularly()
    return try giveRoomBack() || isChecking
  }

  /// A few tries; then the thread waits for its next turn rather than spin.
  private func isWorthAnotherTry() -> Bool {
    maintenance.withLock { state -> Bool in
      state.fullMaps += 1
      if state.fullMaps <= 4 { return true }
      state.fullMaps = 0
      return false
    }
  }

  private func evictAhead() throws(LMDBError) -> Bool {
    try adoptCapacity()
    let limits = limits.withLock { $0 }
    let live = try livePageCount()
    let (wasEvicting, isEvicting) = maintenance.withLock { state -> (Bool, Bool) in
      let wasEvicting = state.isEvicting
      state.isEvicting = live > (wasEvicting ? limits.lowPageCount : limits.highPageCount)
      return (wasEvicting, state.isEvicting)
    }
    guard isEvicting else { return false }
    if !wasEvicting {
      // Another process may have left a body to be swept, and been stopped.
      try notePartialBodies(isAlone: false)
      if try sweepLostBodies() { return true }
    }
    return try evict(pageCount: min(limits.evictionPageCount, live - limits.lowPageCount)) > 0
  }

  /// Deletes some of what a purge hides; false if there is none.
  func deleteBehindPurge() throws(LMDBError) -> Bool {
    let purge = try file.environment.read { (transaction) throws(LMDBError) in
      try removals.marks(in: transaction).first
    }
    guard let purge else { return false }
    do throws(LMDBError) {
      try deleteSome(behind: purge)
    } catch {
      guard error.code == .mapFull else { throw error }
      try deleteSome(behind: purge, isCautious: true)
    }
    return true
  }

  /// - Parameter isCautious: Whether no pages in a row may be free, as after a full map.
  private func deleteSome(behind purge: Purge, isCautious: Bool = false) throws(LMDBError) {
    let position = maintenance.withLock { $0.positions[purge.metaKey] } ?? .start
    let limits = limits.withLock { $0 }
    let (removed, end) = try commit { (transaction) throws(LMDBError) -> (Int, WalkPosition?) in
      // Another process may have finished it.
      guard try file.meta.contains(purge.metaKey, in: transaction) else { return (0, nil) }
      var counters = try file.counters(in: transaction)
      if !isCautious { counters.freeablePageCount = limits.freeablePageCount }
      let walk = try file.collect(purge, limit: limits.purgeCount, from: position, in: transaction)
      var removed = 0
      var end = walk.end
      // Writers wait meanwhile. Neighbours go in one page; what lies far apart takes more time, and copies more pages.
      let deadline = MonotonicTime.now + .milliseconds(4)
      for (index, rowID) in walk.rows.enumerated() {
        if try file.removeRecord(rowID, counters: &counters, in: transaction) { removed += 1 }
        let isEnough = counters.hasFreedEnough || (index % 16 == 15 && MonotonicTime.now > deadline)
        if isEnough, index + 1 < walk.rows.count {
          end = position
          break
        }
      }
      if end == nil {
        _ = try file.meta.remove(purge.metaKey, in: transaction)
        counters.lastPurgeChange = transaction.id
      }
      try file.setCounters(counters, in: transaction)
      return (removed, end)
    }
    counts.countRemovals(removed, .requested)
    maintenance.withLock { state in
      state.positions[purge.metaKey] = end
      if end == nil { state.wantsRelease = true }
    }
  }

  /// Every few seconds, whatever else there is to do.
  private func isDirectoryCheckDue() -> Bool {
    maintenance.withLock { state -> Bool in
      guard state.lastDirectoryCheck + options.directoryCheckInterval <= .now else { return false }
      state.lastDirectoryCheck = .now
      return true
    }
  }

  /// Every few seconds: reader slots are shared with other processes.
  private func isIdleCheckDue() -> Bool {
    maintenance.withLock { state -> Bool in
      guard state.lastIdleCheck + options.idleReadTimeout <= .now else { return false }
      state.lastIdleCheck = .now
      return true
    }
  }

  /// Every ten seconds. A process that was killed leaves reader slots, which pin every page freed since, and maybe a body
  /// without a head.
  private func checkRegularly() throws(LMDBError) {
    let isDue = maintenance.withLock { state -> Bool in
      guard state.lastRegularCheck + .seconds(10) <= .now else { return false }
      state.lastRegularCheck = .now
      return true
    }
    guard isDue else { return }
    try file.environment.clearStaleReaders()
    try notePartialBodies(isAlone: false)
    followStructureCheck()
    // What a process removed before it was killed.
    if hasRemovalsToAdopt { wakeWriter() }
  }
}

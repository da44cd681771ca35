import LMDB

/// What the eviction thread keeps between steps.
struct MaintenanceState {
  /// How far the deletion behind each purge has come, by its row in `meta`.
  var positions: [[UInt8]: WalkPosition] = [:]
  /// Purges by host that are worked off together, and when the next pass over the index may begin.
  var hostPurges: HostPurges?
  var nextHostPass = MonotonicTime.now
  /// How far the check of the pages that lead to dates has come, and whether it is done.
  var datesPosition: DataFile.StructurePosition?
  var areDatesChecked = false
  /// A capacity that was set and is still to be applied; how often one was set, and up to which time that is begun and done.
  var wantedCapacityByteCount: Int?
  var setCapacityCount: UInt64 = 0
  var begunCapacityCount: UInt64 = 0
  var appliedCapacityCount: UInt64 = 0
  /// Whether the file is still to take less, after what a lower capacity has no room for is evicted.
  var wantsSmallerFile = false
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
    noteProgress()
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
    let isRebuilding = try rebuildIndex()
    if try deleteBehindPurge() { return true }
    if try evictAhead() { return true }
    try shrinkIndex()
    shrinkFileIfWanted()
    noteAppliedCapacity()
    try checkRegularly()
    return try giveRoomBack() || isChecking || isRebuilding
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
    let (live, entryCount) = try usage()
    let (wasEvicting, isEvicting) = maintenance.withLock { state -> (Bool, Bool) in
      let wasEvicting = state.isEvicting
      state.isEvicting =
        wasEvicting
        ? live > limits.lowPageCount || entryCount > limits.lowEntryCount
        : live > limits.highPageCount || entryCount > limits.highEntryCount
      return (wasEvicting, state.isEvicting)
    }
    guard isEvicting else { return false }
    if !wasEvicting {
      // Another process may have left a body to be swept, and been stopped.
      try notePartialBodies(isAlone: false)
      if try sweepLostBodies() { return true }
    }
    guard live > limits.lowPageCount else {
      return try evict(pageCount: .max, entryCount: entryCount - limits.lowEntryCount) > 0
    }
    return try evict(pageCount: live - limits.lowPageCount) > 0
  }

  /// Adds some records to an index that lacks them; true if there are more.
  func rebuildIndex() throws(LMDBError) -> Bool {
    guard !file.isIndexComplete else { return false }
    if !file.index.isReady {
      // Where there was no space for one there may be now.
      try file.write { (_) throws(LMDBError) in }
      guard file.index.isReady else { return false }
    }
    if case .rows? = file.index.current?.rebuildPosition {
      guard !isStructureUnchecked.load(ordering: .relaxed) else { return false }
    } else if try !checkDates() {
      return isUsable
    }
    return try file.write { (transaction) throws(LMDBError) in
      try file.rebuildIndex(limit: Self.rebuildStepCount, in: transaction)
    }
  }

  /// Writers wait a millisecond or two.
  static let rebuildStepCount = 4096

  /// Has the index take no more than its share, after the capacity was lowered.
  func shrinkIndex() throws(LMDBError) {
    guard file.index.isTooLarge else { return }
    try file.write { (_) throws(LMDBError) in file.index.shrink() }
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
    file.index.followReplacement()
    // What a process removed before it was killed.
    if hasRemovalsToAdopt { wakeWriter() }
  }
}

import LMDB

/// Purges by host, prefix or group that are worked off together: one pass over the index finds the records of all of them.
struct HostPurges: Sendable {
  var purges: [Purge]
  var pass: HostPass
}

/// Deletes behind purges what their marks hide, in bounded steps.
extension ResponseStore {
  /// Deletes some of what a purge hides; false if there is nothing to delete now.
  ///
  /// While the index is rebuilt the marks stay: a record may have an older one of the same key, which would come back.
  func deleteBehindPurge() throws(LMDBError) -> Bool {
    let marks = try file.environment.read { (transaction) throws(LMDBError) in try removals.marks(in: transaction) }
    guard !marks.isEmpty else { return false }
    let isComplete = file.isIndexComplete
    let single = marks.first { !$0.scope.needsHostPass && (isComplete || $0.scope == .everything) }
    if let single {
      try again { (isCautious) throws(LMDBError) in try deleteSome(behind: single, isCautious: isCautious) }
      return true
    }
    guard isComplete, let work = hostPurges(among: marks) else { return false }
    try again { (isCautious) throws(LMDBError) in try deleteSome(of: work, isCautious: isCautious) }
    return true
  }

  /// Tries once more after a full map, so that no pages in a row need be free.
  private func again(_ body: (_ isCautious: Bool) throws(LMDBError) -> Void) throws(LMDBError) {
    do throws(LMDBError) {
      try body(false)
    } catch {
      guard error.code == .mapFull else { throw error }
      try body(true)
    }
  }

  // MARK: By date, by key, and everything

  private func deleteSome(behind purge: Purge, isCautious: Bool) throws(LMDBError) {
    let position = maintenance.withLock { $0.positions[purge.metaKey] } ?? .start
    let limits = limits.withLock { $0 }
    let (removed, end) = try commit { (transaction) throws(LMDBError) -> (Int, WalkPosition?) in
      // Another process may have finished it, or the index may have been lost since.
      guard try file.meta.contains(purge.metaKey, in: transaction) else { return (0, nil) }
      guard file.isIndexComplete || purge.scope == .everything else { return (0, position) }
      var counters = try file.counters(in: transaction)
      if !isCautious { counters.freeablePageCount = limits.freeablePageCount }
      guard let walk = try file.collect(purge, limit: limits.cleaningRecordCount, from: position, in: transaction)
      else {
        return (0, nil)
      }
      // After a cautious start what comes free may lie anywhere.
      let (removed, next) = try remove(walk.rows, counters: &counters, isInRun: !isCautious, in: transaction)
      let end = next == nil ? walk.end : position
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

  /// Removes rows until the transaction has done enough. Returns how many there were, and the first that is left.
  private func remove(
    _ rows: [UInt64], counters: inout Counters, isInRun: Bool = false, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) -> (removed: Int, next: UInt64?) {
    // The writer waits meanwhile; callers of stores do not. What is far apart takes more time, and copies more pages.
    let deadline = MonotonicTime.now + .milliseconds(isInRun ? 16 : 4)
    var removed = 0
    for (index, rowID) in rows.enumerated() {
      if try file.removeRecord(rowID, counters: &counters, isInRun: isInRun, in: transaction) { removed += 1 }
      let isEnough = counters.hasFreedEnough || (index % 16 == 15 && MonotonicTime.now > deadline)
      if isEnough, index + 1 < rows.count { return (removed, rows[index + 1]) }
    }
    return (removed, nil)
  }

  // MARK: By host, prefix and group

  /// What is under way, or what a new pass over the index finds; nil if the next pass is not due.
  private func hostPurges(among marks: [Purge]) -> HostPurges? {
    let known = maintenance.withLock { $0.hostPurges }
    if let known, !known.pass.isExhausted, marks.contains(where: { $0 == known.purges.first }) { return known }
    let start = MonotonicTime.now
    // Where purges come faster than passes end, a quarter of the time is enough.
    guard !options.runsInBackground || start >= maintenance.withLock({ $0.nextHostPass }) else { return nil }
    file.index.followReplacement()
    var work: HostPurges?
    if let known, known.pass.isExhausted {
      work = known.pass.next(over: file.index).map { HostPurges(purges: known.purges, pass: $0) }
    } else {
      let purges = Array(marks.filter { $0.scope.needsHostPass }.prefix(1024))
      let tags = purges.map { $0.scope.hostPrefix.flatMap { file.hostTag(ofPrefix: $0) } }
      let hostTags = tags.contains(nil) ? nil : Set(tags.compactMap(\.self))
      work = HostPass(over: file.index, hostTags: hostTags).map { HostPurges(purges: purges, pass: $0) }
    }
    let elapsed = start.duration(to: .now)
    maintenance.withLock { state in
      state.hostPurges = work
      state.nextHostPass = .now + elapsed * 3
    }
    return work
  }

  private func deleteSome(of work: HostPurges, isCautious: Bool) throws(LMDBError) {
    let limits = limits.withLock { $0 }
    let (removed, rest) = try commit { (transaction) throws(LMDBError) -> (Int, HostPurges?) in
      guard file.isIndexComplete else { return (0, nil) }
      var work = work
      var counters = try file.counters(in: transaction)
      if !isCautious { counters.freeablePageCount = limits.freeablePageCount }
      var rows: [UInt64] = []
      for rowID in work.pass.upcoming(limits.purgeCount)
      where try file.covers(work.purges, rowID: rowID, in: transaction) {
        rows.append(rowID)
      }
      let (removed, next) = try remove(rows, counters: &counters, in: transaction)
      if let next { work.pass.advance(to: next) } else { work.pass.advance(by: limits.purgeCount) }
      if work.pass.isDone {
        for purge in work.purges { try file.meta.remove(purge.metaKey, in: transaction) }
        counters.lastPurgeChange = transaction.id
      }
      try file.setCounters(counters, in: transaction)
      return (removed, work.pass.isDone ? nil : work)
    }
    counts.countRemovals(removed, .requested)
    maintenance.withLock { state in
      state.hostPurges = rest
      if rest == nil { state.wantsRelease = true }
    }
  }
}

import LMDB

/// Eviction in steps of one transaction each: what has expired, then segment by segment what is least worth keeping.
extension ResponseStore {
  /// Removes records until about `pageCount` pages are free, so many records are gone, or the transaction has done enough. While the
  /// index is rebuilt these are the oldest.
  ///
  /// - Parameter isCautious: Whether there is hardly a free page, as after a full map: then nothing is written again.
  /// - Returns: How many; 0 if there was nothing to evict.
  func evict(pageCount: Int, entryCount: Int = .max, isCautious: Bool = false) throws(LMDBError) -> Int {
    let goal = EvictionGoal(
      pageCount: pageCount, entryCount: entryCount, isCautious: isCautious, limits: limits.withLock { $0 },
      now: OrderedTime.encode(options.clock()))
    let expiry = try file.environment.read { (transaction) throws(LMDBError) in try firstExpiry(in: transaction) }
    let isNamed = !file.isIndexComplete || expiry.map { $0.time <= goal.now } ?? false
    if isNamed, case let count = try evictNamed(goal), count > 0 { return count }
    // A step may do no more than forget a segment whose records were all removed.
    for _ in 0..<Self.maximumStepCount {
      switch try freeSegment(goal) {
      case nil: return try file.isIndexComplete ? removeStrays() : evictNamed(goal)
      case 0?: continue
      case let count?: return count
      }
    }
    return 0
  }

  private static let maximumStepCount = 256

  // MARK: Expired records

  /// Removes records that are of no use any more; while the index is rebuilt the oldest, since a record may have an older one of the
  /// same key, which must go first.
  private func evictNamed(_ goal: EvictionGoal) throws(LMDBError) -> Int {
    let (reason, removed) = try commit { (transaction) throws(LMDBError) -> (RemovalReason, Int) in
      let isComplete = file.isIndexComplete
      var counters = try file.counters(in: transaction)
      counters.freeablePageCount = goal.freeablePageCount
      let live = try file.environment.livePageCount(in: transaction)
      var removed = 0
      while removed < goal.namedRecordCount, !counters.hasFreedEnough {
        if isComplete {
          guard let expired = try firstExpiry(in: transaction), expired.time <= goal.now else { break }
          try file.removeRecord(expired.rowID, counters: &counters, in: transaction)
          // Of a row that damage has left alone, too, or eviction would not come past it.
          try file.expiries.remove(expired, in: transaction)
        } else {
          guard let rowID = try file.heads.firstRowID(in: transaction) else { break }
          try file.removeRecord(rowID, use: .remember, counters: &counters, in: transaction)
        }
        removed += 1
        let freed = try live - file.environment.livePageCount(in: transaction) + counters.deferredPageCount
        if freed >= goal.pageCount { break }
      }
      if removed > 0 { try file.setCounters(counters, in: transaction) }
      return (isComplete ? .expired : .overCapacity, removed)
    }
    counts.countRemovals(removed, reason)
    return removed
  }

  /// When no record is left, removes what damage has left in the index and other tables. Returns how many records that named.
  private func removeStrays() throws(LMDBError) -> Int {
    guard let index = file.index.current, index.recordCount > 0 else { return 0 }
    return try commit { (transaction) throws(LMDBError) -> Int in
      guard file.isIndexComplete else { return 0 }
      var counters = try file.counters(in: transaction)
      var entries: [IndexEntry] = []
      index.forEachEntry(in: 0..<index.allSlotCount) { if entries.count < 256 { entries.append($0) } }
      var count = 0
      for entry in entries {
        guard try !file.heads.contains(entry.rowID, in: transaction) else { continue }
        try file.removeStray(entry, counters: &counters, in: transaction)
        count += 1
      }
      try file.setCounters(counters, in: transaction)
      return count
    }
  }

  private func firstExpiry(in transaction: borrowing some Transaction & ~Copyable) throws(LMDBError) -> DateKey? {
    try file.expiries.withCursor(in: transaction) { (cursor) throws(LMDBError) in
      try cursor.first() ? try cursor.checkedKey() : nil
    }
  }

  // MARK: Segments

  /// Frees a part of a segment. Returns how many records it evicted; nil if there is no segment, or no index to choose by.
  private func freeSegment(_ goal: EvictionGoal) throws(LMDBError) -> Int? {
    // One step of this process at a time: the next one begins where it ends.
    try cleaner.withLock { cleaner in
      Result { () throws(LMDBError) in try freeSegment(goal, with: &cleaner) }
    }.get()
  }

  private func freeSegment(_ goal: EvictionGoal, with cleaner: inout SegmentCleaner) throws(LMDBError) -> Int? {
    guard let index = file.index.current, index.isComplete else { return nil }
    let isChosen = try file.environment.read { (transaction) throws(LMDBError) in
      try cleaner.choose(
        file.heads, open: file.counters(in: transaction).openSegments, index: index, limit: goal.recordCount,
        in: transaction)
    }
    guard isChosen else { return nil }
    var removed: [RemovalReason: Int] = [:]
    let known = cleaner
    let step = try commit { (transaction) throws(LMDBError) -> SegmentCleaner.Step? in
      removed = [:]
      guard file.isIndexComplete else { return nil }
      var counters = try file.counters(in: transaction)
      counters.freeablePageCount = goal.freeablePageCount
      let marks = try removals.marks(in: transaction)
      let live = try file.environment.livePageCount(in: transaction)
      var count = 0
      func reason(of row: SegmentCleaner.Row) -> RemovalReason? {
        row.record.withUnsafeBytes { record in
          let head = HeadLayout(checked: record)
          if marks.contains(where: { $0.covers(rowID: row.rowID, layout: head) }) { return .requested }
          return head.expiry.map(OrderedTime.encode).map { $0 <= goal.now } ?? false ? .expired : nil
        }
      }
      let step = try known.clean(
        file.heads, index: file.index, limit: goal.recordCount, byteCount: goal.byteCount, counters: &counters,
        in: transaction
      ) { record in
        HeadLayout(record).flatMap { $0.hasRightChecksum ? file.keyDigest(of: $0.key) : nil }
      } mayKeep: { row in
        !goal.isCautious && reason(of: row) == nil
      } evict: { (row, counters) throws(LMDBError) in
        if counters.hasFreedEnough || count >= goal.entryCount { return false }
        if count % 16 == 15 || counters.deferredPageCount > 0 {
          let freed = try live - file.environment.livePageCount(in: transaction) + counters.deferredPageCount
          if freed >= goal.pageCount { return false }
        }
        count += 1
        let reason = row.entry == nil ? .overCapacity : reason(of: row) ?? .overCapacity
        try file.removeRecord(
          row.rowID, use: reason == .overCapacity ? .remember : .forget, counters: &counters, isInRun: true,
          in: transaction)
        removed[reason, default: 0] += 1
        return true
      } move: { (row, entry, counters) throws(LMDBError) in
        try file.move(row.record, entry, counters: &counters, in: transaction)
      }
      try file.setCounters(counters, in: transaction)
      return step
    }
    guard let step else { return nil }
    cleaner.finish(step)
    for (reason, count) in removed { counts.countRemovals(count, reason) }
    return removed.values.reduce(0, +)
  }
}

/// How much one transaction of eviction is to free, and may do for it.
private struct EvictionGoal {
  let pageCount: Int
  let entryCount: Int
  let isCautious: Bool
  let now: UInt64
  /// The records that a step looks at in a segment.
  let recordCount: Int
  /// The most records that are removed one by one, each of which may copy leaves of its own.
  let namedRecordCount: Int
  /// Of the records that a step looks at.
  let byteCount: Int
  let freeablePageCount: Int

  init(pageCount: Int, entryCount: Int, isCautious: Bool, limits: Limits, now: UInt64) {
    self.pageCount = pageCount
    self.entryCount = entryCount
    self.isCautious = isCautious
    self.now = now
    recordCount = min(limits.cleaningRecordCount, isCautious ? max(pageCount, 1) : .max)
    namedRecordCount = max(min(limits.evictionRecordCount, pageCount, entryCount), 1)
    byteCount = limits.cleaningByteCount
    freeablePageCount = isCautious ? Counters().freeablePageCount : limits.freeablePageCount
  }
}

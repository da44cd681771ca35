import Glibc
import LMDB

/// Room: the eviction thread works ahead of the writer, and the writer makes room itself when that was not enough.
///
/// Everything here runs in bounded transactions, since the pages of a transaction come free only two transactions later.
extension ResponseStore {
  /// The pages that hold something now. Costs a few hundred nanoseconds.
  func livePageCount() throws(LMDBError) -> Int {
    try file.environment.read { (transaction) throws(LMDBError) in
      try file.environment.livePageCount(in: transaction)
    }
  }

  /// The pages that hold something now, and the records.
  func usage() throws(LMDBError) -> (pageCount: Int, entryCount: Int) {
    try file.environment.read { (transaction) throws(LMDBError) in
      (
        try file.environment.livePageCount(in: transaction),
        Int(clamping: try file.counters(in: transaction).entryCount)
      )
    }
  }

  /// Evicts until `pageCount` more pages and so many more records may be written. While a lower capacity is being applied it evicts only
  /// what makes up for them: the rest is for the eviction thread, and stores go on meanwhile.
  func makeRoom(pageCount: Int, entryCount: Int = 0) throws(LMDBError) {
    try adoptCapacity()
    let limits = limits.withLock { $0 }
    var usage = try self.usage()
    if usage.pageCount > limits.shrinkingPageCount {
      maintenance.update { $0.isWanted = true }
      _ = try evict(pageCount: 2 * pageCount)
      return
    }
    if usage.entryCount > limits.shrinkingEntryCount {
      maintenance.update { $0.isWanted = true }
      _ = try evict(pageCount: .max, entryCount: 2 * max(entryCount, 1))
      return
    }
    while true {
      let excess = usage.pageCount + pageCount - limits.livePageCount
      let excessEntries = usage.entryCount + entryCount - limits.entryCount
      guard excess > 0 || excessEntries > 0 else { return }
      // What was removed and is still to be deleted goes before what is of use.
      var hasHelped = try sweepLostBodies()
      if !hasHelped { hasHelped = try deleteBehindPurge() }
      if !hasHelped, excess > 0 { hasHelped = try evict(pageCount: excess) > 0 }
      if !hasHelped { hasHelped = try evict(pageCount: .max, entryCount: max(excessEntries, 1)) > 0 }
      guard hasHelped else { return }
      usage = try self.usage()
    }
  }

  // MARK: Capacity

  /// Another process may have set another capacity.
  func adoptCapacity() throws(LMDBError) {
    try file.environment.read { (transaction) throws(LMDBError) in try adoptCapacity(in: transaction) }
  }

  func adoptCapacity(in transaction: borrowing some Transaction & ~Copyable) throws(LMDBError) {
    let capacity = Int(clamping: try file.counters(in: transaction).capacityByteCount)
    guard capacity != limits.withLock({ $0.capacityByteCount }), capacity >= Self.smallestCapacityByteCount else {
      return
    }
    let isLower = capacity < limits.withLock { $0.capacityByteCount }
    setLimits(capacityByteCount: capacity)
    if isLower { maintenance.withLock { $0.wantsSmallerFile = true } }
  }

  func setLimits(capacityByteCount: Int) {
    limits.withLock { $0 = Self.limits(capacityByteCount: capacityByteCount, file: file, removalLog: removalLog) }
    setIndexLimit(capacityByteCount: capacityByteCount)
  }

  func setIndexLimit(capacityByteCount: Int) {
    file.index.setMaximumByteCount(StorageFormat.indexByteCount(capacityByteCount: capacityByteCount))
  }

  static func limits(capacityByteCount: Int, file: StoreFile, removalLog: RemovalLog) -> Limits {
    Limits(
      capacityByteCount: capacityByteCount, filePageCount: file.environment.information.lastPageNumber + 1,
      // Three small files of a page each. The lock file has 64 bytes for each reader, and a header.
      otherByteCount: removalLog.byteCount + StorageFormat.indexByteCount(capacityByteCount: capacityByteCount) * 3 / 2
        + 64 * file.environment.information.maximumReaders + 4 * file.pageByteCount,
      chunkByteCount: file.chunkByteCount, pageByteCount: file.pageByteCount)
  }

  /// Has a capacity applied: by the eviction thread, which may wait for another process's write lock as long as it likes.
  func setCapacity(_ capacity: Int) {
    let order = maintenance.update { state -> UInt64 in
      state.wantedCapacityByteCount = capacity
      state.setCapacityCount += 1
      state.isWanted = true
      return state.setCapacityCount
    }
    guard options.runsInBackground else {
      while maintainNext() {}
      return
    }
    let isDone = waitUnlessStalled(maintenance) { state -> Bool? in
      state.appliedCapacityCount >= order || state.isClosing ? true : nil
    }
    if isDone == nil {
      log(.resized, "The new capacity takes effect when a process that was stopped while writing goes on or ends")
    }
  }

  /// Begins with a capacity that was set. What is too much for it goes in the steps that follow.
  func applyWantedCapacity() {
    let capacity = maintenance.withLock { state -> Int? in
      defer { state.wantedCapacityByteCount = nil }
      if state.wantedCapacityByteCount != nil { state.begunCapacityCount = state.setCapacityCount }
      return state.wantedCapacityByteCount
    }
    guard let capacity else { return }
    do throws(LMDBError) {
      try applyCapacity(capacity)
    } catch {
      log(.resized, "The capacity could not be set: \(error)")
      noteAppliedCapacity()
    }
  }

  /// When nothing is left that is too much.
  func noteAppliedCapacity() {
    maintenance.update { state in
      // One that was set meanwhile has its own steps.
      state.appliedCapacityCount = max(state.appliedCapacityCount, state.begunCapacityCount)
    }
  }

  /// Gives the map the size that goes with a capacity, unless it is larger already.
  func growMap(toCapacity capacity: Int) throws(LMDBError) {
    let mapByteCount = StorageFormat.mapByteCount(capacityByteCount: capacity, pageByteCount: file.pageByteCount)
    if mapByteCount > file.environment.information.mapByteCount {
      try file.environment.setMapByteCount(mapByteCount)
    }
  }

  /// Writes the capacity down and fits the map to it. What is too much is evicted by the steps of ``maintain()``, and the file then takes
  /// less: both may take minutes.
  func applyCapacity(_ capacity: Int) throws(LMDBError) {
    try growMap(toCapacity: capacity)
    let stored = try file.environment.read { (transaction) throws(LMDBError) in
      try file.counters(in: transaction).capacityByteCount
    }
    if stored != UInt64(capacity) {
      do throws(LMDBError) {
        try writeCapacity(capacity)
      } catch {
        guard error.code == .mapFull, recoverFromFullMap() else { throw error }
        try writeCapacity(capacity)
      }
    }
    setLimits(capacityByteCount: capacity)
    let limits = limits.withLock { $0 }
    let usage = try self.usage()
    let isTooMuch = usage.pageCount > limits.livePageCount || usage.entryCount > limits.highEntryCount
    guard isTooMuch || file.index.isTooLarge || diskByteCount > diskCeiling else { return }
    maintenance.update { state in
      state.wantsSmallerFile = true
      state.isWanted = true
    }
  }

  private func writeCapacity(_ capacity: Int) throws(LMDBError) {
    try commit { (transaction) throws(LMDBError) in
      var counters = try file.counters(in: transaction)
      counters.capacityByteCount = UInt64(capacity)
      try file.setCounters(counters, in: transaction)
    }
  }

  // MARK: A full map

  /// Makes a transaction possible again after MAP_FULL: clears dead readers, sweeps lost pieces, waits a moment for slow
  /// readers, else evicts a share of the map in ever smaller transactions, and lets the freed pages come to use. False if
  /// nothing helped.
  ///
  /// When half of what may live is gone already, eviction is no help: a reader that does not end pins the pages, and to
  /// evict on would empty the store for nothing.
  func recoverFromFullMap() -> Bool {
    do throws(LMDBError) {
      try file.environment.clearStaleReaders()
      while try sweepLostBodies() {}
      let limits = limits.withLock { $0 }
      let start = try livePageCount()
      // First this: while a snapshot pins the pages that eviction frees, it gains nothing.
      if waitForSlowReaders(), start <= limits.livePageCount {
        for _ in 0..<2 { try touch() }
        return true
      }
      let target = max(start - max(limits.livePageCount / 32, 16), limits.livePageCount / 2)
      guard start > target else { return false }
      var pageCount = limits.cautiousPageCount
      while case let live = try livePageCount(), live > target {
        if try sweepLostBodies() { continue }
        do throws(LMDBError) {
          guard try evict(pageCount: min(pageCount, live - target), isCautious: true) > 0 else { break }
        } catch {
          guard error.code == .mapFull, pageCount > 1 else { throw error }
          pageCount /= 4
        }
      }
      // Pages freed by one transaction can be used by the next but one.
      for _ in 0..<2 { try touch() }
      return true
    } catch {
      log(.failedWrite, "The map is full and could not be relieved: \(error); \(pageNumbers)")
      return false
    }
  }

  /// What tells a map that is full of entries from one whose pages a reader pins.
  private var pageNumbers: String {
    let mapPageCount = file.environment.information.mapByteCount / file.pageByteCount
    // A figure that cannot be had is left out.
    let live = (try? livePageCount()).map { "\($0)" } ?? "?"
    let oldest = file.environment.oldestSnapshot()
    return "\(live) of \(mapPageCount) pages in use, last transaction \(file.environment.lastTransactionID), "
      + (oldest == .max ? "no reader" : "oldest reader \(oldest)")
  }

  /// Waits for readers whose snapshots keep freed pages from being used: a lookup takes microseconds, but its thread may
  /// have to wait for a processor. False if there were none, or they stayed.
  private func waitForSlowReaders() -> Bool {
    let newest = file.environment.lastTransactionID
    guard file.environment.oldestSnapshot() < newest else { return false }
    for _ in 0..<100 {
      usleep(1000)
      if file.environment.oldestSnapshot() >= newest { return true }
    }
    return false
  }

  /// Commits something, so that pages freed before come nearer to use. For a page or two there is always room.
  func touch() throws(LMDBError) {
    try file.write { (transaction) throws(LMDBError) in
      try file.setCounters(try file.counters(in: transaction), in: transaction)
    }
    noteCommit()
  }
}

import Glibc
import LMDB

/// Room: the eviction thread works ahead of the writer, and the writer makes room itself when that was not enough.
///
/// Everything here runs in small transactions, since a page must be copied before it can be freed and the pages of a
/// transaction come free only two transactions later.
extension ResponseStore {
  /// The pages that hold something now. Costs a few hundred nanoseconds.
  func livePageCount() throws(LMDBError) -> Int {
    try file.environment.read { (transaction) throws(LMDBError) in
      try file.environment.livePageCount(in: transaction)
    }
  }

  /// Evicts until `pageCount` more pages may be written.
  func makeRoom(pageCount: Int) throws(LMDBError) {
    try adoptCapacity()
    let limits = limits.withLock { $0 }
    while true {
      let excess = try livePageCount() + pageCount - limits.livePageCount
      // What was removed and is still to be deleted goes before what is of use.
      if excess > 0, try sweepLostBodies() { continue }
      if excess > 0, try deleteBehindPurge() { continue }
      if excess > 16 * limits.evictionRecordCount, try evictMany(pageCount: excess) { continue }
      guard excess > 0, try evict(pageCount: min(limits.evictionPageCount, excess)) > 0 else { return }
    }
  }

  /// Removes entries in one transaction, until about `pageCount` pages are free: those that are of no use any more, then
  /// those that the table of uses does not know, oldest first, then those that it thinks least of. Returns how many.
  ///
  /// - Parameter isCautious: Whether no pages in a row may be free, as after a full map.
  func evict(pageCount: Int, isCautious: Bool = false) throws(LMDBError) -> Int {
    let now = OrderedTime.encode(options.clock())
    let limits = limits.withLock { $0 }
    let (removed, strays) = try commit { (transaction) throws(LMDBError) -> ([RemovalReason: Int], Int) in
      file.uses.follow()
      var counters = try file.counters(in: transaction)
      if !isCautious { counters.freeablePageCount = limits.freeablePageCount }
      let start = try file.environment.livePageCount(in: transaction)
      var removed: [RemovalReason: Int] = [:]
      var strays = 0
      // Small records share leaves, which merge late: their number bounds the transaction, too.
      for _ in 0..<max(min(pageCount, limits.evictionRecordCount), 1) {
        guard let choice = try chooseVictim(counters: counters, now: now, in: transaction) else { break }
        let isThere = try file.removeRecord(
          choice.rowID, use: choice.reason == .expired ? .forget : .remember, counters: &counters, freesRow: true,
          in: transaction)
        if isThere { removed[choice.reason, default: 0] += 1 } else { strays += 1 }
        // Whatever named it must name it no more, or eviction would not come past it.
        if let row = choice.dateRow { try file.dates.remove(row, in: transaction) }
        if let row = choice.expiryRow { try file.expiries.remove(row, in: transaction) }
        if let victim = choice.victim { file.uses.table?.remove(victim, remembering: isThere) }
        let freed = try start - file.environment.livePageCount(in: transaction) + counters.deferredPageCount
        if freed >= pageCount || counters.freeablePageCount <= 0 { break }
      }
      if !removed.isEmpty { try file.setCounters(counters, in: transaction) }
      return (removed, strays)
    }
    for (reason, count) in removed { counts.countRemovals(count, reason) }
    return removed.values.reduce(strays, +)
  }

  /// Evicts much at once, as a lower capacity wants it: the victims are chosen together and removed in the order of their
  /// rows, so that what lies in one page goes in one transaction. Frees a little less than `pageCount` pages, or false if
  /// one by one is the better way: while there are expired records, which go first, and where there is little room to work
  /// in.
  private func evictMany(pageCount: Int) throws(LMDBError) -> Bool {
    let now = OrderedTime.encode(options.clock())
    let live = try livePageCount()
    let (isFitting, entryCount) = try file.environment.read { (transaction) throws(LMDBError) -> (Bool, UInt64) in
      let expired = try firstRow(of: file.expiries, in: transaction).map { $0.time <= now } ?? false
      return (!expired, try file.counters(in: transaction).entryCount)
    }
    // While a lower capacity is being applied, what is in use of the file may stay so until that is done.
    let limits = limits.withLock { $0 }
    let isTooMuch = live > limits.livePageCount
    let pageCountInAll =
      isTooMuch ? file.environment.information.mapByteCount / file.pageByteCount : limits.roomPageCount
    let freePageCount = pageCountInAll - live
    guard isFitting, freePageCount > 32 * Self.victimsPerTransaction, let table = file.uses.table,
      UInt64(table.recordCount) >= entryCount
    else { return false }
    // The table's bytes leave out what the indexes take: a share of the pages is the same share of the bytes.
    let share = min(Double(pageCount) / Double(max(live, 1)), 1) * 0.95
    let victims = table.chooseVictims(share: share)
    var start = victims.startIndex
    var removed = 0
    while start < victims.endIndex, try live - livePageCount() < pageCount {
      let end = min(start + Self.victimsPerTransaction, victims.endIndex)
      let batch = victims[start..<end]
      start = end
      removed += try commit { (transaction) throws(LMDBError) -> Int in
        file.uses.follow()
        var counters = try file.counters(in: transaction)
        counters.freeablePageCount = .max
        var removed = 0
        for (index, victim) in batch.enumerated() {
          // Large ones free enough long before a batch is through.
          if index % 16 == 15, try live - file.environment.livePageCount(in: transaction) >= pageCount { break }
          let isThere = try file.removeRecord(victim.rowID, use: .remember, counters: &counters, in: transaction)
          file.uses.table?.remove(victim, remembering: isThere)
          if isThere { removed += 1 }
        }
        try file.setCounters(counters, in: transaction)
        return removed
      }
    }
    counts.countRemovals(removed, .overCapacity)
    return removed > 0
  }

  /// Each changes three or four pages, which lie in memory until the commit.
  private static let victimsPerTransaction = 1024

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
    setLimits(capacityByteCount: capacity)
  }

  func setLimits(capacityByteCount: Int) {
    limits.withLock { $0 = Self.limits(capacityByteCount: capacityByteCount, file: file, removalLog: removalLog) }
  }

  static func limits(capacityByteCount: Int, file: StoreFile, removalLog: RemovalLog) -> Limits {
    Limits(
      capacityByteCount: capacityByteCount, filePageCount: file.environment.information.lastPageNumber + 1,
      // Three small files of a page each. The lock file has 64 bytes for each reader, and a header.
      otherByteCount: removalLog.byteCount + UseTableFile.largestByteCount(capacityByteCount: capacityByteCount)
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
    guard options.runsInBackground else { return applyWantedCapacity() }
    let isDone = waitUnlessStalled(maintenance) { state -> Bool? in
      state.appliedCapacityCount >= order || state.isClosing ? true : nil
    }
    if isDone == nil {
      log(.resized, "The new capacity takes effect when a process that was stopped while writing goes on or ends")
    }
  }

  func applyWantedCapacity() {
    let (capacity, order) = maintenance.withLock { state -> (Int?, UInt64) in
      defer { state.wantedCapacityByteCount = nil }
      return (state.wantedCapacityByteCount, state.setCapacityCount)
    }
    guard let capacity else { return }
    do throws(LMDBError) {
      try applyCapacity(capacity)
    } catch {
      log(.resized, "The capacity could not be set: \(error)")
    }
    maintenance.update { $0.appliedCapacityCount = order }
  }

  /// Gives the map the size that goes with a capacity, unless it is larger already.
  func growMap(toCapacity capacity: Int) throws(LMDBError) {
    let mapByteCount = StorageFormat.mapByteCount(capacityByteCount: capacity, pageByteCount: file.pageByteCount)
    if mapByteCount > file.environment.information.mapByteCount {
      try file.environment.setMapByteCount(mapByteCount)
    }
  }

  /// Writes the capacity down, fits the map to it, and evicts what is too much.
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
    do throws(LMDBError) {
      try makeRoom(pageCount: 0)
    } catch {
      guard error.code == .mapFull, recoverFromFullMap() else { throw error }
      try makeRoom(pageCount: 0)
    }
    try shrinkUses()
    shrinkFile()
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
      var pageCount = limits.evictionPageCount
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
    try file.environment.write { (transaction) throws(LMDBError) in
      try file.setCounters(try file.counters(in: transaction), in: transaction)
    }
    noteCommit()
  }
}

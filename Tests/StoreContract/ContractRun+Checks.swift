import FoundationEssentials
import Glibc
import ResponseStore

/// The calls of a run since the store was opened, which the store's statistics must equal.
struct ContractCounts: Equatable {
  /// Stores and updates.
  var writes = 0
  private(set) var hits = 0
  private(set) var misses = 0
  /// The entries when the store was opened.
  fileprivate var entryCount = 0
  /// The statistics of the store then: one that replaces a failed one continues its counters.
  fileprivate var before: StoreStatistics?

  init() {}

  init(_ store: ResponseStore) {
    let statistics = store.statistics
    (before, entryCount) = (statistics, statistics.entryCount)
  }

  mutating func lookUp(isHit: Bool) {
    if isHit { hits += 1 } else { misses += 1 }
  }
}

extension ContractRun {
  /// Checks all slots, or some if other processes are at work, and in a quiet store everything that must add up.
  func checkAll() throws(Ledger.Violation) {
    note("check all")
    guard isAlone else {
      for slot in stride(from: Int(ledger.position % 8), to: ContractContent.slotCount, by: 8) { try check(slot) }
      return
    }
    ContractFaults.clear()
    // The first flush reports losses.
    for _ in 0..<3 where ledger.isFaulty { try flush() }
    try flush()
    try drain()
    if store.hasFailed { return }
    var (entryCount, byteCount) = (0, 0)
    for slot in 0..<ContractContent.slotCount {
      guard let found = try check(slot) else { continue }
      entryCount += 1
      byteCount += found.identity.byteCount
    }
    try checkSums(entryCount: entryCount, byteCount: byteCount)
    try checkBound()
  }

  /// Lets the store delete and mark what purges cover, and evict what exceeds its watermarks.
  func drain() throws(Ledger.Violation) {
    for _ in 0..<1000 {
      if !configuration.hasThreads { while store.writePending() {} }
      while store.maintain() {}
      let isDone = store.pendingRemovalCount == 0 && store.excessByteCount == 0 && !store.isApplyingCapacity
      // A commit of which a failing disk reported an error may have begun a body, which is found later.
      let hasBodies = !configuration.hasFaults && store.unfinishedBodyCount > arriving.count
      if store.hasFailed || isDone && !hasBodies { return }
      Self.sleepBriefly()
    }
    throw unsound(
      "\(store.pendingRemovalCount) removals are pending, \(store.excessByteCount) bytes are too many, and there are "
        + "\(store.unfinishedBodyCount) unfinished bodies, for 10 s")
  }

  private func checkSums(entryCount: Int, byteCount: Int) throws(Ledger.Violation) {
    let verification = store.verify()
    if let first = verification.violations.first {
      throw unsound("\(verification.violations.count) violations, the first: \(first)")
    }
    let statistics = store.statistics
    func expect(_ value: Int, _ expected: Int, _ name: String) throws(Ledger.Violation) {
      if value != expected { throw unsound("\(name): \(value) instead of \(expected)") }
    }
    // The store's own thread may evict or delete expired records in between.
    if configuration.hasThreads, configuration.isEvicting { return }
    try expect(statistics.entryCount, entryCount, "entries")
    try expect(verification.entryCount, entryCount, "entries of the check")
    try expect(verification.bodyByteCount, byteCount, "bytes of bodies")
    guard let before = counts.before else { return }
    try expect(statistics.hits - before.hits, counts.hits, "hits")
    try expect(statistics.misses - before.misses, counts.misses, "misses")
    try expect(statistics.corruptRecords - before.corruptRecords, 0, "corrupt records")
    try expect(sum(statistics) - sum(before), counts.writes, "writes, updates, dropped and superseded writes")
    // A disk that fails may commit a transaction of which the store is told that it failed.
    guard !configuration.hasFaults else { return }
    try checkArriving()
    func writesWithoutRemovals() -> Int {
      let statistics = store.statistics
      return statistics.writes - before.writes - removed(statistics) + removed(before)
    }
    // The store's own thread counts what it has removed after the commit.
    for _ in 0..<1000 where configuration.hasThreads && writesWithoutRemovals() != entryCount - counts.entryCount {
      Self.sleepBriefly()
    }
    try expect(writesWithoutRemovals(), entryCount - counts.entryCount, "writes without removals")
  }

  private func sum(_ statistics: StoreStatistics) -> Int {
    statistics.writes + statistics.updates + statistics.droppedWrites + statistics.supersededWrites
  }

  private func removed(_ statistics: StoreStatistics) -> Int { statistics.removals.values.reduce(0, +) }

  /// Compares the blocks of the directory's files with the bound of the capacity.
  func checkBound() throws(Ledger.Violation) {
    let byteCount = Self.diskByteCount(directory)
    let bound = max(capacity, store.capacityByteCount) / 10 * 11 + (64 << 10)
    if byteCount > bound { throw unsound("the directory takes \(byteCount) bytes of at most \(bound)") }
    if abs(byteCount - store.diskByteCount) > 256 << 10 {
      throw unsound("the directory takes \(byteCount) bytes, and the store reports \(store.diskByteCount)")
    }
  }

  static func diskByteCount(_ directory: String) -> Int {
    guard let stream = opendir(directory) else { return 0 }
    defer { closedir(stream) }
    var byteCount = 0
    while let entry = readdir(stream) {
      let name = withUnsafePointer(to: &entry.pointee.d_name.0) { String(cString: $0) }
      if name.hasPrefix("data-") { byteCount += diskByteCount(directory + "/" + name) }
      var status = stat()
      if lstat(directory + "/" + name, &status) == 0, status.st_mode & S_IFMT == S_IFREG {
        byteCount += Int(status.st_blocks) * 512
      }
    }
    return byteCount
  }
}

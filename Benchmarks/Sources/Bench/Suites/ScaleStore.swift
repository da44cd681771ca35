import Foundation
import HTTPCaching
import ResponseStore
import Synchronization

/// The part of ``Scale`` that this project's store does.
final class ScaleStore {
  private let report: Report
  private let fixture: Fixture
  private let scenario: String
  private let count: Int
  private let capacityByteCount: Int
  private let tool: String?
  private let folder: String
  private let clock = IndexClock()
  /// The number of rounds whose median is reported, for filling and for the full store.
  private static let roundCount = 3
  private var opened: ResponseStore?
  /// The next entry to store.
  private var next = 0

  /// Lifetimes in seconds, as real responses have them: from a minute to a week.
  private static let lifetimes = [60.0, 300, 600, 1800, 3600, 14_400, 86_400, 604_800]

  /// A clock that shows the time of the entry that is being stored: one second for each entry.
  private final class IndexClock: Sendable {
    private let index = Atomic<Int>(0)
    var now: Date { Self.date(of: value) }
    /// The number of the entry that is being stored.
    var value: Int { index.load(ordering: .relaxed) }
    func set(_ index: Int) { self.index.store(index, ordering: .relaxed) }
    static func date(of index: Int) -> Date { Date(timeIntervalSince1970: 1_700_000_000) + Double(index) }
  }

  /// The measurements of storing a number of entries.
  private struct Run {
    var storeCount: Int
    var seconds: Double
    var writtenByteCount: Int
    var longestCall: Double
    /// The fewest entries at the end of any hundredth of the run.
    var leastEntries: Int
    /// The most evicted entries per stored entry in any tenth of the run.
    var mostEvictedPerStore: Double
    /// The latencies in microseconds, in ascending order.
    var lookups: [Double]

    var storesPerSecond: Double { Double(storeCount) / seconds }
    var writtenBytesPerStore: Double { Double(writtenByteCount) / Double(storeCount) }
  }

  init(report: Report, scratch: Scratch, count: Int, capacityByteCount: Int, tool: String?) throws {
    self.report = report
    self.count = count
    self.capacityByteCount = capacityByteCount
    self.tool = tool
    fixture = Fixture(count: .max, bodyByteCount: 1 << 10, isScattered: true)
    scenario = Fixture(count: count, bodyByteCount: 1 << 10).name
    folder = try scratch.folder("scale")
    try open(capacityByteCount)
  }

  private var store: ResponseStore {
    guard let opened else { fatalError("the store is closed") }
    return opened
  }

  private func open(_ capacity: Int) throws {
    var options = ResponseStore.Options(capacityByteCount: capacity)
    options.clock = { [clock] in clock.now }
    options.fullQueueTimeout = .seconds(600)
    options.stallTimeout = .seconds(600)
    opened = try ResponseStore.open(directory: folder, options: options)
  }

  /// Closes the store and unmaps its file, because mapped pages stay in the page cache.
  private func close() {
    store.close()
    opened = nil
  }

  func run() throws {
    try fillAndTurnOver()
    try purge("a tenth, by date", entryCount: store.entryCount / 10) { [self] in
      store.remove(.since(IndexClock.date(of: next - store.entryCount / 10)))
    }
    refill()
    try purge("a third, by date", entryCount: store.entryCount / 3) { [self] in
      store.remove(.since(IndexClock.date(of: next - store.entryCount / 3)))
    }
    refill()
    try purge("a tenth, by host", entryCount: store.entryCount / 10) { [self] in
      store.remove(.host(Fixture.host(3)))
    }
    refill()
    try openings()
    try tools()
    try open(capacityByteCount)
    try purge("everything", entryCount: store.entryCount) { [self] in store.remove(.everything) }
    _ = storing(count)
    close()
    try lowerCapacity()
    close()
  }

  // MARK: Storing

  /// The response of an entry. Half of them have no validator, and lifetimes between a minute and a week.
  private func response(_ index: Int) -> KeyedResponse {
    var keyed = fixture.response(index)
    let number = UInt32(truncatingIfNeeded: index) &* 0x9E37_79B1
    guard number >> 31 == 0 else { return keyed }
    let date = IndexClock.date(of: index)
    keyed.freshness = FreshnessInfo(
      responseTime: date, initialAge: 0, lifetime: Self.lifetimes[Int(number >> 28)], date: date)
    return keyed
  }

  private func fillAndTurnOver() throws {
    // Compare the last million entries before the store is full with the full store.
    let last = max(count - 1_000_000, 0)
    let before = last > 0 ? [storing(last)] : []
    let filling = (0..<Self.roundCount).map { _ in storing((count - last) / Self.roundCount) }
    let payload = Double(store.statistics.payloadByteCount) / Double(store.entryCount)
    add("stores while filling, last million", "a second", filling.map(\.storesPerSecond), lessIsBetter: false)
    add("written for each byte stored while filling", "bytes", filling.map { $0.writtenBytesPerStore / payload })
    add("bytes written while filling", "bytes/store", filling.map(\.writtenBytesPerStore))
    addLookups("while filling", filling)
    add("longest store call while filling", "ms", (before + filling).map(\.longestCall).max() ?? .nan)
    // Store until the store is full for the first time.
    let evictions = store.statistics.evictions
    while store.statistics.evictions == evictions { _ = storing(count / 100) }
    let entryCount = store.entryCount
    add("entries at the first full moment", "entries", Double(entryCount), lessIsBetter: false)
    // Each round stores as many entries as the store has. With more data than memory a round takes minutes.
    let full = (0..<(count > 1_000_000 ? 1 : Self.roundCount)).map { _ in storing(entryCount) }
    add("stores when full", "a second", full.map(\.storesPerSecond), lessIsBetter: false)
    add("written for each byte stored when full", "bytes", full.map { $0.writtenBytesPerStore / payload })
    add("bytes written when full", "bytes/store", full.map(\.writtenBytesPerStore))
    addLookups("when full", full)
    add("longest store call when full", "ms", full.map(\.longestCall).max() ?? .nan)
    add(
      "entries kept when full", "% of the first full moment",
      Double(full.map(\.leastEntries).min() ?? 0) / Double(entryCount) * 100, lessIsBetter: false)
    add("evicted for one stored, the worst tenth", "entries", full.map(\.mostEvictedPerStore).max() ?? .nan)
    add("disk when full", "% of capacity", Double(store.diskByteCount) / Double(capacityByteCount) * 100)
  }

  /// Stores until the store is full again after a purge.
  private func refill() {
    let before = store.statistics.evictions
    while store.statistics.evictions == before { _ = storing(max(count / 100, 1)) }
  }

  private func storing(_ number: Int) -> Run {
    let reader = pacedReader()
    defer { reader.end() }
    let traffic = DiskTraffic(of: folder)
    var tenth = store.statistics.evictions
    var run = Run(
      storeCount: number, seconds: 0, writtenByteCount: 0, longestCall: 0, leastEntries: .max, mostEvictedPerStore: 0,
      lookups: [])
    let start = now()
    for step in 1...number {
      clock.set(next)
      let response = response(next)
      let call = now()
      store.store(response)
      run.longestCall = max(run.longestCall, Double(now() - call) / 1e6)
      next += 1
      if step % max(number / 100, 1) == 0 { run.leastEntries = min(run.leastEntries, store.entryCount) }
      if step % max(number / 10, 1) == 0 {
        let present = store.statistics.evictions
        run.mostEvictedPerStore = max(run.mostEvictedPerStore, Double(present - tenth) / Double(max(number / 10, 1)))
        tenth = present
      }
    }
    do throws(StoreError) { try store.flush() } catch { fatalError("\(error)") }
    run.seconds = Double(now() - start) / 1e9
    run.writtenByteCount = (DiskTraffic(of: folder) - traffic).writtenByteCount
    run.lookups = reader.take()
    return run
  }

  /// Starts 1,000 lookups per second of the last entries, of all ages.
  private func pacedReader() -> PacedReader {
    let store = store
    let fixture = fixture
    let clock = clock
    let maximumAge = count
    let steps = StepCounter()
    return PacedReader(perSecond: 1000) {
      var random = SeededGenerator(seed: UInt64(steps.next()))
      let newest = max(clock.value, 1)
      let age = Int(random.next() % UInt64(min(newest, maximumAge)))
      _ = store.lookup(fixture.key(newest - 1 - age))
    }
  }

  // MARK: Purging

  /// Measures the time until the call returns and until the rows are deleted, and the bytes written until then.
  private func purge(_ name: String, entryCount: Int, _ body: () -> Void) throws {
    try store.flush()
    settle()
    let traffic = DiskTraffic(of: folder)
    let before = store.entryCount
    let start = now()
    body()
    add("purge of \(name): returns", "ms", Double(now() - start) / 1e6)
    let end = settle()
    add("purge of \(name): deleted", "s", Double(end - start) / 1e9)
    let written = (DiskTraffic(of: folder) - traffic).writtenByteCount
    add("purge of \(name): written", "MB", Double(written) / 1e6)
    let removed = before - store.entryCount
    guard removed > entryCount / 2 else { throw BenchError("the purge of \(name) removed \(removed) of \(before)") }
  }

  /// Waits until commits and disk usage have not changed for half a second; returns the time of the last change.
  @discardableResult
  private func settle() -> UInt64 {
    var last = now()
    var commits = store.statistics.commits
    var disk = store.diskByteCount
    while now() < last + 500_000_000 || store.statistics.pendingRemovalCount > 0 {
      usleep(1000)
      let present = store.statistics.commits
      let presentDisk = store.diskByteCount
      guard present != commits || presentDisk != disk else { continue }
      (commits, disk, last) = (present, presentDisk, now())
    }
    return last
  }

  // MARK: Opening

  private func openings() throws {
    func open(_ name: String) throws {
      let elapsed = try nanoseconds { try self.open(capacityByteCount) }
      add("open \(name)", "ms", elapsed / 1e6)
    }
    close()
    try open("after a clean close, warm")
    close()
    dropPageCache(of: folder)
    try open("after a clean close, cold")
    try coldHits()
    close()
    try ScaleWriter.leaveKilled(folder, capacityByteCount: capacityByteCount, first: next)
    next += 10_000
    try open("after kill -9, warm")
    settle()
    close()
    try ScaleWriter.leaveKilled(folder, capacityByteCount: capacityByteCount, first: next)
    next += 10_000
    dropPageCache(of: folder)
    try open("after kill -9, cold")
    settle()
    close()
  }

  /// Measures the bytes that a cold hit reads from the disk, with records that are far apart.
  private func coldHits() throws {
    dropPageCache(of: folder)
    var hits = 0
    let traffic = DiskTraffic(of: folder)
    for step in 0..<min(500, count / 40) where store.lookup(fixture.key(next - 1 - step * (count / 2 / 500 + 1))) != nil
    {
      hits += 1
    }
    let read = (DiskTraffic(of: folder) - traffic).readByteCount
    if hits > 0 { add("a cold hit reads", "KB", Double(read) / Double(hits) / 1000) }
  }

  /// Opens the store with half its capacity, and measures how it shrinks during use.
  private func lowerCapacity() throws {
    let half = capacityByteCount / 2
    let entryCount = entryCountOfClosed()
    let elapsed = try nanoseconds { try open(half) }
    add("open with half the capacity", "ms", elapsed / 1e6)
    add("entries evicted within that open", "entries", Double(entryCount - store.entryCount))
    let start = now()
    let used = storing(max(count / 100, 1000))
    let bound = half + half / 10
    while store.diskByteCount > bound, now() < start + 600_000_000_000 { usleep(10_000) }
    add("half the capacity: reached after", "s", Double(now() - start) / 1e9)
    add("half the capacity: disk", "% of capacity", Double(store.diskByteCount) / Double(half) * 100)
    add("half the capacity: stores meanwhile", "a second", used.storesPerSecond, lessIsBetter: false)
    addLookups("while shrinking", [used])
    settle()
  }

  private func entryCountOfClosed() -> Int {
    guard let closed = try? ResponseStore.open(directory: folder, options: .existing) else { return 0 }
    defer { closed.close() }
    return closed.entryCount
  }

  // MARK: The tool

  private func tools() throws {
    guard let tool else { return }
    let commands: [(name: String, arguments: [String], lines: Int?)] = [
      ("stats", ["stats", folder], nil), ("list | head -5", ["list", folder], 5),
      ("list", ["list", folder], nil), ("verify", ["verify", folder], nil),
    ]
    for command in commands {
      for state in ["warm", "cold"] {
        if state == "cold" { dropPageCache(of: folder) }
        let finished = try FinishedCommand.run(tool, command.arguments, lines: command.lines)
        guard finished.status == 0 else { throw BenchError("urlcache \(command.name): status \(finished.status)") }
        add("urlcache \(command.name), \(state)", "s", finished.milliseconds / 1000)
        add("urlcache \(command.name), \(state), memory", "MB", finished.peakMegabytes)
      }
    }
  }

  private func addLookups(_ state: String, _ runs: [Run]) {
    add("lookup \(state), p50", "us", runs.map { percentile($0.lookups, 0.5) })
    add("lookup \(state), p99", "us", runs.map { percentile($0.lookups, 0.99) })
  }

  private func add(_ measure: String, _ unit: String, _ value: Double, lessIsBetter: Bool = true) {
    add(measure, unit, [value], lessIsBetter: lessIsBetter)
  }

  private func add(_ measure: String, _ unit: String, _ values: [Double], lessIsBetter: Bool = true) {
    guard values.allSatisfy(\.isFinite) else { return }
    report.add("scale", measure, scenario, "ResponseStore", unit: unit, values, lessIsBetter: lessIsBetter)
  }
}

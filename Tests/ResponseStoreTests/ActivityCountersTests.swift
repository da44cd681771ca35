import Foundation
import Glibc
import ResponseStore
import Testing

// Buckets of a histogram, and words of the file to damage, which no public surface shows.
@testable import CacheActivity

@Suite("Counters of a directory", .endsFixtures)
struct ActivityCountersTests {
  private static func path(_ fixture: StoreFixture) -> String { fixture.path(ActivityFile.name) }

  @Test("Percentiles and counts below a power of two agree with the durations")
  func percentiles() throws {
    var counts = [Int](repeating: 0, count: LatencyHistogram.bucketCount)
    for microseconds in 1...1000 { counts[LatencyHistogram.bucket(ofNanoseconds: UInt64(microseconds) * 1000)] += 1 }
    let histogram = LatencyHistogram(counts: counts, totalNanoseconds: 500_500_000)
    #expect(histogram.count == 1000)
    #expect(histogram.count(belowPowerOfTwo: 16) == 65)
    #expect(histogram.count(belowPowerOfTwo: 40) == 1000)
    for percentile in [1.0, 50, 90, 99, 100] {
      let exact = percentile * 10 * 1e-6
      let found = try #require(histogram.seconds(atPercentile: percentile))
      #expect(found >= exact && found <= exact * 1.125 + 1e-9)
    }
    #expect(LatencyHistogram().seconds(atPercentile: 50) == nil)
    #expect(histogram.since(histogram).count == 0)
  }

  @Test("Counts outlive the store that counted them")
  func reopening() throws {
    let fixture = try StoreFixture()
    fixture.store.store(fixture.response("http://a.example/"))
    fixture.drain()
    _ = fixture.body("http://a.example/")
    _ = fixture.body("http://a.example/absent")
    fixture.store.remove(.everything)
    fixture.drain()
    fixture.store.activity.countRefusal("no-store")
    try fixture.reopen()
    fixture.store.activity.countRefusal("no-store")
    let counts = try #require(fixture.store.directoryStatistics)
    #expect(counts.writes == 1)
    #expect(counts.writtenByteCount > 4)
    #expect(counts.diskLookups == 1)
    #expect(counts.missedLookups == 1)
    #expect(counts.purges == 1)
    #expect(counts.removals[.requested] == 1)
    #expect(counts.storageRefusals == ["no-store": 2])
    #expect(counts.opens == 2)
    // A new object counts from zero in its process.
    #expect(fixture.store.statistics.hits == 0)
  }

  @Test("Counts of 4 processes with 2 threads each are exact")
  func processes() async throws {
    let fixture = try StoreFixture()
    let directory = fixture.directory
    await withTaskGroup(of: Void.self) { group in
      for _ in 0..<4 {
        group.addTask {
          await #expect(processExitsWith: .success) { [directory = directory as String] in
            var options = quietOptions(capacity: 16 << 20)
            // Opens take turns, and this machine may be busy.
            options.openTimeout = .seconds(60)
            let store = try ResponseStore.open(directory: directory, options: options)
            let activity = store.activity
            let threads = (0..<2).map { _ in
              BackgroundThread {
                for number in 0..<2000 {
                  activity.countHit(activity.begin(isTimed: true), isStale: number % 10 == 0, byteCount: 3)
                  activity.countRefusal("rule-\(number % 7)")
                  activity.add(1, .misses)
                }
              }
            }
            for thread in threads { _ = thread?.join { $0.wait { $0 ? true : nil } ?? false } }
            store.close()
          }
        }
      }
    }
    let counts = try #require(fixture.store.directoryStatistics)
    #expect(counts.requests[.hit] == 14_400)
    #expect(counts.requests[.stale] == 1_600)
    #expect(counts.requests[.miss] == 16_000)
    #expect(counts.hitByteCount == 48_000)
    #expect(counts.storageRefusals.count == 7)
    #expect(counts.storageRefusals.values.reduce(0, +) == 16_000)
    #expect(counts.hitLatency.count > 0)
    #expect(counts.opens == 5)
  }

  @Test("A killed process loses at most the event that it was counting")
  func kill() async throws {
    let fixture = try StoreFixture()
    let noted = fixture.directory + ".noted"
    defer { unlink(noted) }
    await #expect(processExitsWith: .signal(SIGKILL)) {
      [directory = fixture.directory as String, noted = noted as String] in
      let store = try ResponseStore.open(directory: directory, options: quietOptions(capacity: 16 << 20))
      let descriptor = open(noted, O_RDWR | O_CREAT, 0o600)
      // Another thread ends the process in the middle of counting.
      Thread {
        var count = 0
        while count < 2000 { pread(descriptor, &count, 8, 0) }
        Glibc.kill(getpid(), SIGKILL)
      }.start()
      var count = 0
      while true {
        store.activity.add(1, .misses)
        count += 1
        pwrite(descriptor, &count, 8, 0)
      }
    }
    var count = 0
    let descriptor = open(noted, O_RDONLY)
    pread(descriptor, &count, 8, 0)
    close(descriptor)
    let misses = try #require(fixture.store.directoryStatistics?.requests[.miss])
    #expect(count >= 2000)
    #expect(misses == count || misses == count + 1)
  }

  @Test("A process for which the table has no row counts for the directory")
  func sharedRow() throws {
    let fixture = try StoreFixture()
    let file = try #require(fixture.store.activity.file)
    fixture.close()
    // As if another living process had the directory open 48 times.
    let owner = try #require(ProcessState(of: 1)?.owner)
    for number in 0..<ProcessTable.ownRowCount {
      let row = ProcessTable(base: file.base).row(number)
      ProcessTable.word(.owner, row).pointee.store(owner, ordering: .relaxed)
      ProcessTable.word(.openCount, row).pointee.store(1, ordering: .relaxed)
    }
    try fixture.open()
    let activity = fixture.store.activity
    activity.countHit(activity.begin(isTimed: false), isStale: true, byteCount: 7)
    activity.countRequest(.misses)
    let counts = try #require(fixture.store.directoryStatistics)
    #expect(counts.requestCount == 2 && counts.hitCount == 1 && counts.hitByteCount == 7)
    #expect(fixture.store.processes.allSatisfy { $0.requestCount == 0 })
  }

  @Test("A damaged number of granted events grants nothing")
  func damagedGrant() throws {
    let fixture = try StoreFixture()
    let activity = fixture.store.activity
    let granted = try #require(activity.file).header(ActivityLayout.HeaderWord.grantedEvents)
    for value in [UInt64.max, 1 << 40, ActivityLayout.maximumGrantedEvents + 1] {
      granted.pointee.store(value, ordering: .relaxed)
      #expect(!activity.isWatched && !activity.takeGrantedEvent())
    }
  }

  enum Damage: String, CaseIterable, Sendable {
    case missing, empty, truncated, otherVersion, ones, fifo, absurdCounter

    func apply(to path: String) throws {
      switch self {
      case .missing: unlink(path)
      case .empty: truncate(path, 0)
      case .truncated: truncate(path, 5000)
      case .otherVersion:
        let handle = try FileHandle(forUpdating: URL(fileURLWithPath: path))
        try handle.write(contentsOf: Data("LMBCCNT9".utf8))
        try handle.close()
      case .ones: try Data(repeating: 0xff, count: ActivityLayout.byteCount).write(to: URL(fileURLWithPath: path))
      case .fifo:
        unlink(path)
        mkfifo(path, 0o600)
      case .absurdCounter:
        let handle = try FileHandle(forUpdating: URL(fileURLWithPath: path))
        try handle.seek(toOffset: UInt64(ActivityLayout.countersOffset + 8))
        try handle.write(contentsOf: Data(repeating: 0xfe, count: 8))
        try handle.close()
      }
    }
  }

  @Test("A lost or damaged file begins at zero, and nothing else suffers", arguments: Damage.allCases)
  func damage(_ damage: Damage) throws {
    let fixture = try StoreFixture()
    fixture.store.store(fixture.response("http://a.example/"))
    fixture.drain()
    fixture.store.activity.add(5, .misses)
    fixture.close()
    try damage.apply(to: Self.path(fixture))
    // An inspection repairs nothing.
    // Reading a FIFO would wait.
    func contents() -> Data? {
      damage == .fifo ? nil : FileManager.default.contents(atPath: Self.path(fixture))
    }
    let before = contents()
    let existing = try ResponseStore.open(directory: fixture.directory, options: .existing)
    #expect(existing.directoryStatistics == nil)
    #expect(existing.entryCount == 1)
    existing.close()
    #expect(contents() == before)
    try fixture.open()
    let counts = try #require(fixture.store.directoryStatistics)
    #expect(counts.requestCount == 0)
    #expect(counts.opens == 1)
    #expect(abs(counts.since.timeIntervalSinceNow) < 600)
    #expect(fixture.body("http://a.example/") != nil)
    #expect(fixture.store.directoryStatistics?.diskLookups == 1)
  }

  @Test("Refusals by more rules than the file has slots are all counted")
  func manyRules() throws {
    let fixture = try StoreFixture()
    let long = String(repeating: "é", count: 100)
    for number in 0..<200 { fixture.store.activity.countRefusal("rule-\(number)") }
    fixture.store.activity.countRefusal(long)
    let refusals = try #require(fixture.store.directoryStatistics?.storageRefusals)
    #expect(refusals.values.reduce(0, +) == 201)
    #expect(refusals["rule-0"] == 1)
    #expect(refusals.count == 128)
  }
}

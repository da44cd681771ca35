import Foundation
import FoundationNetworking
import Glibc
import LMDBURLCache
import LoopbackOrigin
import Testing

@Suite("Capacities", .endsFixtures)
struct CapacityTests {
  func url(_ number: Int) -> URL { URL(string: "http://example.com/\(number)")! }

  func fill(_ cache: LMDBURLCache, count: Int, bodyByteCount: Int) {
    for number in 0..<count {
      let body = Data((0..<bodyByteCount).map { UInt8(truncatingIfNeeded: $0 &* 31 &+ number) })
      cache.storeCachedResponse(
        CachedURLResponse(response: httpResponse(url(number), ["Cache-Control": "max-age=600"]), data: body),
        for: URLRequest(url: url(number)))
    }
  }

  func countCached(_ cache: LMDBURLCache, of count: Int) -> Int {
    (0..<count).count { cache.isCached(url($0)) }
  }

  @Test("The memory tier stays within its capacity, and a smaller capacity evicts at once")
  func memory() async throws {
    let fixture = try CacheFixture(memory: 100_000, disk: 0)
    fill(fixture.cache, count: 100, bodyByteCount: 2_000)
    #expect(fixture.cache.currentMemoryUsage <= 100_000)
    #expect(fixture.cache.currentMemoryUsage > 70_000)
    #expect((25...49).contains(countCached(fixture.cache, of: 100)))
    // Eviction goes around the shards. It can meet a shard whose only entry is the newest one.
    #expect((90...99).contains { fixture.cache.isCached(url($0)) })
    fixture.cache.memoryCapacity = 10_000
    #expect(fixture.cache.memoryCapacity == 10_000)
    #expect(fixture.cache.currentMemoryUsage <= 10_000)
    fixture.cache.memoryCapacity = 0
    #expect(fixture.cache.currentMemoryUsage == 0)
    #expect(countCached(fixture.cache, of: 100) == 0)
    fill(fixture.cache, count: 1, bodyByteCount: 1)
    #expect(countCached(fixture.cache, of: 1) == 0)
    #expect(fixture.cache.statistics.disk == nil)
  }

  @Test("Recently used responses stay in the memory tier")
  func usedLately() async throws {
    let fixture = try CacheFixture(memory: 100_000, disk: 0)
    fill(fixture.cache, count: 1, bodyByteCount: 2_000)
    for number in 1..<200 {
      fixture.cache.storeCachedResponse(
        CachedURLResponse(response: httpResponse(url(number)), data: Data(count: 2_000)),
        for: URLRequest(url: url(number)))
      #expect(fixture.cache.cachedResponse(for: URLRequest(url: url(0))) != nil)
    }
  }

  @Test("Replacing and removing responses reduces the memory usage")
  func accounting() async throws {
    let fixture = try CacheFixture(disk: 0)
    for size in [10, 100_000, 10, 5_000] {
      fixture.cache.storeCachedResponse(
        CachedURLResponse(response: httpResponse(url(0)), data: Data(count: size)), for: URLRequest(url: url(0)))
      #expect((size...(size + 2_000)).contains(fixture.cache.currentMemoryUsage))
    }
    fixture.cache.removeCachedResponse(for: URLRequest(url: url(0)))
    #expect(fixture.cache.currentMemoryUsage == 0)
    fill(fixture.cache, count: 50, bodyByteCount: 100)
    fixture.cache.removeAllCachedResponses()
    #expect(fixture.cache.currentMemoryUsage == 0)
    #expect(fixture.cache.statistics.memoryEntryCount == 0)
  }

  @Test("A smaller disk capacity evicts before the assignment returns")
  func disk() async throws {
    let fixture = try CacheFixture(memory: 0, disk: 8 << 20)
    fill(fixture.cache, count: 100, bodyByteCount: 40_000)
    fixture.cache.flush()
    #expect(countCached(fixture.cache, of: 100) == 100)
    #expect(fixture.cache.currentDiskUsage > 4_000_000)
    fixture.cache.diskCapacity = 2 << 20
    #expect(fixture.cache.diskCapacity == 2 << 20)
    let kept = countCached(fixture.cache, of: 100)
    #expect((1...55).contains(kept))
    #expect(fixture.cache.isCached(url(99)))
    #expect(fixture.cache.core.store?.checkInvariants() == [])
  }

  @Test(
    "A disk capacity of 0 or below the minimum disables the disk tier and keeps the memory tier", arguments: [0, 1000])
  func noDisk(_ capacity: Int) async throws {
    let fixture = try CacheFixture()
    fill(fixture.cache, count: 3, bodyByteCount: 100)
    fixture.cache.flush()
    fixture.cache.diskCapacity = capacity
    #expect(fixture.cache.diskCapacity == capacity)
    #expect(countCached(fixture.cache, of: 3) == 3)
    #expect(fixture.cache.currentDiskUsage > 0)
    fixture.cache.memoryCapacity = 0
    #expect(countCached(fixture.cache, of: 3) == 0)
    fixture.cache.diskCapacity = LMDBURLCache.minimumDiskCapacity
    #expect(countCached(fixture.cache, of: 3) == 0)
    fill(fixture.cache, count: 1, bodyByteCount: 100)
    #expect(countCached(fixture.cache, of: 1) == 1)
  }

  @Test("Setting a disk capacity later opens the store")
  func openedLater() async throws {
    let fixture = try CacheFixture(memory: 0, disk: 0)
    #expect(!FileManager.default.fileExists(atPath: fixture.directory.path))
    #expect(fixture.cache.currentDiskUsage == 0)
    fixture.cache.diskCapacity = 4 << 20
    fill(fixture.cache, count: 1, bodyByteCount: 100)
    #expect(countCached(fixture.cache, of: 1) == 1)
    try fixture.reopen()
    #expect(countCached(fixture.cache, of: 1) == 1)
  }

  @Test("A session's response may use 5% of the larger present capacity")
  func fivePercent() async throws {
    let sizes = ["/small": 49_000, "/large": 55_000]
    try await withCache(memory: 1_000_000, disk: 0) { request in
      Reply(200, [("Cache-Control", "max-age=600")], body: Data(count: sizes[request.path] ?? 0))
    } _: { (fixture, origin) async throws in
      let session = fixture.session()
      for path in ["/small", "/large"] { _ = try await session.data(from: origin.url(path)) }
      #expect(fixture.cache.isCached(origin.url("/small")))
      #expect(!fixture.cache.isCached(origin.url("/large")))
      fixture.cache.memoryCapacity = 1_200_000
      _ = try await session.data(from: origin.url("/large"))
      #expect(fixture.cache.isCached(origin.url("/large")))
      fixture.cache.memoryCapacity = 1_000_000
      fixture.cache.removeAllCachedResponses()
      fixture.cache.diskCapacity = 2 << 20
      _ = try await session.data(from: origin.url("/large"))
      #expect(fixture.cache.isCached(origin.url("/large")))
    }
  }

  @Test("If a disk capacity cannot be applied, the previous one stays in effect")
  func tooLittleAddressSpace() async {
    await #expect(processExitsWith: .success) {
      try await FixtureScope.run {
        let lines = LogLines()
        let fixture = try CacheFixture { $0.log = { lines.append($0) } }
        let cache = fixture.cache
        let pages = try String(contentsOfFile: "/proc/self/statm", encoding: .utf8).prefix { $0.isNumber }
        let byteCount = (Int(pages) ?? 0) * Int(getpagesize())
        var limit = rlimit()
        getrlimit(__rlimit_resource_t(RLIMIT_AS.rawValue), &limit)
        limit.rlim_cur = rlim_t(byteCount + (256 << 20))
        setrlimit(__rlimit_resource_t(RLIMIT_AS.rawValue), &limit)
        cache.diskCapacity = 4 << 30
        guard cache.diskCapacity == 16 << 20 else { exit(11) }
        guard lines.all.contains(where: { $0.contains("The capacity could not be set") }) else { exit(12) }
        limit.rlim_cur = limit.rlim_max
        setrlimit(__rlimit_resource_t(RLIMIT_AS.rawValue), &limit)
        cache.diskCapacity = 32 << 20
        guard cache.diskCapacity == 32 << 20 else { exit(13) }
        let url = URL(string: "http://example.com/a")!
        cache.storeCachedResponse(cached(url), for: URLRequest(url: url))
        guard cache.flush(), cache.isCached(url) else { exit(14) }
      }
    }
  }

  @Test("Negative capacities trap")
  func negative() async {
    await #expect(processExitsWith: .failure) {
      _ = LMDBURLCache(memoryCapacity: -1, diskCapacity: 0, diskPath: "/nonexistent")
    }
    await #expect(processExitsWith: .failure) {
      _ = LMDBURLCache(memoryCapacity: 0, diskCapacity: -1, diskPath: "/nonexistent")
    }
    await #expect(processExitsWith: .failure) {
      LMDBURLCache(memoryCapacity: 0, diskCapacity: 0, diskPath: "/nonexistent").memoryCapacity = -1
    }
    await #expect(processExitsWith: .failure) {
      LMDBURLCache(memoryCapacity: 0, diskCapacity: 0, diskPath: "/nonexistent").diskCapacity = -1
    }
  }
}

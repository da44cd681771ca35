import Foundation
import FoundationNetworking
import Glibc
import LMDBURLCache
import Testing

/// A disk tier that fails while the cache is in use recovers by itself.
@Suite("Recovery", .endsFixtures)
struct RecoveryTests {
  static let url = URL(string: "http://example.com/a")!

  private func store(_ cache: LMDBURLCache, _ url: URL = url, _ text: String = "body") {
    cache.storeCachedResponse(cached(url, text), for: URLRequest(url: url))
  }

  /// Waits until the cache has a store that has not failed.
  private func waitForRecovery(_ cache: LMDBURLCache) async throws {
    let deadline = ContinuousClock.now + .seconds(30)
    while cache.core.store?.hasFailed != false, ContinuousClock.now < deadline {
      // A lookup triggers the recovery.
      _ = cache.isCached(Self.url)
      try await Task.sleep(for: .milliseconds(5))
    }
    #expect(cache.core.store?.hasFailed == false)
  }

  private func mode(_ path: String) -> mode_t? {
    var status = stat()
    return lstat(path, &status) == 0 ? status.st_mode & 0o7777 : nil
  }

  @Test("After corruption lookups miss, and soon the same cache stores and hits again", arguments: [0, 4 << 20])
  func damage(memory: Int) async throws {
    let fixture = try CacheFixture(memory: memory)
    let cache = fixture.cache
    store(cache)
    #expect(cache.flush())
    #expect(cache.isCached(Self.url))
    let stores = cache.statistics.disk?.writes
    let old = cache.core.store
    try damageCounters(of: fixture.directory)
    // The next commit detects the corruption.
    store(cache, URL(string: "http://example.com/b")!)
    #expect(!cache.flush())
    #expect(old?.hasFailed == true)
    #expect(!cache.isCached(Self.url))
    try await waitForRecovery(cache)
    #expect(!cache.isCached(Self.url))
    store(cache)
    #expect(cache.flush())
    #expect(cache.isCached(Self.url))
    #expect(cache.core.store?.entryCount == 1)
    #expect(cache.statistics.disk?.writes == stores.map { $0 + 1 })
    #expect(mode(fixture.directory.path + "/data-2/data.mdb") == 0o600)
    #expect(mode(fixture.directory.path + "/data-1") == nil)
    let lines = fixture.logged.all
    #expect(lines.count { $0.contains("The store failed") } == 1)
    #expect(lines.count { $0.contains("is on again") } == 1)
  }

  @Test("A deleted directory is created again for the owner only, and two of its caches keep sharing it")
  func deletedDirectory() async throws {
    let fixture = try CacheFixture(memory: 0)
    let cache = fixture.cache
    let second = try LMDBURLCache(directory: fixture.directory, memoryCapacity: 1 << 20, diskCapacity: 16 << 20)
    store(cache)
    #expect(cache.flush())
    #expect(second.isCached(Self.url))
    try FileManager.default.removeItem(at: fixture.directory)
    store(cache)
    cache.flush()
    try await waitForRecovery(cache)
    try await waitForRecovery(second)
    #expect(cache.core.store === second.core.store)
    #expect(!cache.isCached(Self.url))
    #expect(!second.isCached(Self.url))
    store(cache)
    #expect(cache.flush())
    #expect(second.isCached(Self.url))
    #expect(mode(fixture.directory.path) == 0o700)
    for name in try FileManager.default.subpathsOfDirectory(atPath: fixture.directory.path) {
      #expect(mode(fixture.directory.path + "/" + name) == (name == "data-1" ? 0o700 : 0o600), "\(name)")
    }
  }

  @Test("A response that a cache drops because its store failed replaces the older one in a cache that has recovered")
  func droppedWhileOffline() async throws {
    let fixture = try CacheFixture(memory: 0)
    let recovered = fixture.cache
    let offline = try LMDBURLCache(directory: fixture.directory, memoryCapacity: 0, diskCapacity: 16 << 20)
    store(recovered)
    #expect(recovered.flush())
    try FileManager.default.removeItem(at: fixture.directory)
    store(recovered)
    recovered.flush()
    try await waitForRecovery(recovered)
    store(recovered)
    #expect(recovered.flush())
    #expect(recovered.isCached(Self.url))
    // No lookup or write of this cache has triggered its recovery yet.
    #expect(offline.core.connection.openStore.load()?.hasFailed == true)
    store(offline, Self.url, "newer")
    #expect(!recovered.isCached(Self.url))
    try await waitForRecovery(offline)
    #expect(!offline.isCached(Self.url))
  }

  @Test("A response that a cache without a disk tier stores replaces the older one in the other caches")
  func withoutDiskTier() async throws {
    let fixture = try CacheFixture(memory: 0)
    let memoryOnly = try LMDBURLCache(directory: fixture.directory, memoryCapacity: 1 << 20, diskCapacity: 0)
    store(fixture.cache)
    #expect(fixture.cache.flush())
    store(memoryOnly, Self.url, "newer")
    #expect(!fixture.cache.isCached(Self.url))
    #expect(memoryOnly.cachedResponse(for: URLRequest(url: Self.url))?.data == Data("newer".utf8))
  }

  @Test("A flush reports once, to each cache, that writes were lost with a failed store")
  func lossBefore() async throws {
    let fixture = try CacheFixture(memory: 0)
    let cache = fixture.cache
    store(cache)
    #expect(cache.flush())
    let second = try LMDBURLCache(directory: fixture.directory, memoryCapacity: 0, diskCapacity: 16 << 20)
    let old = cache.core.store
    try FileManager.default.removeItem(at: fixture.directory)
    store(cache, URL(string: "http://example.com/b")!)
    let deadline = ContinuousClock.now + .seconds(30)
    while old?.hasFailed == false, ContinuousClock.now < deadline { try await Task.sleep(for: .milliseconds(1)) }
    try await waitForRecovery(cache)
    try await waitForRecovery(second)
    #expect(!cache.flush())
    #expect(cache.flush())
    #expect(!second.flush())
    store(second)
    #expect(second.flush())
    #expect(cache.isCached(Self.url))
  }

  @Test("The background thread detects a deleted directory without writes and removals")
  func deletedBehindMemory() async throws {
    let fixture = try CacheFixture()
    let cache = fixture.cache
    store(cache)
    #expect(cache.flush())
    try FileManager.default.removeItem(at: fixture.directory)
    let deadline = ContinuousClock.now + .seconds(30)
    while cache.isCached(Self.url), ContinuousClock.now < deadline { try await Task.sleep(for: .milliseconds(20)) }
    #expect(!cache.isCached(Self.url))
    try await waitForRecovery(cache)
    store(cache)
    #expect(cache.flush())
    #expect(cache.isCached(Self.url))
  }

  @Test("A removal reaches responses that another process stored after recreating the store")
  func removalAfterAnother() async throws {
    let fixture = try CacheFixture()
    let cache = fixture.cache
    store(cache)
    #expect(cache.flush())
    try damageCounters(of: fixture.directory)
    // Detects the corruption, and does not trigger a recovery.
    _ = cache.core.store?.statistics
    #expect(cache.core.store?.hasFailed == true)
    setenv("LMDBURLCACHE_TEST_DIRECTORY", fixture.directory.path, 1)
    defer { unsetenv("LMDBURLCACHE_TEST_DIRECTORY") }
    await #expect(processExitsWith: .success) {
      let path = ProcessInfo.processInfo.environment["LMDBURLCACHE_TEST_DIRECTORY"]!
      let other = try LMDBURLCache(directory: URL(fileURLWithPath: path), memoryCapacity: 0, diskCapacity: 16 << 20)
      for name in ["a", "kept"] {
        let url = URL(string: "http://example.com/\(name)")!
        other.storeCachedResponse(cached(url), for: URLRequest(url: url))
      }
      guard other.flush() else { exit(1) }
      exit(0)
    }
    cache.removeCachedResponse(for: URLRequest(url: Self.url))
    #expect(cache.core.store?.hasFailed == false)
    #expect(!cache.isCached(Self.url))
    #expect(cache.isCached(URL(string: "http://example.com/kept")!))
  }

  @Test("A process stores and finds responses while another one has not noticed that the data failed")
  func twoProcesses() async throws {
    let fixture = try CacheFixture(memory: 0)
    let cache = fixture.cache
    store(cache)
    #expect(cache.flush())
    let ready = fixture.directory.path + ".ready"
    defer { unlink(ready) }
    setenv("LMDBURLCACHE_TEST_DIRECTORY", fixture.directory.path, 1)
    defer { unsetenv("LMDBURLCACHE_TEST_DIRECTORY") }
    async let child: Void = {
      await #expect(processExitsWith: .success) {
        let path = ProcessInfo.processInfo.environment["LMDBURLCACHE_TEST_DIRECTORY"]!
        let other = try LMDBURLCache(
          directory: URL(fileURLWithPath: path), memoryCapacity: 0, diskCapacity: 16 << 20)
        guard other.isCached(RecoveryTests.url) else { exit(1) }
        close(open(path + ".ready", O_CREAT | O_WRONLY, 0o600))
        // Idle until the other process has recreated the store and closed it, then in use again.
        while access(path + ".ready", F_OK) == 0 { usleep(10_000) }
        let url = URL(string: "http://example.com/other")!
        for _ in 0..<1000 where !other.isCached(url) {
          other.storeCachedResponse(cached(url), for: URLRequest(url: url))
          usleep(10_000)
        }
        // This flush reports a failure if one of these stores went to the data that had failed.
        other.flush()
        exit(other.flush() && other.isCached(url) ? 0 : 2)
      }
    }()
    while access(ready, F_OK) != 0 { try await Task.sleep(for: .milliseconds(5)) }
    try damageCounters(of: fixture.directory)
    store(cache, URL(string: "http://example.com/b")!)
    #expect(!cache.flush())
    try await waitForRecovery(cache)
    store(cache)
    #expect(cache.flush())
    unlink(ready)
    await child
    #expect(cache.isCached(Self.url))
    #expect(cache.isCached(URL(string: "http://example.com/other")!))
  }

  @Test("A copy in memory misses as soon as another process has begun another generation, in which it purges")
  func purgeInNextGeneration() async throws {
    let fixture = try CacheFixture()
    let cache = fixture.cache
    store(cache)
    #expect(cache.flush())
    try damageCounters(of: fixture.directory)
    await #expect(processExitsWith: .success) { [path = fixture.directory.path as String] in
      let other = try LMDBURLCache(directory: URL(fileURLWithPath: path), memoryCapacity: 0, diskCapacity: 16 << 20)
      other.removeAllCachedResponses()
      exit(other.flush() ? 0 : 1)
    }
    #expect(!cache.isCached(Self.url))
    store(cache)
    try await waitForRecovery(cache)
    store(cache)
    #expect(cache.isCached(Self.url))
  }

  @Test("Pauses between attempts grow up to a minute, and start again after an hour without failures")
  func pauses() {
    var recovery = ConnectionState.Backoff()
    var now = ContinuousClock.now
    var pauses: [Duration] = []
    for _ in 0..<9 {
      let began = now
      while !recovery.begin(at: now) { now += .seconds(1) }
      let beginsTwice = recovery.begin(at: now)
      #expect(!beginsTwice)
      recovery.end(at: now)
      pauses.append(now - began)
    }
    #expect(pauses == [0, 1, 2, 4, 8, 16, 32, 60, 60].map { .seconds($0) })
    now += .seconds(3700)
    let begins = recovery.begin(at: now)
    recovery.end(at: now)
    let beginsSoon = recovery.begin(at: now + .seconds(1))
    #expect(begins && beginsSoon)
  }

  /// Corrupts the store's counters, which every commit reads, without the knowledge of the processes that use it.
  private func damageCounters(of directory: URL) throws {
    let path = directory.path + "/data-1/data.mdb"
    let data = try Data(contentsOf: URL(fileURLWithPath: path))
    let descriptor = open(path, O_RDWR)
    defer { close(descriptor) }
    let noise = [UInt8](repeating: 0xEE, count: 16)
    var start = data.startIndex
    var count = 0
    while let found = data.range(of: Data("counters".utf8), in: start..<data.endIndex) {
      #expect(pwrite(descriptor, noise, noise.count, off_t(found.upperBound)) == noise.count)
      start = found.upperBound
      count += 1
    }
    #expect(count > 0)
  }
}

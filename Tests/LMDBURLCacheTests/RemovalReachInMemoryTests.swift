import Foundation
import FoundationNetworking
import Glibc
import LMDBURLCache
import LoopbackOrigin
import Synchronization
import Testing

/// A cache without a disk tier, in a directory that other caches use.
@Suite("Removals by others without a disk tier", .endsFixtures, .timeLimit(.minutes(1)))
struct RemovalReachInMemoryTests {
  private let url = URL(string: "http://example.com/a")!

  @Test("A removal by another cache reaches the memory tier after the disk capacity was set to 0")
  func capacityTakenLater() async throws {
    let fixture = try CacheFixture()
    let cache = fixture.cache
    cache.storeCachedResponse(cached(url), for: URLRequest(url: url))
    cache.diskCapacity = 0
    #expect(cache.isCached(url))
    let second = try LMDBURLCache(directory: fixture.directory, memoryCapacity: 0, diskCapacity: 16 << 20)
    second.removeCachedResponses(forHost: "example.org")
    #expect(cache.isCached(url))
    second.removeCachedResponse(for: URLRequest(url: url))
    #expect(!cache.isCached(url))
    cache.storeCachedResponse(cached(url), for: URLRequest(url: url))
    #expect(cache.isCached(url))
  }

  @Test(
    "A removal by another process reaches a cache without a disk capacity, and does not change the store's capacity")
  func neverACapacity() async throws {
    let fixture = try CacheFixture(disk: 0)
    #expect(fixture.cache.core.connection.openStore.load() == nil)
    await #expect(processExitsWith: .success) { [path = fixture.directory.path as String] in
      let other = try LMDBURLCache(
        directory: URL(fileURLWithPath: path), memoryCapacity: 0, diskCapacity: 12 << 20)
      guard other.flush() else { exit(1) }
    }
    try fixture.reopen(disk: 0)
    let cache = fixture.cache
    cache.storeCachedResponse(cached(url), for: URLRequest(url: url))
    #expect(cache.isCached(url))
    #expect(cache.statistics.disk == nil)
    await #expect(processExitsWith: .success) { [path = fixture.directory.path as String] in
      let directory = try CacheDirectory(existingAt: URL(fileURLWithPath: path))
      guard directory.capacityByteCount == 12 << 20 else { exit(1) }
      try directory.remove(.all)
    }
    #expect(!cache.isCached(url))
  }

  @Test("The memory tier continues if the directory of a cache without a disk tier is deleted")
  func directoryDeleted() async throws {
    let fixture = try CacheFixture()
    let cache = fixture.cache
    cache.diskCapacity = 0
    cache.storeCachedResponse(cached(url), for: URLRequest(url: url))
    try FileManager.default.removeItem(at: fixture.directory)
    // The cache detects the deletion now.
    cache.removeCachedResponses(forHost: "example.org")
    #expect(cache.core.connection.openStore.load() == nil)
    #expect(!cache.isCached(url))
    cache.storeCachedResponse(cached(url), for: URLRequest(url: url))
    #expect(cache.isCached(url))
    #expect(!FileManager.default.fileExists(atPath: fixture.directory.path))
    cache.removeCachedResponse(for: URLRequest(url: url))
    #expect(!cache.isCached(url))
  }

  /// Creates a store in the directory of a cache that has none.
  enum Maker: CaseIterable {
    case cacheWithDisk, throwingWithoutDisk, process

    /// Creates the store if needed, and removes everything.
    func removeAll(in directory: URL) async throws {
      switch self {
      case .cacheWithDisk:
        try LMDBURLCache(directory: directory, memoryCapacity: 0, diskCapacity: 16 << 20).removeAllCachedResponses()
      case .throwingWithoutDisk:
        // The first cache has closed its store, so that only the second refers to it.
        _ = try LMDBURLCache(directory: directory, memoryCapacity: 0, diskCapacity: 16 << 20)
        try LMDBURLCache(directory: directory, memoryCapacity: 0, diskCapacity: 0).removeAllCachedResponses()
      case .process:
        await #expect(processExitsWith: .success) { [path = directory.path as String] in
          try LMDBURLCache(directory: URL(fileURLWithPath: path), memoryCapacity: 0, diskCapacity: 16 << 20)
            .removeAllCachedResponses()
        }
      }
    }
  }

  /// Waits until lookups have made the cache open the store in its directory.
  private func waitForStore(_ cache: LMDBURLCache) async throws {
    try await waitInTask {
      _ = cache.core.connection.removalToken
      return cache.core.connection.openStore.load() != nil
    }
    #expect(cache.core.connection.openStore.load() != nil)
  }

  @Test("A removal reaches a cache without a disk tier whose store was created later", arguments: Maker.allCases)
  func storeMadeLater(_ maker: Maker) async throws {
    let fixture = try CacheFixture(disk: 0)
    let cache = fixture.cache
    cache.storeCachedResponse(cached(url), for: URLRequest(url: url))
    #expect(cache.isCached(url))
    try await maker.removeAll(in: fixture.directory)
    #expect(!cache.isCached(url))
    // From now on the cache keeps responses, and each removal is applied to them.
    try await waitForStore(cache)
    #expect(!cache.isCached(url))
    cache.storeCachedResponse(cached(url), for: URLRequest(url: url))
    #expect(cache.isCached(url))
    try CacheDirectory(existingAt: fixture.directory).remove(.host("example.org"))
    #expect(cache.isCached(url))
    try CacheDirectory(existingAt: fixture.directory).remove(.all)
    #expect(!cache.isCached(url))
    #expect(fixture.logged.all == [])
  }

  @Test("A removal by a cache without a disk tier applies to a store that was created later")
  func ownRemoval() async throws {
    let fixture = try CacheFixture(disk: 0)
    let second = try LMDBURLCache(directory: fixture.directory, memoryCapacity: 1 << 20, diskCapacity: 16 << 20)
    second.storeCachedResponse(cached(url), for: URLRequest(url: url))
    fixture.cache.removeCachedResponse(for: URLRequest(url: url))
    #expect(!second.isCached(url))
    #expect(fixture.cache.core.connection.openStore.load() != nil)
  }

  @Test("The response of a fetch is not stored if a store was created and cleared in the meantime")
  func fetchInFlight() async throws {
    let gate = Gate()
    try await withCache(disk: 0) { request in
      let reply = Reply(200, [("Cache-Control", "max-age=600")], "\(request.number)")
      return request.number > 0 ? reply : reply.held(at: gate)
    } _: { (fixture, origin) async throws in
      let (url, cache) = (origin.url("/a"), fixture.cache)
      async let early = cache.data(from: url)
      await gate.waitForArrivals()
      try await Maker.cacheWithDisk.removeAll(in: fixture.directory)
      // A request after the removal does not join the old fetch.
      #expect(try await cache.data(from: url).0.text == "1")
      gate.open()
      #expect(try await early.0.text == "0")
      #expect(try await cache.data(from: url).0.text != "0")
      try await waitForStore(cache)
      #expect(try await cache.data(from: url).0.text != "0")
    }
  }

  @Test("Concurrent writes and lookups during the creation of a store return no removed response")
  func manyThreads() async throws {
    for _ in 0..<10 {
      let fixture = try CacheFixture(disk: 0)
      let cache = fixture.cache
      let isStoring = Atomic(true)
      let isRemoved = Atomic(false)
      let violationCount = Atomic(0)
      let (storer, readers) = (DispatchGroup(), DispatchGroup())
      DispatchQueue(label: "storer").async(group: storer) {
        while isStoring.load(ordering: .relaxed) {
          cache.storeCachedResponse(cached(url), for: URLRequest(url: url))
        }
      }
      for _ in 0..<2 {
        DispatchQueue(label: "reader").async(group: readers) {
          // Some lookups after the removal.
          var count = 0
          while count < 100 {
            let wasRemoved = isRemoved.load(ordering: .acquiring)
            if wasRemoved { count += 1 }
            if cache.isCached(url), wasRemoved { violationCount.add(1, ordering: .relaxed) }
          }
        }
      }
      let second = try LMDBURLCache(directory: fixture.directory, memoryCapacity: 0, diskCapacity: 4 << 20)
      isStoring.store(false, ordering: .relaxed)
      await withCheckedContinuation { continuation in storer.notify(queue: .global()) { continuation.resume() } }
      second.removeAllCachedResponses()
      isRemoved.store(true, ordering: .releasing)
      await withCheckedContinuation { continuation in readers.notify(queue: .global()) { continuation.resume() } }
      #expect(violationCount.load(ordering: .relaxed) == 0)
    }
  }

  @Test("The memory tier continues next to a foreign file, and is cleared with a store that replaces the file")
  func foreignFile() async throws {
    let fixture = try CacheFixture(disk: 0)
    let cache = fixture.cache
    cache.storeCachedResponse(cached(url), for: URLRequest(url: url))
    try FileManager.default.createDirectory(at: fixture.directory, withIntermediateDirectories: true)
    let file = fixture.directory.appendingPathComponent("data.mdb")
    try Data("not a store".utf8).write(to: file)
    try await waitInTask {
      cache.storeCachedResponse(cached(url), for: URLRequest(url: url))
      return cache.isCached(url)
    }
    #expect(cache.isCached(url))
    #expect(fixture.logged.all == [])
    try FileManager.default.moveItem(at: file, to: fixture.directory.appendingPathComponent("moved"))
    try await Maker.cacheWithDisk.removeAll(in: fixture.directory)
    #expect(!cache.isCached(url))
  }
}

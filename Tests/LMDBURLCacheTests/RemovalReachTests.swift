import Foundation
import FoundationNetworking
import Glibc
import LMDBURLCache
import LoopbackOrigin
import Synchronization
import Testing

/// Removals by other caches and processes reach this cache's memory tier and its in-flight fetches.
@Suite("Removals by others", .endsFixtures, .timeLimit(.minutes(1)))
struct RemovalReachTests {
  /// A remover other than the cache that stores or fetches the response.
  enum Remover: CaseIterable {
    case secondCache, directory, process

    func removeAll(of fixture: CacheFixture) async throws {
      switch self {
      case .secondCache:
        let second = try LMDBURLCache(directory: fixture.directory, memoryCapacity: 0, diskCapacity: 16 << 20)
        second.removeAllCachedResponses()
      case .directory: try CacheDirectory(existingAt: fixture.directory).remove(.all)
      case .process:
        setenv("LMDBURLCACHE_TEST_DIRECTORY", fixture.directory.path, 1)
        defer { unsetenv("LMDBURLCACHE_TEST_DIRECTORY") }
        await #expect(processExitsWith: .success) {
          let path = ProcessInfo.processInfo.environment["LMDBURLCACHE_TEST_DIRECTORY"]!
          try CacheDirectory(existingAt: URL(fileURLWithPath: path)).remove(.all)
        }
      }
    }

    func post(to url: URL, cachingIn directory: URL) async throws {
      guard self == .process else {
        let cache = try LMDBURLCache(directory: directory, memoryCapacity: 0, diskCapacity: 16 << 20)
        _ = try await cache.data(for: URLRequest(url, method: "POST"))
        return
      }
      setenv("LMDBURLCACHE_TEST_DIRECTORY", directory.path, 1)
      setenv("LMDBURLCACHE_TEST_URL", url.absoluteString, 1)
      defer {
        unsetenv("LMDBURLCACHE_TEST_DIRECTORY")
        unsetenv("LMDBURLCACHE_TEST_URL")
      }
      await #expect(processExitsWith: .success) {
        let environment = ProcessInfo.processInfo.environment
        let directory = URL(fileURLWithPath: environment["LMDBURLCACHE_TEST_DIRECTORY"]!)
        let url = URL(string: environment["LMDBURLCACHE_TEST_URL"]!)!
        let cache = try LMDBURLCache(directory: directory, memoryCapacity: 0, diskCapacity: 16 << 20)
        _ = try await cache.data(for: URLRequest(url, method: "POST"))
      }
    }
  }

  @Test("After one lookup finds a memory entry removed, no thread that holds the entry can use it")
  func memoryEntry() async throws {
    let fixture = try CacheFixture()
    let cache = fixture.cache
    let url = URL(string: "http://example.com/a")!
    cache.storeCachedResponse(cached(url), for: URLRequest(url: url))
    // Another thread may hold this entry before it checks the removal log.
    let key = try #require(RequestKey(url: url))
    let entry = try #require(cache.core.memory.lookup(key) { _ in true })
    try await Remover.secondCache.removeAll(of: fixture)
    #expect(!cache.isCached(url))
    #expect(cache.core.use(entry) == nil)
  }

  @Test(
    "A fetch in flight does not store its response after an unsafe request by another cache or process",
    arguments: [Remover.secondCache, .process])
  func unsafeRequest(by other: Remover) async throws {
    let gate = Gate()
    try await withCache { request in
      let reply = Reply(200, [("Cache-Control", "max-age=600")], request.method)
      return request.method == "POST" ? reply : reply.held(at: gate)
    } _: { (fixture, origin) async throws in
      let url = origin.url("/a")
      let cache = fixture.cache
      async let response = cache.data(from: url)
      await gate.waitForArrivals()
      try await other.post(to: url, cachingIn: fixture.directory)
      gate.open()
      #expect(try await response.0.text == "GET")
      #expect(!cache.isCached(url))
    }
  }

  @Test("No thread gets a response from memory that a second cache has removed")
  func manyThreads() async throws {
    let fixture = try CacheFixture()
    let cache = fixture.cache
    let url = URL(string: "http://example.com/a")!
    let second = try LMDBURLCache(directory: fixture.directory, memoryCapacity: 0, diskCapacity: 16 << 20)
    let isOver = Atomic(false)
    // The last version covered by a removal that has returned.
    let removedVersion = Atomic(0)
    let violationCount = Atomic(0)
    let readers = DispatchGroup()
    for _ in 0..<8 {
      DispatchQueue(label: "reader").async(group: readers) {
        while !isOver.load(ordering: .relaxed) {
          let removed = removedVersion.load(ordering: .acquiring)
          guard let found = cache.cachedResponse(for: URLRequest(url: url)), let version = Int(found.data.text) else {
            continue
          }
          if version <= removed { violationCount.add(1, ordering: .relaxed) }
        }
      }
    }
    for version in 1...300 {
      cache.storeCachedResponse(cached(url, "\(version)"), for: URLRequest(url: url))
      second.removeCachedResponse(for: URLRequest(url: url))
      removedVersion.store(version, ordering: .releasing)
    }
    isOver.store(true, ordering: .relaxed)
    await withCheckedContinuation { continuation in readers.notify(queue: .global()) { continuation.resume() } }
    #expect(violationCount.load(ordering: .relaxed) == 0)
  }

  @Test(
    "The response of a fetch that began before a removal is not stored", arguments: Remover.allCases, [true, false])
  func fetchInFlight(_ remover: Remover, inSession: Bool) async throws {
    let gate = Gate()
    try await withCache { request in
      let reply = Reply(200, [("Cache-Control", "max-age=600")], "\(request.number)")
      return request.number > 0 ? reply : reply.held(at: gate)
    } _: { (fixture, origin) async throws in
      let (url, cache) = (origin.url("/a"), fixture.cache)
      let session = fixture.session()
      async let early = inSession ? session.data(from: url) : cache.data(from: url)
      await gate.waitForArrivals()
      try await remover.removeAll(of: fixture)
      // A request after the removal does not join the old fetch.
      #expect(try await cache.data(from: url).0.text == "1")
      gate.open()
      #expect(try await early.0.text == "0")
      #expect(try await cache.data(from: url).0.text == "1")
      try fixture.reopen()
      #expect(try await fixture.cache.data(from: url).0.text == "1")
    }
  }

  /// Loads a URL, and calls `action` while the origin holds its reply. Returns the text of the response.
  private func text(
    of request: URLRequest, in cache: LMDBURLCache, _ gate: Gate, during action: () async throws -> Void
  ) async throws -> String {
    async let response = cache.data(for: request)
    await gate.waitForArrivals()
    try await action()
    gate.open()
    return try await response.0.text
  }

  @Test("A fetch that began before a removal stores nothing", arguments: Remover.allCases)
  func nothingIsLeft(_ remover: Remover) async throws {
    let gate = Gate()
    try await withCache { _ in
      Reply(200, [("Cache-Control", "max-age=600")], "old").held(at: gate)
    } _: { (fixture, origin) async throws in
      let (url, cache) = (origin.url("/a"), fixture.cache)
      let text = try await text(of: URLRequest(url: url), in: cache, gate) { try await remover.removeAll(of: fixture) }
      #expect(text == "old")
      #expect(!cache.isCached(url))
      #expect(cache.client.statistics.storageRefusals["invalidated-in-flight"] == 1)
      cache.flush()
      #expect(cache.core.store?.entryCount == 0)
    }
  }

  @Test(
    "A validation that began before a removal does not restore the response", arguments: Remover.allCases)
  func validationInFlight(_ remover: Remover) async throws {
    let gate = Gate()
    try await withCache { request in
      let fields = [("ETag", "\"1\""), ("Cache-Control", "max-age=60")]
      if request["If-None-Match"] != nil { return Reply(304, fields).held(at: gate) }
      return Reply(200, fields, "body")
    } _: { (fixture, origin) async throws in
      let (url, cache) = (origin.url("/a"), fixture.cache)
      _ = try await cache.data(from: url)
      fixture.clock.advance(by: 100)
      let text = try await text(of: URLRequest(url: url), in: cache, gate) { try await remover.removeAll(of: fixture) }
      #expect(text == "body")
      #expect(!cache.isCached(url))
      try fixture.reopen()
      #expect(!fixture.cache.isCached(url))
    }
  }

  @Test("A removed response is not served in place of an origin's error")
  func staleOnError() async throws {
    let gate = Gate()
    try await withCache { request in
      let fields = [("Cache-Control", "max-age=60, stale-if-error=600")]
      return request.number == 0 ? Reply(200, fields, "old") : Reply(503, [], "failure").held(at: gate)
    } _: { (fixture, origin) async throws in
      let (url, cache) = (origin.url("/a"), fixture.cache)
      _ = try await cache.data(from: url)
      fixture.clock.advance(by: 100)
      let text = try await text(of: URLRequest(url: url), in: cache, gate) {
        try await Remover.secondCache.removeAll(of: fixture)
      }
      #expect(text == "failure")
    }
  }

  @Test("A removal that does not cover an in-flight fetch does not revoke its store permit")
  func uncovered() async throws {
    let gate = Gate()
    try await withCache { _ in
      Reply(200, [("Cache-Control", "max-age=600")], "body").held(at: gate)
    } _: { (fixture, origin) async throws in
      let (url, cache) = (origin.url("/a"), fixture.cache)
      let text = try await text(of: URLRequest(url: url), in: cache, gate) {
        try CacheDirectory(existingAt: fixture.directory).remove(.host("other.example"))
      }
      #expect(text == "body")
      #expect(cache.isCached(url))
      cache.flush()
      #expect(cache.core.store?.entryCount == 1)
    }
  }

  @Test("The response to a POST is stored although the POST invalidates its URL")
  func ownInvalidation() async throws {
    try await withCache { request in
      let fields = [("Cache-Control", "max-age=600"), ("Content-Location", request.path)]
      return Reply(200, fields, request.method)
    } _: { (fixture, origin) async throws in
      let (url, cache) = (origin.url("/a"), fixture.cache)
      _ = try await cache.data(from: url)
      #expect(try await cache.data(for: URLRequest(url, method: "POST")).0.text == "POST")
      #expect(try await cache.data(from: url).0.text == "POST")
    }
  }

  @Test("The response to a POST is not stored if another cache removes it in flight")
  func postInFlight() async throws {
    let gate = Gate()
    try await withCache { request in
      let fields = [("Cache-Control", "max-age=600"), ("Content-Location", request.path)]
      let reply = Reply(200, fields, request.method)
      return request.method == "POST" ? reply.held(at: gate) : reply
    } _: { (fixture, origin) async throws in
      let (url, cache) = (origin.url("/a"), fixture.cache)
      _ = try await cache.data(from: url)
      let text = try await text(of: URLRequest(url, method: "POST"), in: cache, gate) {
        try await Remover.secondCache.removeAll(of: fixture)
      }
      #expect(text == "POST")
      #expect(!cache.isCached(url))
    }
  }

  /// Stores copies, which have no origin information, and calls hooks before and after.
  final class Copying: LMDBURLCache, @unchecked Sendable {
    // Sendable like its superclass: the mutable state is protected by locks.
    let whenStoring = Mutex<(@Sendable () -> Void)?>(nil)
    let whenStored = Mutex<(@Sendable () -> Void)?>(nil)

    override func storeCachedResponse(_ cachedResponse: CachedURLResponse, for request: URLRequest) {
      whenStoring.withLock { $0 }?()
      super.storeCachedResponse(
        CachedURLResponse(response: cachedResponse.response, data: cachedResponse.data), for: request)
      whenStored.withLock { $0 }?()
    }
  }

  @Test("A copy that an override stores in place of a fetched response counts as being as old as the fetch")
  func override() async throws {
    let fixture = try CacheFixture()
    let origin = try LoopbackOrigin { _ in Reply(200, [("Cache-Control", "max-age=600")], "old") }
    let cache = try Copying(directory: fixture.directory, memoryCapacity: 1 << 20, diskCapacity: 16 << 20)
    let url = origin.url("/a")
    let wasFound = LogLines()
    // Runs after the caching client's last check for removals.
    let second = fixture.cache
    cache.whenStoring.withLock { $0 = { second.removeAllCachedResponses() } }
    cache.whenStored.withLock { $0 = { if cache.isCached(url) { wasFound.append("found") } } }
    #expect(try await cache.data(from: url).0.text == "old")
    #expect(wasFound.all.isEmpty)
    #expect(!cache.isCached(url))
    cache.whenStored.withLock { $0 = nil }
    origin.stop()
  }
}

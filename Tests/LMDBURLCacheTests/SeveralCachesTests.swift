import CacheModel
import Foundation
import FoundationNetworking
import HTTPCaching
import LMDBURLCache
import LoopbackOrigin
import ResponseStore
import Synchronization
import Testing

/// With several caches of one directory in a process, no lookup returns an older response than any of them has stored.
@Suite("Several caches of a directory in a process", .endsFixtures, .timeLimit(.minutes(1)))
struct SeveralCachesTests {
  private let url = URL(string: "http://example.com/a")!
  private var request: URLRequest { URLRequest(url: url) }

  /// Returns another cache of the fixture's directory; both have one response in memory.
  private func sharing(_ fixture: CacheFixture, memory: Int = 4 << 20, disk: Int = 16 << 20) throws -> LMDBURLCache {
    let other = try other(fixture, memory: memory, disk: disk)
    fixture.cache.storeCachedResponse(cached(url, "old"), for: request)
    fixture.cache.flush()
    for cache in [fixture.cache, other] { #expect(cache.cachedResponse(for: request)?.data.text == "old") }
    #expect(other.core.memory.entryCount == (memory > 0 ? 1 : 0))
    return other
  }

  private func other(_ fixture: CacheFixture, memory: Int = 4 << 20, disk: Int = 16 << 20) throws -> LMDBURLCache {
    var options = LMDBURLCache.Options()
    options.clock = { [clock = fixture.clock] in clock.now }
    return try LMDBURLCache(directory: fixture.directory, memoryCapacity: memory, diskCapacity: disk, options: options)
  }

  @Test("The disk capacity of each cache is the one that was set last")
  func capacity() async throws {
    let fixture = try CacheFixture()
    let other = try other(fixture, disk: 32 << 20)
    let withoutDisk = try self.other(fixture, disk: 0)
    #expect(fixture.cache.diskCapacity == 32 << 20)
    fixture.cache.diskCapacity = 8 << 20
    #expect(other.diskCapacity == 8 << 20)
    #expect(withoutDisk.diskCapacity == 0)
  }

  @Test("A response that one cache stores replaces the copies in all others", arguments: [false, true])
  func replaced(isCommitted: Bool) async throws {
    let fixture = try CacheFixture()
    let others = try (0..<2).map { _ in try sharing(fixture) }
    others[0].storeCachedResponse(cached(url, "new"), for: request)
    if isCommitted { fixture.cache.flush() }
    for cache in others + [fixture.cache] { #expect(cache.cachedResponse(for: request)?.data.text == "new") }
    // Each cache may have the response in memory, too.
    fixture.cache.flush()
    for cache in others + [fixture.cache] { #expect(cache.cachedResponse(for: request)?.data.text == "new") }
    for cache in others + [fixture.cache] { #expect(cache.core.memory.entryCount == 1) }
    fixture.cache.storeCachedResponse(cached(url, "newest"), for: request)
    for cache in others + [fixture.cache] { #expect(cache.cachedResponse(for: request)?.data.text == "newest") }
  }

  @Test("Other responses stay in the memory of every cache")
  func othersStay() async throws {
    let fixture = try CacheFixture()
    let other = try sharing(fixture)
    for number in 0..<100 {
      let url = URL(string: "http://example.com/a/\(number)")!
      fixture.cache.storeCachedResponse(cached(url), for: URLRequest(url: url))
    }
    #expect(other.core.memory.entryCount == 1)
    #expect(other.cachedResponse(for: request)?.data.text == "old")
  }

  @Test("A response for memory only hides the copies in other caches", arguments: [4 << 20, 0])
  func memoryOnly(memory: Int) async throws {
    let fixture = try CacheFixture()
    let other = try sharing(fixture, memory: memory)
    let new = CachedURLResponse(
      response: httpResponse(url, ["Cache-Control": "max-age=600"]), data: Data("new".utf8), userInfo: nil,
      storagePolicy: .allowedInMemoryOnly)
    fixture.cache.storeCachedResponse(new, for: request)
    #expect(fixture.cache.cachedResponse(for: request)?.data.text == "new")
    #expect(other.cachedResponse(for: request) == nil)
  }

  @Test("A response that must not be stored removes the older one from every cache")
  func discarded() async throws {
    let fixture = try CacheFixture()
    let other = try sharing(fixture)
    let fields = ["X-Large": String(repeating: "x", count: 300_000)]
    fixture.cache.storeCachedResponse(cached(url, "new", fields), for: request)
    #expect(fixture.cache.cachedResponse(for: request) == nil)
    #expect(other.cachedResponse(for: request) == nil)
  }

  @Test("A response too large for the store removes the older one from every cache")
  func refused() async throws {
    let fixture = try CacheFixture(disk: 1 << 20)
    let other = try sharing(fixture, disk: 1 << 20)
    fixture.cache.storeCachedResponse(cached(url, String(repeating: "x", count: 4 << 20)), for: request)
    #expect(other.cachedResponse(for: request) == nil)
  }

  @Test("A variant that one cache stores is preferred by the others to an older matching one")
  func variants() async throws {
    let fixture = try CacheFixture()
    let other = try other(fixture)
    func response(_ text: String, _ vary: String, second: Int) -> CachedURLResponse {
      let date = "Fri, 15 Jan 2027 08:00:0\(second) GMT"
      return cached(url, text, ["Cache-Control": "max-age=600", "Vary": vary, "Date": date])
    }
    let request = URLRequest(url, ["Accept": "text/html", "Accept-Language": "de"])
    fixture.cache.storeCachedResponse(response("old", "Accept", second: 0), for: request)
    fixture.cache.flush()
    #expect(other.cachedResponse(for: request)?.data.text == "old")
    #expect(other.core.memory.entryCount == 1)
    fixture.cache.storeCachedResponse(response("new", "Accept-Language", second: 1), for: request)
    #expect(other.cachedResponse(for: request)?.data.text == "new")
    let french = URLRequest(url, ["Accept": "text/html", "Accept-Language": "fr"])
    #expect(other.cachedResponse(for: french)?.data.text == "old")
  }

  @Test("A response that one cache has validated is fresh in every cache")
  func validated() async throws {
    try await withCache(origin: { request in
      request["If-None-Match"] == nil
        ? Reply(200, [("Cache-Control", "max-age=60"), ("ETag", "\"1\""), ("X-Round", "1")], "a")
        : Reply(304, [("Cache-Control", "max-age=600"), ("ETag", "\"1\""), ("X-Round", "2")])
    }) { fixture, origin in
      let other = try other(fixture)
      let request = URLRequest(url: origin.url("/a"))
      _ = try await fixture.cache.data(for: request)
      fixture.cache.flush()
      #expect(other.cachedResponse(for: request)?.response.field("X-Round") == "1")
      #expect(other.core.memory.entryCount == 1)
      fixture.clock.advance(by: 120)
      _ = try await fixture.cache.data(for: request)
      #expect(fixture.cache.cachedResponse(for: request)?.response.field("X-Round") == "2")
      #expect(other.cachedResponse(for: request)?.response.field("X-Round") == "2")
      #expect(origin.requests.count == 2)
      _ = try await other.data(for: request)
      #expect(origin.requests.count == 2)
    }
  }

  @Test("A response stored without a cache replaces the copy in a cache")
  func storedDirectly() async throws {
    let fixture = try CacheFixture()
    fixture.cache.storeCachedResponse(cached(url, "old"), for: request)
    #expect(fixture.cache.core.memory.entryCount == 1)
    let store = try #require(fixture.cache.core.store)
    let key = try #require(RequestKey(url: url))
    let stored = try #require(store.lookup(key))
    store.store(
      CacheableResponse(
        status: 200, fields: stored.fields, body: Data("new".utf8), freshness: stored.freshness, vary: stored.vary),
      for: key)
    #expect(fixture.cache.cachedResponse(for: request)?.data.text == "new")
  }

  @Test("After a write by one cache has returned, no lookup by another finds an older response")
  func newestVersion() async throws {
    let fixture = try CacheFixture(memory: 3 << 20, disk: 64 << 20)
    let caches = [fixture.cache, try other(fixture, memory: 3 << 20, disk: 64 << 20)]
    let isOver = Atomic(false)
    let stored = Atomic<UInt8>(0)
    let violationCount = Atomic(0)
    let readers = DispatchGroup()
    for cache in caches {
      DispatchQueue(label: "reader").async(group: readers) {
        while !isOver.load(ordering: .relaxed) {
          let minimum = stored.load(ordering: .acquiring)
          let version = cache.cachedResponse(for: request)?.data.first
          if let version, version < minimum { violationCount.add(1, ordering: .relaxed) }
        }
      }
    }
    for version in UInt8(1)...100 {
      // Some responses exceed the memory tier or evict everything else from it.
      let byteCount = version % 10 == 0 ? 4 << 20 : version % 10 == 5 ? 1 << 20 : 1000
      let response = CachedURLResponse(
        response: httpResponse(url, ["Cache-Control": "max-age=600"]), data: Data(repeating: version, count: byteCount))
      caches[Int(version) % 2].storeCachedResponse(response, for: request)
      stored.store(version, ordering: .releasing)
      for cache in caches {
        let found = cache.cachedResponse(for: request)?.data.first
        if let found, found != version { violationCount.add(1, ordering: .relaxed) }
      }
    }
    isOver.store(true, ordering: .relaxed)
    await withCheckedContinuation { continuation in readers.notify(queue: .global()) { continuation.resume() } }
    #expect(violationCount.load(ordering: .relaxed) == 0)
  }

  @Test("After two concurrent writes every cache has the same response")
  func storesAtOnce() async throws {
    let fixture = try CacheFixture()
    let caches = [fixture.cache, try other(fixture)]
    var differenceCount = 0
    for round in 0..<200 {
      let url = URL(string: "http://example.com/\(round)")!
      DispatchQueue.concurrentPerform(iterations: 2) { number in
        caches[number].storeCachedResponse(cached(url, "\(number)"), for: URLRequest(url: url))
      }
      let found = caches.map { $0.cachedResponse(for: URLRequest(url: url))?.data.text }
      if found[0] == nil || found[0] != found[1] { differenceCount += 1 }
    }
    #expect(differenceCount == 0)
  }
}

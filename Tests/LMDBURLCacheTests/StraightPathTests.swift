import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Synchronization
import Testing

/// Hits, misses and stores look each thing up once.
@Suite("The path of a request", .endsFixtures, .timeLimit(.minutes(1)))
struct StraightPathTests {
  final class Counts: Sendable {
    let partition = Atomic(0)
    let overrides = Atomic(0)

    func take() -> [Int] {
      [partition.exchange(0, ordering: .relaxed), overrides.exchange(0, ordering: .relaxed)]
    }
  }

  @Test(
    "A miss with its store, a hit and a revalidation each call the partition and overrides closures once; a task twice")
  func closures() async throws {
    let counts = Counts()
    try await withCache { options in
      options.partition = { _ in
        counts.partition.add(1, ordering: .relaxed)
        return "tenant"
      }
      options.overrides = { _ in
        counts.overrides.add(1, ordering: .relaxed)
        return .init()
      }
    } origin: { request in
      let fields = [("ETag", "\"1\""), ("Cache-Control", request.path == "/stale" ? "max-age=0" : "max-age=600")]
      return request["If-None-Match"] == nil ? Reply(200, fields, "body") : Reply(304, fields)
    } _: { (fixture, origin) async throws in
      for path in ["/fresh", "/fresh", "/stale", "/stale"] {
        _ = try await fixture.cache.data(from: origin.url(path))
        #expect(counts.take() == [1, 1], "\(path)")
      }
      _ = try await fixture.cache.load(URLRequest(url: origin.url("/stale")))
      #expect(counts.take() == [1, 1])
      let (chunks, _) = try await fixture.cache.bytes(for: URLRequest(url: origin.url("/fresh")))
      for try await _ in chunks {}
      #expect(counts.take() == [1, 1])
      #expect(origin.requestCount == 4)
      let session = fixture.session()
      defer { session.invalidateAndCancel() }
      for path in ["/fresh", "/task", "/stale"] {
        _ = try await session.data(from: origin.url(path))
        // Foundation asks the cache before it starts the protocol, which it gives no way to pass the key on.
        #expect(counts.take() == [2, 2], "a session's task for \(path)")
      }
    }
  }

  @Test("A miss costs one lookup on disk, and so does a hit")
  func lookups() async throws {
    try await withCache(memory: 0) { _ in
      Reply(200, [("Cache-Control", "max-age=600")], "body")
    } _: { (fixture, origin) async throws in
      let store = try #require(fixture.cache.core.store)
      let before = store.statistics
      _ = try await fixture.cache.data(from: origin.url("/a"))
      #expect(store.statistics.misses == before.misses + 1)
      #expect(store.statistics.hits == before.hits)
      _ = try await fixture.cache.data(from: origin.url("/a"))
      #expect(store.statistics.misses == before.misses + 1)
      #expect(store.statistics.hits == before.hits + 1)
    }
  }

  @Test("A 304 does not copy the stored body a second time")
  func revalidation() async throws {
    try await withCache(memory: 0) { request in
      request["If-None-Match"] == nil
        ? Reply(200, [("Cache-Control", "max-age=0"), ("ETag", "\"1\"")], String(repeating: "b", count: 100_000))
        : Reply(304, [("Cache-Control", "max-age=600"), ("ETag", "\"1\"")])
    } _: { (fixture, origin) async throws in
      let cache = fixture.cache
      let url = origin.url("/a")
      _ = try await cache.data(from: url)
      cache.flush()
      let store = try #require(cache.core.store)
      let before = store.statistics.hits
      #expect(try await cache.data(from: url).0.count == 100_000)
      #expect(store.statistics.hits == before + 1)
      // The new freshness is stored.
      #expect(try await cache.data(from: url).0.count == 100_000)
      #expect(origin.requestCount == 2)
      #expect(store.statistics.droppedWrites == 0)
    }
  }

  /// Hands responses to `super` after the store method has returned.
  final class Delaying: LMDBURLCache, @unchecked Sendable {
    // Sendable, as its superclass is: what changes is under a lock.
    let delayed = Mutex<[(CachedURLResponse, URLRequest)]>([])

    override func storeCachedResponse(_ cachedResponse: CachedURLResponse, for request: URLRequest) {
      delayed.withLock { $0.append((cachedResponse, request)) }
    }

    func storeDelayed() {
      let delayed = delayed.withLock { delayed in
        defer { delayed = [] }
        return delayed
      }
      for (response, request) in delayed { super.storeCachedResponse(response, for: request) }
    }
  }

  @Test("A response that an override stores later is not stored if it was removed meanwhile")
  func delayedStore() async throws {
    let fixture = try CacheFixture()
    let origin = try LoopbackOrigin { _ in Reply(200, [("Cache-Control", "max-age=600")], "body") }
    let cache = try Delaying(directory: fixture.directory, memoryCapacity: 1 << 20, diskCapacity: 16 << 20)
    let url = origin.url("/a")
    _ = try await cache.data(from: url)
    #expect(!cache.isCached(url))
    cache.storeDelayed()
    #expect(cache.isCached(url))
    cache.removeAllCachedResponses()
    _ = try await cache.data(from: url)
    fixture.cache.removeAllCachedResponses()
    cache.storeDelayed()
    #expect(!cache.isCached(url))
    origin.stop()
  }

  @Test("A removal of several cache groups covers the members of each")
  func groups() async throws {
    try await withCache { request in
      request.method == "POST"
        ? Reply(200, [("Cache-Group-Invalidation", "\"a\", \"b\"")])
        : Reply(200, [("Cache-Control", "max-age=600"), ("Cache-Groups", "\"\(request.path.dropFirst())\"")], "body")
    } _: { (fixture, origin) async throws in
      let cache = fixture.cache
      for path in ["/a", "/b", "/c"] { _ = try await cache.data(from: origin.url(path)) }
      _ = try await cache.data(for: URLRequest(origin.url("/other"), method: "POST"))
      #expect(["/a", "/b", "/c"].map { cache.isCached(origin.url($0)) } == [false, false, true])
    }
  }
}

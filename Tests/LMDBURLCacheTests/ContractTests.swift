import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Testing

/// The public interface that callers compile against, line by line.
@Suite("Public interface")
struct ContractTests {
  @Test("The documented calls compile and work")
  func contract() async throws {
    let origin = try LoopbackOrigin { request in
      Reply(200, [("Cache-Control", "max-age=600")], "\(request.target) \(request.number)")
    }
    defer { origin.stop() }
    let url = FileManager.default.temporaryDirectory.appendingPathComponent("contract-\(UUID().uuidString)")
    defer { try? FileManager.default.removeItem(at: url) }
    let cache = try LMDBURLCache(directory: url, memoryCapacity: 32 << 20, diskCapacity: 512 << 20)
    #expect(cache.memoryCapacity == 32 << 20)
    #expect(cache.diskCapacity == 512 << 20)

    let session = URLSession(configuration: .default.caching(with: cache))
    let request = URLRequest(url: origin.url("/a"))
    do {
      let (data, response) = try await cache.data(for: request)
      #expect(data.text == "/a 0")
      #expect((response as? HTTPURLResponse)?.statusCode == 200)
    }
    do {
      let (data, response) = try await cache.data(for: request, from: session)
      #expect(data.text == "/a 0")
      #expect((response as? HTTPURLResponse)?.value(forHTTPHeaderField: "Age") != nil)
    }
    #expect(try await session.data(for: request).0.text == "/a 0")

    cache.minCacheInterval = 300
    cache.ignoreMemoryOnlyStoragePolicy = false
    #expect(cache.isCached(origin.url("/a")))
    #expect(LMDBURLCache.defaultCachePath.hasSuffix("/LMDBURLCache"))

    let date = Date()
    _ = try await cache.data(for: URLRequest(url: origin.url("/b")))
    cache.removeCachedResponses(since: date)
    #expect(cache.isCached(origin.url("/a")))
    #expect(!cache.isCached(origin.url("/b")))
    cache.removeCachedResponses(forHost: "api.example.com"); cache.removeCachedResponses(withPrefix: url)
    #expect(cache.isCached(origin.url("/a")))
    cache.removeCachedResponses(forHost: "127.0.0.1")
    #expect(!cache.isCached(origin.url("/a")))
    _ = try await cache.data(for: URLRequest(url: origin.url("/dir/c?d=1")))
    cache.removeCachedResponses(withPrefix: origin.url("/dir/"))
    #expect(!cache.isCached(origin.url("/dir/c?d=1")))
    cache.flush()
    let statistics = cache.statistics
    #expect(statistics.requests.hits >= 2)
    #expect(statistics.requests.misses == 3)
    #expect(statistics.requests.stored == 3)
    #expect(statistics.disk?.entryCount == 0)
  }

  @Test("URLCache's own initializer exists and cannot fail")
  func drop() {
    let path = FileManager.default.temporaryDirectory.appendingPathComponent("contract-\(UUID().uuidString)").path
    defer { try? FileManager.default.removeItem(atPath: path) }
    let cache = LMDBURLCache(memoryCapacity: 20 << 20, diskCapacity: 50 << 20, diskPath: path)
    let plain: URLCache = cache
    let request = URLRequest(url: URL(string: "http://example.com/a")!)
    plain.storeCachedResponse(cached(request.url!), for: request)
    #expect(plain.cachedResponse(for: request)?.data.text == "body")
    plain.removeAllCachedResponses()
    #expect(plain.cachedResponse(for: request) == nil)
  }
}

import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Testing

@Suite("Load results and directory inspection")
final class LoadResultTests {
  private let directory = FileManager.default.temporaryDirectory.appendingPathComponent("load-\(UUID().uuidString)")

  deinit {
    // A leftover directory does no harm.
    try? FileManager.default.removeItem(at: directory)
  }

  private func makeCache(_ options: LMDBURLCache.Options = LMDBURLCache.Options()) throws -> LMDBURLCache {
    try LMDBURLCache(directory: directory, memoryCapacity: 4 << 20, diskCapacity: 16 << 20, options: options)
  }

  private func makeOrigin() throws -> LoopbackOrigin {
    try LoopbackOrigin { request in
      switch request.path {
      case "/checked":
        request["If-None-Match"] == nil
          ? Reply(200, [("ETag", "\"1\""), ("Cache-Control", "no-cache")], "checked")
          : Reply(304, [("ETag", "\"1\""), ("Cache-Control", "no-cache")])
      case "/refused": Reply(200, [("Cache-Control", "no-store")], "refused")
      case "/moved": Reply(302, [("Location", "/fresh")])
      default: Reply(200, [("Cache-Control", "max-age=600")], "fresh")
      }
    }
  }

  @Test("load(_:) reports the source, TTL and reason of each kind of response")
  func sources() async throws {
    let cache = try makeCache()
    let origin = try makeOrigin()
    defer { origin.stop() }
    func load(_ path: String) async throws -> LoadResult { try await cache.load(URLRequest(url: origin.url(path))) }

    let fetched = try await load("/fresh")
    #expect(fetched.source == .miss && fetched.reason.id == "miss" && fetched.data == Data("fresh".utf8))
    #expect(try #require(fetched.timeToLive) > 300)
    let hit = try await load("/fresh")
    #expect(hit.source == .hit && hit.reason.id == "fresh")
    #expect(try #require(hit.timeToLive) > 300)
    #expect(try await load("/moved").response.url == origin.url("/fresh"))
    let refused = try await load("/refused")
    #expect(refused.timeToLive == nil && refused.storageRefusal?.id == "no-store")
    #expect(fetched.storageRefusal == nil && hit.storageRefusal == nil)
    #expect(try await load("/checked").source == .miss)
    #expect(try await load("/checked").source == .revalidated)
  }

  @Test("The TTL of a result is that of its own response: the validated one, or none for one that is not stored")
  func timesToLive() async throws {
    let origin = try LoopbackOrigin { request in
      let fields = [("ETag", "\"1\""), ("Cache-Control", request.number == 0 ? "max-age=0" : "max-age=600")]
      if request.number == 1 { return Reply(503, [], "busy") }
      return request["If-None-Match"] == nil ? Reply(200, fields, "body") : Reply(304, fields)
    }
    defer { origin.stop() }
    let cache = try makeCache()
    let request = URLRequest(url: origin.url("/a"))
    #expect(try #require(try await cache.load(request).timeToLive) <= 0)
    // The stored response stays.
    let failed = try await cache.load(request)
    #expect(failed.source == .miss && failed.timeToLive == nil)
    let validated = try await cache.load(request)
    #expect(validated.source == .revalidated)
    #expect(try #require(validated.timeToLive) > 300)
  }

  @Test(
    "Cache policies determine whether the origin is contacted",
    arguments: [
      (URLRequest.CachePolicy.useProtocolCachePolicy, 1), (.reloadIgnoringLocalCacheData, 2),
      (.reloadIgnoringLocalAndRemoteCacheData, 2), (.returnCacheDataElseLoad, 1), (.returnCacheDataDontLoad, 1),
    ])
  func policies(policy: URLRequest.CachePolicy, requestCount: Int) async throws {
    let cache = try makeCache()
    let origin = try makeOrigin()
    defer { origin.stop() }
    _ = try await cache.data(from: origin.url("/fresh"))
    _ = try await cache.data(for: URLRequest(url: origin.url("/fresh"), cachePolicy: policy))
    #expect(origin.requestCount == requestCount)
    // The same policy in a session's configuration.
    let configuration = URLSessionConfiguration.default.caching(with: cache)
    configuration.requestCachePolicy = policy
    _ = try await URLSession(configuration: configuration).data(from: origin.url("/fresh"))
    #expect(origin.requestCount == 2 * requestCount - 1)
  }

  @Test("returnCacheDataDontLoad throws if nothing is stored, without contacting the origin")
  func onlyCache() async throws {
    let cache = try makeCache()
    let origin = try makeOrigin()
    defer { origin.stop() }
    let request = URLRequest(url: origin.url("/fresh"), cachePolicy: .returnCacheDataDontLoad)
    let error = await #expect(throws: URLError.self) { try await cache.data(for: request) }
    #expect(error?.code == .resourceUnavailable)
    #expect(origin.requestCount == 0)
  }

  @Test("A directory can be inspected and purged while its cache is open, including the memory tier")
  func inspection() async throws {
    let cache = try makeCache()
    let origin = try makeOrigin()
    defer { origin.stop() }
    for path in ["/a", "/b/1", "/b/2"] { _ = try await cache.data(from: origin.url(path)) }
    #expect(cache.flush())
    let inspected = try CacheDirectory(existingAt: directory)
    #expect(inspected.capacityByteCount == 16 << 20)
    var urls: [String] = []
    inspected.forEachEntry { entry in
      #expect(entry.isFresh(at: Date()) && entry.status == 200 && entry.bodyByteCount == 5)
      urls.append(entry.url)
      return urls.count < 2
    }
    #expect(urls == ["/a", "/b/1"].map { origin.url($0).absoluteString })
    let removed = try inspected.remove(.prefix(origin.url("/b/")))
    #expect(removed?.entryCount == 2 && removed?.byteCount == 10)
    #expect(cache.isCached(origin.url("/a")) && !cache.isCached(origin.url("/b/1")))
    #expect(inspected.checkInvariants() == [])
  }
}

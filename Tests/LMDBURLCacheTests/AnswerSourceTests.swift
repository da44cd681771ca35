import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Testing

@Suite("Where an answer came from, and a look into the directory")
final class AnswerSourceTests {
  private let directory = FileManager.default.temporaryDirectory.appendingPathComponent("load-\(UUID().uuidString)")

  deinit {
    // A folder left behind in the temporary directory fails no test.
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

  @Test("load: source, time left and reason of each kind of answer")
  func sources() async throws {
    let cache = try makeCache()
    let origin = try makeOrigin()
    defer { origin.stop() }
    func load(_ path: String) async throws -> CachedAnswer { try await cache.load(URLRequest(url: origin.url(path))) }

    let fetched = try await load("/fresh")
    #expect(fetched.source == .network && fetched.reason.id == "miss" && fetched.data == Data("fresh".utf8))
    #expect(try #require(fetched.timeLeft) > 300)
    let hit = try await load("/fresh")
    #expect(hit.source == .store && hit.reason.id == "fresh")
    #expect(try #require(hit.timeLeft) > 300)
    #expect(try await load("/moved").response.url == origin.url("/fresh"))
    let refused = try await load("/refused")
    #expect(refused.timeLeft == nil && refused.refusal?.id == "no-store")
    #expect(fetched.refusal == nil && hit.refusal == nil)
    #expect(try await load("/checked").source == .network)
    #expect(try await load("/checked").source == .revalidated)
  }

  @Test(
    "Policies mean what they are called",
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
    // The same as a configuration's policy.
    let configuration = URLSessionConfiguration.default.caching(with: cache)
    configuration.requestCachePolicy = policy
    _ = try await URLSession(configuration: configuration).data(from: origin.url("/fresh"))
    #expect(origin.requestCount == 2 * requestCount - 1)
  }

  @Test("Nothing stored and not to be loaded: an error, and nobody is asked")
  func onlyCache() async throws {
    let cache = try makeCache()
    let origin = try makeOrigin()
    defer { origin.stop() }
    let request = URLRequest(url: origin.url("/fresh"), cachePolicy: .returnCacheDataDontLoad)
    await #expect(throws: URLError(.resourceUnavailable)) { try await cache.data(for: request) }
    #expect(origin.requestCount == 0)
  }

  @Test("Cache-Status is on hits, too, where it is switched on")
  func cacheStatus() async throws {
    var options = LMDBURLCache.Options()
    options.caching.cacheStatusName = "test"
    let cache = try makeCache(options)
    let origin = try makeOrigin()
    defer { origin.stop() }
    var texts: [String] = []
    for _ in 0..<2 {
      let (_, response) = try await cache.data(from: origin.url("/fresh"))
      texts.append((response as? HTTPURLResponse)?.value(forHTTPHeaderField: "Cache-Status") ?? "")
    }
    #expect(texts[0].hasPrefix("test; fwd="))
    #expect(texts[1].hasPrefix("test; hit; ttl="))
  }

  @Test("A directory can be looked into and purged while its cache is open, memory included")
  func lookInside() async throws {
    let cache = try makeCache()
    let origin = try makeOrigin()
    defer { origin.stop() }
    for path in ["/a", "/b/1", "/b/2"] { _ = try await cache.data(from: origin.url(path)) }
    #expect(cache.flush())
    let look = try CacheDirectory(existingAt: directory)
    #expect(look.capacityByteCount == 16 << 20)
    var urls: [String] = []
    look.forEachEntry { entry in
      #expect(entry.isFresh(at: Date()) && entry.status == 200 && entry.bodyByteCount == 5)
      urls.append(entry.url)
      return urls.count < 2
    }
    #expect(urls == ["/a", "/b/1"].map { origin.url($0).absoluteString })
    let removed = try look.remove(.prefix(origin.url("/b/")))
    #expect(removed?.entryCount == 2 && removed?.byteCount == 10)
    #expect(cache.isCached(origin.url("/a")) && !cache.isCached(origin.url("/b/1")))
    #expect(look.checkInvariants() == [])
  }
}

import CachingClient
import Foundation
import FoundationNetworking
import HTTPCaching
import LMDBURLCache
import LoopbackOrigin
import Testing

/// A response that is not stored because of its size says so: to its caller, in the counters, and in the log.
@Suite("Refusals because of a size", .endsFixtures, .timeLimit(.minutes(1)))
struct SizeRefusalTests {
  private static let lifetime = ("Cache-Control", "max-age=600")

  @Test("A load names the limit that a body exceeds, whether or not its length is declared", arguments: [true, false])
  func body(isChunked: Bool) async throws {
    let fixture = try CacheFixture(memory: 1 << 20, disk: 2 << 20)
    let origin = try LoopbackOrigin { _ in
      let reply = Reply(200, [Self.lifetime], body: Data(repeating: 65, count: 600_000))
      return isChunked ? reply.chunked() : reply
    }
    defer { origin.stop() }
    let cache = fixture.cache
    for number in 1...2 {
      let result = try await cache.load(URLRequest(url: origin.url("/\(number)")))
      #expect(result.data.count == 600_000 && result.timeToLive == nil)
      #expect(result.storageRefusal == .bodyTooLarge)
      #expect(result.storageRefusal?.summary.contains("larger than 524288 bytes") == true)
    }
    #expect(cache.statistics.requests.storageRefusals == ["body-too-large": 2])
    #expect(cache.statistics.requests.stored == 0)
    #expect(cache.statistics.directory?.storageRefusals == ["body-too-large": 2])
    #expect(cache.prometheusText().contains("\",rule=\"body-too-large\"} 2\n"))
    #expect(fixture.logged.all.count == 1)
    #expect(
      fixture.logged.all.first?.hasPrefix("LMDBURLCache: A response was not stored: the body is larger than 524288")
        == true)
    let inspected = try CacheDirectory(existingAt: fixture.directory)
    #expect(inspected.explain(URLRequest(url: origin.url("/2")))?.lastRefusal?.rule == "body-too-large")
  }

  @Test(
    "A load names the limit if its header fields fit into no tier",
    arguments: [(memory: 0, disk: 1 << 20), (memory: 64 << 10, disk: 0)])
  func fields(memory: Int, disk: Int) async throws {
    let fixture = try CacheFixture(memory: memory, disk: disk)
    let large = (1...4).map { ("X-Large-\($0)", String(repeating: "v", count: 50_000)) }
    let origin = try LoopbackOrigin { request in
      Reply(200, [Self.lifetime] + (request.path == "/large" ? large : []), "body")
    }
    defer { origin.stop() }
    let cache = fixture.cache
    let result = try await cache.load(URLRequest(url: origin.url("/large")))
    #expect(result.storageRefusal == .recordTooLarge && result.timeToLive == nil)
    #expect(result.storageRefusal?.summary.contains(" bytes, the limit of the cache") == true)
    #expect(cache.statistics.requests.storageRefusals == ["record-too-large": 1])
    #expect(fixture.logged.all.count { $0.contains("header fields and URL are larger than") } == 1)
    #expect(try await cache.load(URLRequest(url: origin.url("/small"))).storageRefusal == nil)
    #expect(cache.isCached(origin.url("/small")))
  }

  @Test("A response that the program stores itself is counted if no tier can keep it", arguments: [0, 4 << 20])
  func byHand(memory: Int) async throws {
    let fixture = try CacheFixture(memory: memory, disk: 1 << 20)
    let url = try #require(URL(string: "http://a.example/large"))
    let response = try #require(
      HTTPURLResponse(url: url, statusCode: 200, httpVersion: nil, headerFields: ["Cache-Control": "max-age=600"]))
    let cached = CachedURLResponse(response: response, data: Data(repeating: 65, count: 900_000))
    for _ in 0..<2 { fixture.cache.storeCachedResponse(cached, for: URLRequest(url: url)) }
    let isInMemory = memory > 0
    #expect(fixture.cache.isCached(url) == isInMemory)
    #expect(fixture.cache.statistics.directory?.storageRefusals["body-too-large", default: 0] == (isInMemory ? 0 : 2))
    #expect(fixture.logged.all.count == 1)
    #expect(
      fixture.logged.all.first?.hasPrefix("LMDBURLCache: A response was not stored on disk: its body is larger than")
        == true)
    let inspected = try CacheDirectory(existingAt: fixture.directory)
    #expect(inspected.explain(URLRequest(url: url))?.lastRefusal?.rule == "body-too-large")
  }

  @Test("A response that only the memory tier may have is no matter of size if the cache has no such tier")
  func noMemoryTier() async throws {
    let fixture = try CacheFixture(memory: 0)
    let origin = try LoopbackOrigin { _ in Reply(200, [("Cache-Control", "max-age=5")], "body") }
    defer { origin.stop() }
    let url = origin.url("/a")
    #expect(try await fixture.cache.load(URLRequest(url: url)).storageRefusal == .memoryOnly)
    let response = httpResponse(url, ["Cache-Control": "max-age=600"])
    fixture.cache.storeCachedResponse(
      CachedURLResponse(response: response, data: Data("body".utf8), storagePolicy: .allowedInMemoryOnly),
      for: URLRequest(url: url))
    #expect(!fixture.cache.isCached(url))
    #expect(fixture.cache.statistics.directory?.storageRefusals.keys.sorted() == ["memory-only"])
    #expect(fixture.logged.all == [])
  }

  @Test("The log names the part of a response that is too large for the memory tier", arguments: [true, false])
  func memoryTier(isBody: Bool) async throws {
    let fixture = try CacheFixture(memory: 64 << 10)
    let url = try #require(URL(string: "http://a.example/"))
    let fields = ["Cache-Control": "max-age=600", "X-Large": String(repeating: "v", count: isBody ? 1000 : 70_000)]
    fixture.cache.storeCachedResponse(
      CachedURLResponse(
        response: httpResponse(url, fields), data: Data(repeating: 65, count: isBody ? 64 << 10 : 10),
        storagePolicy: .allowedInMemoryOnly),
      for: URLRequest(url: url))
    #expect(!fixture.cache.isCached(url))
    let part = isBody ? "the body is" : "header fields and URL are"
    #expect(fixture.logged.all.count == 1)
    #expect(fixture.logged.all.first?.contains("not stored: \(part) larger than") == true)
  }
}

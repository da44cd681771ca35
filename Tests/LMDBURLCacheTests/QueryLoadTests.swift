import CachingClient
import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Testing

/// Queries and equivalent URLs through the cache, with both tiers and all ways to load.
@Suite("Loads of queries and of equivalent URLs", .endsFixtures, .timeLimit(.minutes(1)))
struct QueryLoadTests {
  private func query(_ url: URL, _ content: String, method: String = "QUERY") -> URLRequest {
    var request = URLRequest(url, method: method, ["Content-Type": "application/sql"])
    request.httpBody = Data(content.utf8)
    return request
  }

  /// Responds with the method, the content and the number of the request.
  private func echo(_ request: RecordedRequest, _ fields: [(String, String)] = []) -> Reply {
    Reply(
      200, [("Cache-Control", "max-age=600")] + fields,
      "\(request.method) \(String(decoding: request.body, as: UTF8.self))")
  }

  @Test("Each way to load answers a query from the cache", arguments: SessionTests.Way.allCases, ["QUERY", "POST"])
  func ways(_ way: SessionTests.Way, method: String) async throws {
    try await withCache {
      $0.overrides = { _ in RequestOverrides(treatsAsQuery: true) }
    } origin: {
      echo($0)
    } _: { (fixture, origin) async throws in
      let delegate = RecordingDelegate()
      let session = fixture.session(delegate: delegate)
      for content in ["select 1", "select 2", "select 1", "select 2"] {
        let request = query(origin.url("/a"), content, method: method)
        let (data, _) = try await SessionTests().load(request, way, session, delegate, fixture.cache)
        #expect(data.text == "\(method) \(content)")
      }
      #expect(origin.requestCount == 2)
      session.invalidateAndCancel()
    }
  }

  @Test("After it was reopened, the cache answers queries and equivalent URLs from disk", arguments: [0, 4 << 20])
  func disk(memory: Int) async throws {
    try await withCache(memory: memory) {
      echo($0, [("No-Vary-Search", #"params=("utm")"#)])
    } _: { (fixture, origin) async throws in
      _ = try await fixture.cache.data(for: query(origin.url("/a"), "1"))
      _ = try await fixture.cache.data(from: origin.url("/b?utm=1&x=2"))
      try fixture.reopen(memory: memory)
      #expect(try await fixture.cache.data(for: query(origin.url("/a"), "1")).0.text == "QUERY 1")
      #expect(try await fixture.cache.data(from: origin.url("/b?x=2&utm=3")).0.text == "GET ")
      #expect(origin.requestCount == 2)
      #expect(try await fixture.cache.data(from: origin.url("/b?x=3")).0.text == "GET ")
      #expect(origin.requestCount == 3)
    }
  }

  /// The purges that reach a URL.
  enum Purge: CaseIterable {
    case url, prefix, host, all, since, request, post, anotherCache
  }

  @Test(
    "Each purge and an unsafe request reach every query of the URL, in both tiers", arguments: Purge.allCases,
    [0, 4 << 20])
  func purges(_ purge: Purge, memory: Int) async throws {
    try await withCache(memory: memory) {
      echo($0)
    } _: { (fixture, origin) async throws in
      let cache = fixture.cache
      let requests = ["1", "2"].map { query(origin.url("/a"), $0) }
      for request in requests { _ = try await cache.data(for: request) }
      for request in requests { #expect(cache.cachedResponse(for: request) != nil) }
      switch purge {
      case .url: try await cache.purge(.url(origin.url("/a")))
      case .prefix: try await cache.purge(.prefix(origin.url("/")))
      case .host: try await cache.purge(.host("127.0.0.1"))
      case .all: cache.removeAllCachedResponses()
      case .since: cache.removeCachedResponses(since: .distantPast)
      case .request: for request in requests { cache.removeCachedResponse(for: request) }
      case .post: _ = try await cache.data(for: query(origin.url("/a"), "1", method: "POST"))
      case .anotherCache:
        let other = try LMDBURLCache(directory: fixture.directory, memoryCapacity: 0, diskCapacity: 16 << 20)
        try await other.purge(.url(origin.url("/a")))
      }
      let count = origin.requestCount
      for request in requests {
        #expect(cache.cachedResponse(for: request) == nil)
        _ = try await cache.data(for: request)
      }
      #expect(origin.requestCount == count + 2)
      for request in requests { #expect(cache.cachedResponse(for: request) != nil) }
    }
  }

  @Test(
    "Each purge and an unsafe request end what a URL is equivalent to, in both tiers", arguments: Purge.allCases,
    [0, 4 << 20])
  func purgesOfEquivalents(_ purge: Purge, memory: Int) async throws {
    try await withCache(memory: memory) {
      echo($0, [("No-Vary-Search", #"params=("utm")"#)])
    } _: { (fixture, origin) async throws in
      let cache = fixture.cache
      _ = try await cache.data(from: origin.url("/a?x=1&utm=1"))
      let same = origin.url("/a?x=1&utm=2")
      #expect(cache.isCached(same) && cache.cachedResponse(for: URLRequest(url: same)) != nil)
      switch purge {
      case .url: try await cache.purge(.url(same))
      case .prefix: try await cache.purge(.prefix(origin.url("/a?x=1&utm=2")))
      case .host: try await cache.purge(.host("127.0.0.1"))
      case .all: cache.removeAllCachedResponses()
      case .since: cache.removeCachedResponses(since: .distantPast)
      case .request: cache.removeCachedResponse(for: URLRequest(url: same))
      case .post: _ = try await cache.data(for: URLRequest(same, method: "POST"))
      case .anotherCache:
        let other = try LMDBURLCache(directory: fixture.directory, memoryCapacity: 0, diskCapacity: 16 << 20)
        try await other.purge(.url(same))
      }
      let count = origin.requestCount
      for text in ["/a?x=1&utm=1", "/a?x=1&utm=2", "/a?x=1"] { #expect(!cache.isCached(origin.url(text)), "\(text)") }
      for text in ["/a?x=1&utm=3", "/a?x=1"] { _ = try await cache.data(from: origin.url(text)) }
      #expect(origin.requestCount == count + 1)
    }
  }

  @Test("A soft purge by URL makes queries and equivalent URLs stale")
  func softPurge() async throws {
    try await withCache {
      $0["If-None-Match"] == "\"1\""
        ? Reply(304, [("ETag", "\"1\""), ("Cache-Control", "max-age=600"), ("No-Vary-Search", "params")])
        : echo($0, [("ETag", "\"1\""), ("No-Vary-Search", "params")])
    } _: { (fixture, origin) async throws in
      _ = try await fixture.cache.data(for: query(origin.url("/a"), "1"))
      _ = try await fixture.cache.data(from: origin.url("/a?x"))
      try await fixture.cache.purge(.url(origin.url("/a")), mode: .soft)
      for _ in 1...2 {
        #expect(try await fixture.cache.data(for: query(origin.url("/a"), "1")).0.text == "QUERY 1")
        #expect(try await fixture.cache.data(from: origin.url("/a?y")).0.text == "GET ")
      }
      #expect(origin.requestCount == 4)
    }
  }

  @Test("A response that a caller stores for a query answers the same content alone")
  func manual() async throws {
    let fixture = try CacheFixture()
    let url = try #require(URL(string: "http://example.com/a"))
    fixture.cache.storeCachedResponse(cached(url, "one"), for: query(url, "1"))
    #expect(fixture.cache.cachedResponse(for: query(url, "1"))?.data.text == "one")
    for other in [query(url, "2"), query(url, ""), URLRequest(url: url), query(url, "1", method: "POST")] {
      #expect(fixture.cache.cachedResponse(for: other) == nil)
    }
    var stream = URLRequest(url, method: "QUERY", ["Content-Type": "application/sql"])
    stream.httpBodyStream = InputStream(data: Data("1".utf8))
    #expect(fixture.cache.cachedResponse(for: stream) == nil)
  }

  @Test("A stream as content goes past the cache, also if it fails halfway")
  func stream() async throws {
    try await withCache {
      echo($0)
    } _: { (fixture, origin) async throws in
      for text in ["1", "2", "1"] {
        var request = URLRequest(origin.url("/a"), method: "QUERY", ["Content-Type": "application/sql"])
        request.httpBodyStream = InputStream(data: Data(text.utf8))
        #expect(try await fixture.cache.data(for: request).0.text == "QUERY \(text)")
      }
      #expect(origin.requestCount == 3)
    }
  }

  @Test("A subclass with overrides caches queries and equivalent URLs, too")
  func subclass() async throws {
    final class Overriding: LMDBURLCache, @unchecked Sendable {
      override func cachedResponse(for request: URLRequest) -> CachedURLResponse? { super.cachedResponse(for: request) }
    }
    let origin = try LoopbackOrigin { echo($0, [("No-Vary-Search", "params")]) }
    let directory = URL(fileURLWithPath: memoryDirectory(for: 64 << 20))
    let cache = try Overriding(directory: directory, memoryCapacity: 1 << 20, diskCapacity: 16 << 20)
    for content in ["1", "2", "1", "2"] {
      #expect(try await cache.data(for: query(origin.url("/a"), content)).0.text == "QUERY \(content)")
    }
    #expect(origin.requestCount == 2)
    for number in 1...3 { #expect(try await cache.data(from: origin.url("/a?\(number)")).0.text == "GET ") }
    #expect(origin.requestCount == 3)
    origin.stop()
    try FileManager.default.removeItem(at: directory)
  }
}

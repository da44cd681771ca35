import CachingClient
import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Testing

@Suite("Purges", .endsFixtures)
struct PurgeTests {
  /// A way to remove the stored responses of a URL.
  enum Kind: CaseIterable {
    case request, all, since, host, prefix, group, post
    case asyncAll, asyncSince, asyncHost, asyncPrefix, asyncGroup, asyncURL, asyncTag

    func purge(_ cache: LMDBURLCache, _ url: URL) async throws {
      switch self {
      case .request: cache.removeCachedResponse(for: URLRequest(url: url))
      case .all: cache.removeAllCachedResponses()
      case .since: cache.removeCachedResponses(since: .distantPast)
      case .host: cache.removeCachedResponses(forHost: "127.0.0.1")
      case .prefix: cache.removeCachedResponses(withPrefix: url.deletingLastPathComponent())
      case .group: cache.removeCachedResponses(inGroup: "g", origin: url)
      case .post: _ = try await cache.data(for: URLRequest(url, method: "POST"))
      case .asyncAll: try await cache.purge(.all)
      case .asyncSince: try await cache.purge(.since(.distantPast))
      case .asyncHost: try await cache.purge(.host("127.0.0.1"))
      case .asyncPrefix: try await cache.purge(.prefix(url.deletingLastPathComponent()))
      case .asyncGroup: try await cache.purge(.group("g", origin: url), mode: .hard)
      case .asyncURL: try await cache.purge(.url(url))
      case .asyncTag: try await cache.purge(.tag("g"))
      }
    }
  }

  @Test("A purge of an invalid URL throws, and a purge keeps responses that it does not cover")
  func uncovered() async throws {
    try await withCache { _ in
      Reply(200, [("Cache-Control", "max-age=600")], "body")
    } _: { fixture, origin in
      let cache = fixture.cache
      _ = try await cache.data(from: origin.url("/a?1"))
      for scope in [
        PurgeScope.url(URL(string: "/a")!), .prefix(URL(string: "/a")!), .group("g", origin: URL(string: "/a")!),
      ] {
        let error = await #expect(throws: URLError.self) { try await cache.purge(scope) }
        #expect(error?.code == .badURL)
        #expect(
          error?.localizedDescription.hasPrefix("Nothing was purged: no response can be stored for the URL") == true)
      }
      let others: [PurgeScope] = [
        .url(origin.url("/a")), .prefix(origin.url("/b")), .host("localhost"), .group("g", origin: origin.url("/a?1")),
        .since(.distantFuture), .tag("g"),
      ]
      for scope in others { try await cache.purge(scope) }
      #expect(cache.isCached(origin.url("/a?1")))
      try await cache.purge(.url(origin.url("/a?1")))
      #expect(!cache.isCached(origin.url("/a?1")))
    }
  }

  @Test("A purge by URL or prefix ignores the query parameters that the overrides ignore")
  func ignoredParameters() async throws {
    let fixture = try CacheFixture { $0.overrides = { _ in RequestOverrides(ignoredQueryParameters: ["token"]) } }
    let cache = fixture.cache
    let url = URL(string: "http://example.com/a?token=1&b=2")!
    let purges: [() async throws -> Void] = [
      { try await cache.purge(.url(url)) }, { try await cache.purge(.prefix(url)) },
      { cache.removeCachedResponses(withPrefix: url) },
    ]
    for purge in purges {
      cache.storeCachedResponse(cached(url), for: URLRequest(url: url))
      try #require(cache.isCached(url))
      try await purge()
      #expect(!cache.isCached(url))
    }
  }

  @Test(
    "A host is purged in any spelling",
    arguments: [
      ("http://b\u{fc}cher.test/a", "b\u{fc}cher.test"), ("http://b\u{fc}cher.test/a", "b%C3%BCcher.test"),
      ("http://b\u{fc}cher.test/a", "XN--BCHER-KVA.test"), ("http://[::1]:8080/a", "::1"), ("https://[::1]/a", "[::1]"),
      ("http://example.com:8080/a", "EXAMPLE.com"),
    ])
  func hostSpelling(_ text: String, _ host: String) async throws {
    let fixture = try CacheFixture()
    let url = try #require(URL(string: text))
    fixture.cache.storeCachedResponse(cached(url), for: URLRequest(url: url))
    try #require(fixture.cache.isCached(url))
    try await fixture.cache.purge(.host(host))
    #expect(!fixture.cache.isCached(url))
  }

  @Test(
    "A purge of text that is not one host alone throws, or is logged by the method that cannot throw",
    arguments: [
      ("p.example:8080", "p.example"), ("https://Example.com/", "example.com"), ("http://a", "a"), ("a/b", "a"),
      ("a?secret", "a"), ("u@a", "a"), ("http://u:secret@a:8080/secret?secret#secret", "a"), ("", nil), ("a b", nil),
      ("[::1", nil), ("*.a", nil), ("127.1", nil), (".a", ".a"),
    ] as [(String, String?)])
  func noHost(_ host: String, _ meant: String?) async throws {
    let fixture = try CacheFixture()
    for mode in [PurgeMode.hard, .soft] {
      let error = await #expect(throws: URLError.self) { try await fixture.cache.purge(.host(host), mode: mode) }
      #expect(error?.code == .badURL)
      #expect(error?.localizedDescription == "Nothing was purged: \(Self.advice(meant))")
    }
    #expect(fixture.logged.all == [])
    fixture.cache.removeCachedResponses(forHost: host)
    #expect(fixture.logged.all == ["LMDBURLCache: Nothing was removed: \(Self.advice(meant))"])
  }

  private static func advice(_ meant: String?) -> String {
    "the text is not one host alone. Write \"\(meant ?? "example.com")\", without a scheme, a port or a path."
  }

  @Test("A fetch in flight during a purge returns its response and does not store it", arguments: Kind.allCases)
  func inFlight(_ kind: Kind) async throws {
    let gate = Gate()
    try await withCache { request in
      let reply = Reply(200, [("Cache-Control", "max-age=600"), ("Cache-Groups", "\"g\"")], "\(request.method)")
      return request.method == "POST" || request.number > 0 ? reply : reply.held(at: gate)
    } _: { (fixture, origin) async throws in
      let url = origin.url("/dir/a")
      let session = fixture.session()
      async let response = session.data(from: url)
      await gate.waitForArrivals()
      try await kind.purge(fixture.cache, url)
      gate.open()
      #expect(try await response.0.text == "GET")
      #expect(!fixture.cache.isCached(url))
      _ = try await session.data(from: url)
      #expect(fixture.cache.isCached(url))
      try await kind.purge(fixture.cache, url)
      #expect(!fixture.cache.isCached(url))
    }
  }

  @Test("A revalidation in flight during a purge does not restore the response", arguments: Kind.allCases)
  func revalidationInFlight(_ kind: Kind) async throws {
    let gate = Gate()
    try await withCache { request in
      if request.method == "POST" { return Reply(200) }
      let fields = [("ETag", "\"1\""), ("Cache-Control", "max-age=60"), ("Cache-Groups", "\"g\"")]
      if request["If-None-Match"] != nil { return Reply(304, fields).held(at: gate) }
      return Reply(200, fields, "body")
    } _: { (fixture, origin) async throws in
      let url = origin.url("/dir/a")
      let cache = fixture.cache
      _ = try await cache.data(from: url)
      fixture.clock.advance(by: 100)
      async let response = cache.data(from: url)
      await gate.waitForArrivals()
      try await kind.purge(cache, url)
      gate.open()
      #expect(try await response.0.text == "body")
      #expect(!cache.isCached(url))
      try fixture.reopen()
      #expect(!fixture.cache.isCached(url))
    }
  }

  @Test("A purge since a date keeps responses stored at the date and removes later ones")
  func since() async throws {
    let fixture = try CacheFixture()
    let urls = (0..<3).map { URL(string: "http://example.com/\($0)")! }
    var dates: [Date] = []
    for url in urls {
      dates.append(fixture.clock.now)
      fixture.cache.storeCachedResponse(cached(url), for: URLRequest(url: url))
      fixture.clock.advance(by: 10)
    }
    fixture.cache.removeCachedResponses(since: dates[1])
    #expect(urls.map { fixture.cache.isCached($0) } == [true, true, false])
    try fixture.reopen()
    #expect(urls.map { fixture.cache.isCached($0) } == [true, true, false])
  }

  @Test("A purge reaches the memory tier of another cache of the directory")
  func otherCache() async throws {
    let fixture = try CacheFixture()
    let url = URL(string: "http://example.com/a")!
    let other = try LMDBURLCache(directory: fixture.directory, memoryCapacity: 1 << 20, diskCapacity: 16 << 20)
    for kind in [Kind.request, .all, .since, .host, .prefix] {
      fixture.cache.storeCachedResponse(cached(url), for: URLRequest(url: url))
      #expect(fixture.cache.isCached(url))
      #expect(other.isCached(url))
      let target = kind == .host ? URL(string: "http://example.com/a")! : url
      if kind == .host {
        other.removeCachedResponses(forHost: "example.com")
      } else {
        try await kind.purge(other, target)
      }
      #expect(!fixture.cache.isCached(url), "\(kind)")
    }
  }
}

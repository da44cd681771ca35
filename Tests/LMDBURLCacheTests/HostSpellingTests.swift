import CurlTransport
import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Testing

/// One host and port in different spellings. libcurl finds the names below `localhost` on this machine.
@Suite("Spellings of a host", .endsFixtures, .timeLimit(.minutes(1)))
struct HostSpellingTests {
  /// A host as in its key, and other spellings of it. `PORT` is the port of the origin.
  private static let spellings: [(canonical: String, others: [String])] = [
    ("localhost:PORT", ["LOCALHOST:PORT", "localhos%74:PORT", "LOCALHOS%54:00PORT", "%6cocalhost:0PORT"]),
    ("127.0.0.1:PORT", ["127.0.0%2e1:PORT", "\u{ff11}27.0.0.1:0PORT"]),
    (
      "xn--bcher-kva.localhost:PORT",
      ["b\u{fc}cher.localhost:PORT", "b%C3%BCcher.localhost:PORT", "B%C3%9CCHER.localhos%74:0PORT"]
    ),
  ]

  /// Calls `body` with each pair of a canonical URL and another spelling of it.
  private func forEachPair(
    _ body: (LMDBURLCache, LoopbackOrigin, _ canonical: URL, _ other: URL) async throws -> Void
  ) async throws {
    try await withCache(configure: { $0.transport = .curl(CurlTransport.Configuration()) }) { request in
      Reply(200, [("Cache-Control", "max-age=600")], request["Host"] ?? "")
    } _: { fixture, origin in
      func url(_ host: String) throws -> URL {
        try #require(URL(string: "http://\(host.replacing("PORT", with: "\(origin.port)"))/dir/a?b"))
      }
      for (canonical, others) in Self.spellings {
        for other in others { try await body(fixture.cache, origin, url(canonical), url(other)) }
      }
    }
  }

  @Test("All spellings share one stored response, which comes from the host of its key")
  func oneKey() async throws {
    try await forEachPair { cache, origin, canonical, other in
      let host = "\(canonical.host ?? ""):\(origin.port)"
      for (first, second) in [(canonical, other), (other, canonical)] {
        let count = origin.requestCount
        let fetched = try await cache.data(from: first).0.text
        // Upper case is sent as it is.
        #expect(fetched.lowercased() == host, "\(first)")
        #expect(try await cache.data(from: second).0.text == fetched, "\(second)")
        #expect(origin.requestCount == count + 1, "\(first) \(second)")
        cache.removeAllCachedResponses()
      }
    }
  }

  @Test("A purge of any spelling reaches the response, and so does a POST to it")
  func removals() async throws {
    try await forEachPair { cache, _, canonical, other in
      for (stored, purged) in [(canonical, other), (other, canonical)] {
        let host = try #require(purged.host(percentEncoded: true))
        let prefix = try #require(URL(string: purged.absoluteString.replacing("a?b", with: "")))
        let removals: [(String, () async throws -> Void)] = [
          ("host", { try await cache.purge(.host(host)) }), ("URL", { try await cache.purge(.url(purged)) }),
          ("prefix", { try await cache.purge(.prefix(prefix)) }),
          ("sync host", { cache.removeCachedResponses(forHost: host) }),
          ("request", { cache.removeCachedResponse(for: URLRequest(url: purged)) }),
          ("POST", { _ = try await cache.data(for: URLRequest(purged, method: "POST")) }),
        ]
        for (name, remove) in removals {
          _ = try await cache.data(from: stored)
          try #require(cache.isCached(stored))
          try await remove()
          #expect(!cache.isCached(stored), "\(name) of \(purged) reaches \(stored)")
        }
      }
    }
  }

  @Test(
    "A host without one canonical form is not sent and not stored",
    arguments: ["127.1", "2130706433", "0x7f.1", "0177.0.0.1", "localhos%2574", "a%2fb.localhost", "a%00.localhost"])
  func refused(_ host: String) async throws {
    let fixture = try CacheFixture { $0.transport = .curl(CurlTransport.Configuration()) }
    let url = try #require(URL(string: "http://\(host):1/"))
    await #expect(throws: URLError.self) { try await fixture.cache.data(from: url) }
    fixture.cache.storeCachedResponse(cached(url), for: URLRequest(url: url))
    #expect(!fixture.cache.isCached(url))
  }
}

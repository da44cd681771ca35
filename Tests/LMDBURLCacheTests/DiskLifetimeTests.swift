import CachingClient
import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Testing

@Suite("The minimum lifetime for the disk tier", .endsFixtures)
struct DiskLifetimeTests {
  /// Stores the response with these fields, and opens the directory again, as after a restart.
  private func withStored(
    _ fields: [(String, String)], minCacheInterval: Double? = nil,
    configure: (inout LMDBURLCache.Options) -> Void = { _ in },
    _ body: (CacheFixture, LoopbackOrigin) async throws -> Void
  ) async throws {
    try await withCache(configure: configure) { _ in
      Reply(200, fields, "body")
    } _: { (fixture, origin) async throws in
      if let minCacheInterval { fixture.cache.minCacheInterval = minCacheInterval }
      #expect(try await fixture.cache.data(from: origin.url("/")).0.text == "body")
      try fixture.reopen()
      try await body(fixture, origin)
    }
  }

  @Test(
    "A response that may be served stale is on disk after a restart, when the origin is down",
    arguments: [
      ("max-age=1, stale-if-error=3600", ResponseSource.staleOnError),
      ("stale-if-error=3600, max-age=0", .staleOnError),
      ("max-age=1, stale-while-revalidate=3600", .stale),
    ])
  func staleWindow(value: String, source: ResponseSource) async throws {
    try await withStored([("Cache-Control", value)]) { (fixture, origin) async throws in
      origin.stop()
      fixture.clock.advance(by: 600)
      let result = try await fixture.cache.load(URLRequest(url: origin.url("/")))
      #expect(result.source == source && result.data.text == "body")
    }
  }

  @Test("The windows of the options count, too", arguments: [true, false])
  func optionalWindow(isUnlimited: Bool) async throws {
    try await withStored(
      [("Cache-Control", "max-age=1")],
      configure: { options in
        if isUnlimited { options.caching.servesStaleWhenUnreachable = true }
        if !isUnlimited { options.caching.staleIfErrorByDefault = 3600 }
      }
    ) { (fixture, origin) async throws in
      origin.stop()
      fixture.clock.advance(by: 600)
      #expect(try await fixture.cache.load(URLRequest(url: origin.url("/"))).source == .staleOnError)
    }
  }

  @Test(
    "A window that is too short, or that the response forbids, does not count",
    arguments: [
      "max-age=1", "max-age=1, stale-if-error=200", "max-age=1, stale-while-revalidate=3600, must-revalidate",
      "max-age=1, stale-if-error=x",
    ])
  func shortLived(value: String) async throws {
    try await withStored([("Cache-Control", value)]) { (fixture, origin) async throws in
      #expect(!fixture.cache.isCached(origin.url("/")))
    }
  }

  @Test(
    "Without a minimum, a response that arrives stale is on disk, unless a directive forbids it",
    arguments: [("max-age=60", 0.0, true), ("max-age=0", 0, true), ("max-age=60", 1, false), ("no-store", 0, false)])
  func noMinimum(value: String, minimum: Double, isOnDisk: Bool) async throws {
    try await withStored([("Cache-Control", value), ("Age", "1000")], minCacheInterval: minimum) {
      (fixture, origin) async throws in
      #expect(fixture.cache.isCached(origin.url("/")) == isOnDisk)
    }
  }

  @Test("The same holds for responses that a caller stores")
  func storedByHand() async throws {
    let fixture = try CacheFixture()
    let urls = (0..<3).map { URL(string: "http://example.com/\($0)")! }
    let stale = ["Cache-Control": "max-age=60", "Age": "1000"]
    fixture.cache.storeCachedResponse(cached(urls[0], "body", stale), for: URLRequest(url: urls[0]))
    let window = ["Cache-Control": "max-age=60, stale-if-error=3600"]
    fixture.cache.storeCachedResponse(cached(urls[1], "body", window), for: URLRequest(url: urls[1]))
    fixture.cache.minCacheInterval = 0
    fixture.cache.storeCachedResponse(cached(urls[2], "body", stale), for: URLRequest(url: urls[2]))
    try fixture.reopen()
    #expect(urls.map { fixture.cache.isCached($0) } == [false, true, true])
  }
}

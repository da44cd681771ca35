import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Synchronization
import Testing

/// Origins that hang or fail, through every way in.
@Suite("Origins that hang or fail, over the network", .timeLimit(.minutes(1)))
struct FailingOriginTests {
  private static let storable = [
    ("Cache-Control", "max-age=0, stale-if-error=86400"), ("ETag", "\"1\""), ("Content-Type", "text/plain"),
  ]

  private enum Way: CaseIterable {
    case data, bytes, session, value
  }

  private func text(_ way: Way, _ url: URL, _ cache: LMDBURLCache) async throws -> String {
    switch way {
    case .data: return String(decoding: try await cache.data(from: url).0, as: UTF8.self)
    case .bytes:
      var data = Data()
      for try await chunk in try await cache.bytes(for: URLRequest(url: url)).0 { data += chunk }
      return String(decoding: data, as: UTF8.self)
    case .session:
      let session = URLSession(configuration: .default.caching(with: cache))
      defer { session.finishTasksAndInvalidate() }
      return String(decoding: try await session.data(from: url).0, as: UTF8.self)
    case .value:
      let response = try await cache.client.respond(
        to: CachingClientRequest(head: RequestHead(method: "GET", url: url)), over: CurlTransport())
      return String(decoding: try await response.body.collect(upTo: 1000), as: UTF8.self)
    }
  }

  private func expect(
    _ expected: String, _ way: Way, _ url: URL, _ cache: LMDBURLCache, _ location: SourceLocation = #_sourceLocation
  ) async throws {
    let loaded = try await text(way, url, cache)
    #expect(loaded == expected, sourceLocation: location)
  }

  @Test("A hanging origin costs the time once, and its late response is stored", arguments: Way.allCases)
  private func hang(way: Way) async throws {
    let gate = Gate()
    let hangs = Atomic(false)
    try await withCache { options in
      options.staleAfter = .milliseconds(50)
      // The origin is not asked again, however long the requests take.
      options.caching.holdOff = .seconds(600)...(.seconds(600))
    } origin: { request in
      guard hangs.load(ordering: .relaxed) else { return Reply(200, Self.storable, "old") }
      return Reply(200, [("Cache-Control", "max-age=600"), ("Content-Type", "text/plain")], "new").held(at: gate)
    } _: { fixture, origin in
      let url = origin.url("/page")
      try await expect("old", way, url, fixture.cache)
      hangs.store(true, ordering: .relaxed)
      try await expect("old", way, url, fixture.cache)
      // On a busy machine the caller may have the response before this is recorded, or before the origin is asked.
      #expect(try await waitInTask { fixture.cache.statistics.directory?.unansweredRequests == 1 })
      #expect(try await waitInTask { origin.requestCount == 2 })
      for _ in 0..<4 { try await expect("old", way, url, fixture.cache) }
      #expect(fixture.cache.statistics.directory?.unansweredRequests == 1)
      #expect(fixture.cache.statistics.directory?.heldOffRequests == 4)
      #expect(fixture.cache.prometheusText().contains("urlcache_unanswered_requests"))
      gate.open()
      await fixture.cache.finishBackgroundWork()
      try await expect("new", way, url, fixture.cache)
      #expect(origin.requestCount == 2)
    }
  }

  /// Runs a test with a cache that holds off an origin after one failure. It has stored "old", and the origin is dead.
  ///
  /// - Parameter test: The last argument makes the origin send another text; it sends 503 for "dead".
  private func withDeadOrigin(
    _ way: Way, disk: Int = 16 << 20,
    _ test: (CacheFixture, LoopbackOrigin, URL, (String) -> Void) async throws -> Void
  ) async throws {
    let text = Mutex("old")
    try await withCache(disk: disk) { options in
      options.caching.holdOff = .seconds(600)...(.seconds(600))
    } origin: { _ in
      let text = text.withLock { $0 }
      return text == "dead" ? Reply(503, [], text) : Reply(200, Self.storable, text)
    } _: { fixture, origin in
      let url = origin.url("/page")
      try await expect("old", way, url, fixture.cache)
      text.withLock { $0 = "dead" }
      for _ in 0..<3 { try await expect("old", way, url, fixture.cache) }
      #expect(origin.requestCount == 2)
      try await test(fixture, origin, url) { new in text.withLock { $0 = new } }
    }
  }

  @Test("A dead origin gets one request in the time, and a purge goes past it", arguments: Way.allCases)
  private func holdOff(way: Way) async throws {
    try await withDeadOrigin(way) { fixture, origin, url, _ in
      #expect(fixture.cache.statistics.directory?.heldOffRequests == 2)
      try await fixture.cache.purge(.url(url))
      try await expect("dead", way, url, fixture.cache)
      #expect(origin.requestCount == 3)
    }
  }

  /// The cache or process that purges.
  private enum Purger: CaseIterable {
    case cache, cacheWithoutStore, secondCache, process

    func purge(_ url: URL, in fixture: CacheFixture) async throws {
      switch self {
      case .cache, .cacheWithoutStore: _ = try await fixture.cache.purge(.url(url), mode: .soft)
      case .secondCache:
        let second = try LMDBURLCache(directory: fixture.directory, memoryCapacity: 0, diskCapacity: 16 << 20)
        _ = try await second.purge(.url(url), mode: .soft)
      case .process:
        await #expect(processExitsWith: .success) { [path = fixture.directory.path as String] in
          try CacheDirectory(existingAt: URL(fileURLWithPath: path)).remove(.all, mode: .soft)
        }
      }
    }
  }

  @Test(
    "After a soft purge the origin is asked, and held off again if it still fails",
    arguments: Way.allCases.map { ($0, Purger.cache) } + Purger.allCases.dropFirst().map { (Way.data, $0) })
  private func softPurge(way: Way, purger: Purger) async throws {
    try await withDeadOrigin(way, disk: purger == .cacheWithoutStore ? 0 : 16 << 20) { fixture, origin, url, send in
      try await purger.purge(url, in: fixture)
      for _ in 0..<3 { try await expect("old", way, url, fixture.cache) }
      #expect(origin.requestCount == 3)
      send("new")
      try await purger.purge(url, in: fixture)
      try await expect("new", way, url, fixture.cache)
      #expect(origin.requestCount == 4)
    }
  }

  @Test("A rule sets the time for a path")
  func rule() async throws {
    let gate = Gate()
    let hangs = Atomic(false)
    let json = #"[{"name": "news", "paths": ["/news/*"], "staleAfter": "0s"}]"#
    let rules = try JSONDecoder().decode(CachingRules.self, from: Data(json.utf8))
    try await withCache { options in
      options.staleAfter = nil
      options.rules = rules
    } origin: { request in
      guard hangs.load(ordering: .relaxed) else { return Reply(200, Self.storable, "old") }
      return Reply(200, Self.storable, "new").held(at: gate)
    } _: { fixture, origin in
      let url = origin.url("/news/1")
      _ = try await fixture.cache.data(from: url)
      hangs.store(true, ordering: .relaxed)
      try await expect("old", .data, url, fixture.cache)
      gate.open()
      await fixture.cache.finishBackgroundWork()
    }
  }
}

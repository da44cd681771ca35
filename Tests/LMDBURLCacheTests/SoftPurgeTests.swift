import CachingClient
import Foundation
import FoundationNetworking
import Glibc
import LMDBURLCache
import LoopbackOrigin
import Testing

@Suite("Soft purges", .endsFixtures)
struct SoftPurgeTests {
  /// A scope that covers `/dir/a` of the origin.
  enum Scope: CaseIterable, Sendable {
    case all, since, host, prefix, group, url, tag

    func scope(_ url: URL) -> PurgeScope {
      switch self {
      case .all: .all
      case .since: .since(.distantPast)
      case .host: .host("127.0.0.1")
      case .prefix: .prefix(url.deletingLastPathComponent())
      case .group: .group("g", origin: url)
      case .url: .url(url)
      case .tag: .tag("g")
      }
    }
  }

  /// The tiers of a cache.
  enum Tiers: CaseIterable, Sendable {
    case both, disk, memory

    var memory: Int { self == .disk ? 0 : 4 << 20 }
    var disk: Int { self == .memory ? 0 : 16 << 20 }
  }

  private static func reply(to request: RecordedRequest, _ directives: String = "max-age=600") -> Reply {
    let fields = [("ETag", "\"1\""), ("Cache-Control", directives), ("Cache-Groups", "\"g\"")]
    return request["If-None-Match"] == nil ? Reply(200, fields, "body") : Reply(304, fields)
  }

  @Test(
    "A covered response is validated once before it is served, and is fresh then", arguments: Scope.allCases,
    Tiers.allCases)
  func validatedOnce(_ scope: Scope, _ tiers: Tiers) async throws {
    try await withCache(memory: tiers.memory, disk: tiers.disk) {
      Self.reply(to: $0)
    } _: { fixture, origin in
      let request = URLRequest(url: origin.url("/dir/a"))
      func source() async throws -> ResponseSource { try await fixture.cache.load(request).source }
      #expect(try await source() == .miss)
      fixture.clock.advance(by: 10)
      try await fixture.cache.purge(scope.scope(request.url!), mode: .soft)
      #expect(fixture.cache.cachedResponse(for: request)?.data.text == "body")
      let result = try await fixture.cache.load(request)
      #expect(result.source == .revalidated && result.data.text == "body")
      #expect(origin.requests.last?["If-None-Match"] == "\"1\"")
      #expect(try await source() == .hit)
      #expect(origin.requestCount == 2)
      // Also without the memory tier, and in another cache.
      guard tiers != .memory else { return }
      try fixture.reopen(memory: 0)
      #expect(try await source() == .hit)
      try await fixture.cache.purge(scope.scope(request.url!), mode: .soft)
      #expect(try await source() == .revalidated)
      try fixture.reopen(memory: 0)
      #expect(try await source() == .hit)
    }
  }

  @Test("A session validates a covered response, and other responses stay fresh", arguments: Tiers.allCases)
  func session(_ tiers: Tiers) async throws {
    try await withCache(memory: tiers.memory, disk: tiers.disk) {
      Self.reply(to: $0)
    } _: { fixture, origin in
      let session = fixture.session()
      for path in ["/a", "/b"] { _ = try await session.data(from: origin.url(path)) }
      try await fixture.cache.purge(.url(origin.url("/a")), mode: .soft)
      for _ in 0..<2 {
        for path in ["/a", "/b"] { #expect(try await session.data(from: origin.url(path)).0.text == "body") }
      }
      #expect(origin.requests.map(\.path) == ["/a", "/b", "/a"])
      #expect(origin.requests.last?["If-None-Match"] == "\"1\"")
    }
  }

  @Test("Concurrent requests after a soft purge send one conditional request for each key", arguments: Tiers.allCases)
  func oneRequest(_ tiers: Tiers) async throws {
    try await withCache(memory: tiers.memory, disk: tiers.disk) {
      Self.reply(to: $0)
    } _: { fixture, origin in
      let urls = (0..<10).map { origin.url("/\($0)") }
      for url in urls { _ = try await fixture.cache.data(from: url) }
      try await fixture.cache.purge(.all, mode: .soft)
      let cache = fixture.cache
      try await withThrowingTaskGroup(of: Void.self) { group in
        for _ in 0..<10 {
          for url in urls {
            group.addTask {
              let body = try await cache.data(from: url).0
              #expect(body.text == "body")
            }
          }
        }
        try await group.waitForAll()
      }
      #expect(origin.requests.dropFirst(urls.count).count { $0["If-None-Match"] != nil } == urls.count)
      #expect(origin.requestCount == 2 * urls.count)
    }
  }

  /// The cache that makes a soft purge.
  enum Purger: CaseIterable, Sendable { case own, otherCache }

  @Test(
    "A validation that began before a soft purge does not make the response fresh", arguments: Tiers.allCases,
    Purger.allCases)
  func validationInFlight(_ tiers: Tiers, _ purger: Purger) async throws {
    guard tiers != .memory || purger == .own else { return }
    let gate = Gate()
    try await withCache(memory: tiers.memory, disk: tiers.disk) { request in
      let reply = Self.reply(to: request)
      return request.number == 1 ? reply.held(at: gate) : reply
    } _: { fixture, origin in
      let cache = fixture.cache
      let request = URLRequest(url: origin.url("/a"))
      _ = try await cache.load(request)
      // The first soft purge, so that the second one changes nothing in the record.
      try await cache.purge(.all, mode: .soft)
      async let validated = cache.load(request)
      await gate.waitForArrivals()
      let other =
        purger == .own
        ? cache : try LMDBURLCache(directory: fixture.directory, memoryCapacity: 0, diskCapacity: 16 << 20)
      try await other.purge(.all, mode: .soft)
      gate.open()
      #expect(try await validated.source == .revalidated)
      #expect(try await cache.load(request).source == .revalidated)
      #expect(try await cache.load(request).source == .hit)
      #expect(origin.requestCount == 3)
    }
  }

  @Test("A fetch in flight during a soft purge does not store a fresh response", arguments: Tiers.allCases)
  func fetchInFlight(_ tiers: Tiers) async throws {
    let gate = Gate()
    try await withCache(memory: tiers.memory, disk: tiers.disk) { request in
      let reply = Self.reply(to: request)
      return request.number == 0 ? reply.held(at: gate) : reply
    } _: { fixture, origin in
      let cache = fixture.cache
      let request = URLRequest(url: origin.url("/a"))
      async let fetched = cache.load(request)
      await gate.waitForArrivals()
      try await cache.purge(.all, mode: .soft)
      gate.open()
      #expect(try await fetched.source == .miss)
      #expect(try await cache.load(request).source != .hit)
      #expect(try await cache.load(request).source == .hit)
      #expect(origin.requestCount == 2)
    }
  }

  @Test("A failing fetch that a soft purge overtakes may still serve a stale response")
  func failureInFlight() async throws {
    let gate = Gate()
    try await withCache { request in
      guard request.number > 0 else { return Self.reply(to: request, "max-age=600, stale-if-error=60") }
      return Reply(503).held(at: gate)
    } _: { fixture, origin in
      let cache = fixture.cache
      let request = URLRequest(url: origin.url("/a"))
      _ = try await cache.load(request)
      try await cache.purge(.all, mode: .soft)
      async let response = cache.load(request)
      await gate.waitForArrivals()
      try await cache.purge(.all, mode: .soft)
      gate.open()
      #expect(try await response.source == .staleOnError)
    }
  }

  @Test("A soft purge reaches the memory tiers of other caches of the directory, also of one without a disk tier")
  func otherCaches() async throws {
    try await withCache {
      Self.reply(to: $0)
    } _: { fixture, origin in
      let request = URLRequest(url: origin.url("/a"))
      var options = LMDBURLCache.Options()
      options.clock = { [clock = fixture.clock] in clock.now }
      let caches = [
        fixture.cache,
        try LMDBURLCache(
          directory: fixture.directory, memoryCapacity: 1 << 20, diskCapacity: 16 << 20, options: options),
        try LMDBURLCache(directory: fixture.directory, memoryCapacity: 1 << 20, diskCapacity: 0, options: options),
      ]
      // A cache without a disk tier does not share responses.
      let own = URLRequest(url: origin.url("/own"))
      let loads = [(caches[0], request), (caches[1], request), (caches[2], own)]
      for (cache, request) in loads { _ = try await cache.load(request) }
      for (cache, request) in loads { #expect(try await cache.load(request).source == .hit) }
      try await caches[0].purge(.host("127.0.0.1"), mode: .soft)
      let count = origin.requestCount
      // The first cache updates the shared disk tier, so the second one needs no request of its own.
      #expect(try await caches[0].load(request).source == .revalidated)
      #expect(try await caches[1].load(request).source == .hit)
      #expect(try await caches[2].load(own).source == .revalidated)
      #expect(origin.requestCount == count + 2)
    }
  }

  @Test("A soft purge by a process that is killed at once is in force after it, and in a cache that is open")
  func killed() async throws {
    let fixture = try CacheFixture()
    let origin = try LoopbackOrigin { Self.reply(to: $0) }
    defer { origin.stop() }
    let urls = (0..<300).map { origin.url("/\($0)") }
    for url in urls { _ = try await fixture.cache.data(from: url) }
    fixture.cache.flush()
    setenv("LMDBURLCACHE_TEST_DIRECTORY", fixture.directory.path, 1)
    defer { unsetenv("LMDBURLCACHE_TEST_DIRECTORY") }
    await #expect(processExitsWith: .signal(SIGKILL)) {
      let path = ProcessInfo.processInfo.environment["LMDBURLCACHE_TEST_DIRECTORY"]!
      let cache = try LMDBURLCache(
        directory: URL(fileURLWithPath: path), memoryCapacity: 1 << 20, diskCapacity: 16 << 20)
      try await cache.purge(.host("127.0.0.1"), mode: .soft)
      kill(getpid(), SIGKILL)
    }
    #expect(try await fixture.cache.load(URLRequest(url: urls[0])).source == .revalidated)
    try fixture.reopen()
    for url in urls.dropFirst().prefix(20) {
      #expect(try await fixture.cache.load(URLRequest(url: url)).source == .revalidated)
    }
    #expect(try await fixture.cache.load(URLRequest(url: urls[0])).source == .hit)
  }

  @Test("A request that accepts any age is served a covered response, and only-if-cached is not")
  func policies() async throws {
    try await withCache {
      Self.reply(to: $0)
    } _: { fixture, origin in
      let url = origin.url("/a")
      _ = try await fixture.cache.data(from: url)
      try await fixture.cache.purge(.all, mode: .soft)
      let anyAge = try await fixture.cache.load(URLRequest(url, policy: .returnCacheDataDontLoad))
      #expect(anyAge.source == .stale)
      let cached = try await fixture.cache.load(URLRequest(url, ["Cache-Control": "only-if-cached"]))
      #expect(cached.source == .unavailable)
      let result = try await fixture.cache.load(URLRequest(url: url))
      #expect(result.source == .revalidated)
    }
  }

  @Test("A subclass gets the covered response, and its update is stored")
  func subclass() async throws {
    final class Subclass: LMDBURLCache, @unchecked Sendable {
      override func cachedResponse(for request: URLRequest) -> CachedURLResponse? { super.cachedResponse(for: request) }
    }
    let fixture = try CacheFixture()
    let origin = try LoopbackOrigin { Self.reply(to: $0) }
    defer { origin.stop() }
    let cache = try Subclass(directory: fixture.directory, memoryCapacity: 1 << 20, diskCapacity: 16 << 20)
    let request = URLRequest(url: origin.url("/a"))
    _ = try await cache.load(request)
    try await cache.purge(.all, mode: .soft)
    #expect(try await cache.load(request).source == .revalidated)
    #expect(try await cache.load(request).source == .hit)
  }

  @Test("A soft purge of an invalid URL throws, and one that covers nothing leaves responses fresh")
  func uncovered() async throws {
    try await withCache {
      Self.reply(to: $0)
    } _: { fixture, origin in
      let cache = fixture.cache
      _ = try await cache.data(from: origin.url("/a"))
      let error = await #expect(throws: URLError.self) {
        try await cache.purge(.url(URL(string: "/a")!), mode: .soft)
      }
      #expect(error?.code == .badURL)
      for scope in [PurgeScope.host("localhost"), .since(.distantFuture), .group("h", origin: origin.url("/a"))] {
        try await cache.purge(scope, mode: .soft)
      }
      #expect(try await cache.load(URLRequest(url: origin.url("/a"))).source == .hit)
    }
  }
}

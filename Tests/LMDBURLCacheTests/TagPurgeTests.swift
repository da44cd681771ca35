import CachingClient
import Foundation
import FoundationNetworking
import Glibc
import HTTPCaching
import LMDBURLCache
import LoopbackOrigin
import Testing

/// A shop purges "everything with product 42".
@Suite("Purges by tag", .timeLimit(.minutes(1)))
struct TagPurgeTests {
  private static let lifetime = ("Cache-Control", "max-age=600")
  private static let names = ["Surrogate-Key", "xkey", "Cache-Tag", "Labels", "Cache-Groups"]

  /// Returns a field with tags, in its own syntax.
  private static func field(_ name: String, _ tags: String...) -> (String, String) {
    let value =
      switch name {
      case "Cache-Groups": tags.map { "\"\($0)\"" }.joined(separator: ", ")
      case "Cache-Tag": tags.joined(separator: ",")
      default: tags.joined(separator: " ")
      }
    return (name, value)
  }

  /// Replies with the tags of a path such as `/xkey/product-42`.
  private static func reply(to request: RecordedRequest) -> Reply {
    let parts = request.path.split(separator: "/").map(String.init)
    let fields = [lifetime, ("ETag", "\"1\""), field(parts[0], "list", parts[1], "shop")]
    return request["If-None-Match"] == nil ? Reply(200, fields, "body") : Reply(304, fields)
  }

  @Test(
    "A purge by tag covers the responses that have the tag in one of the fields, and no others",
    arguments: SoftPurgeTests.Tiers.allCases, [PurgeMode.hard, .soft])
  func fields(_ tiers: SoftPurgeTests.Tiers, _ mode: PurgeMode) async throws {
    try await withCache(memory: tiers.memory, disk: tiers.disk) {
      $0.caching.tagFieldNames = Self.names
    } origin: {
      Self.reply(to: $0)
    } _: { fixture, origin in
      let cache = fixture.cache
      let urls = Self.names.flatMap { name in
        ["product-42", "product-4", "Product-42", "product-421"].map { origin.url("/\(name)/\($0)") }
      }
      for isCommitted in [false, true] {
        for url in urls { _ = try await cache.data(from: url) }
        if isCommitted, tiers != .memory { #expect(cache.flush()) }
        try await cache.purge(.tag("product-42"), mode: mode)
        for url in urls {
          let isCovered = url.lastPathComponent == "product-42"
          #expect(cache.isCached(url) == (mode == .soft || !isCovered), "\(url)")
          if mode == .hard, isCovered { continue }
          let source = try await cache.load(URLRequest(url, policy: .returnCacheDataDontLoad)).source
          #expect(source == (isCovered ? .stale : .hit), "\(url)")
        }
        if mode == .soft { cache.removeAllCachedResponses() }
      }
    }
  }

  @Test("A purge by tag covers all hosts, or one origin", arguments: SoftPurgeTests.Tiers.allCases)
  func origins(_ tiers: SoftPurgeTests.Tiers) async throws {
    try await withCache(memory: tiers.memory, disk: tiers.disk) { _ in
    } origin: {
      Self.reply(to: $0)
    } _: { fixture, origin in
      let cache = fixture.cache
      let other = try LoopbackOrigin { Self.reply(to: $0) }
      defer { other.stop() }
      let urls = [origin, other].map { $0.url("/Cache-Groups/a") }
      for url in urls { _ = try await cache.data(from: url) }
      try await cache.purge(.tag("a", origin: origin.url("/any?x")))
      #expect(urls.map { cache.isCached($0) } == [false, true])
      _ = try await cache.data(from: urls[0])
      try await cache.purge(.tag("b"))
      #expect(urls.map { cache.isCached($0) } == [true, true])
      try await cache.purge(.tag("a"))
      #expect(urls.map { cache.isCached($0) } == [false, false])
    }
  }

  private enum Space: CaseIterable {
    case user, query, equivalent
  }

  @Test(
    "A purge by tag reaches users, queries and equivalent URLs one by one", arguments: Space.allCases, [0, 4 << 20])
  private func spaces(_ space: Space, memory: Int) async throws {
    try await withCache(memory: memory) { _ in
    } origin: { request in
      let content = String(decoding: request.body, as: UTF8.self)
      let number = Int((request["Authorization"] ?? request.query ?? content).filter(\.isNumber)) ?? 0
      var fields = [("Cache-Control", "private, max-age=600"), Self.field("Cache-Groups", "all", "g\(number % 3)")]
      if space == .equivalent { fields.append(("No-Vary-Search", #"params=("utm")"#)) }
      return Reply(200, fields, "body \(number)")
    } _: { fixture, origin in
      let cache = fixture.cache
      let requests = (0..<12).map { number in
        var request = URLRequest(url: origin.url(space == .equivalent ? "/a?id=\(number)" : "/a"))
        if space == .user { request.setValue("Bearer \(number)", forHTTPHeaderField: "Authorization") }
        if space == .query {
          request = URLRequest(request.url!, method: "QUERY", ["Content-Type": "text/plain"])
          request.httpBody = Data("content \(number)".utf8)
        }
        return request
      }
      func load() async throws -> [Int] {
        var fetched: [Int] = []
        for (number, request) in requests.enumerated() {
          let result = try await cache.load(request)
          #expect(result.data.text == "body \(number)")
          if result.source == .miss { fetched.append(number) }
        }
        return fetched
      }
      #expect(try await load().count == 12)
      #expect(try await load() == [])
      try await cache.purge(.tag("g1"))
      #expect(try await load() == [1, 4, 7, 10])
      #expect(cache.flush())
      try await cache.purge(.tag("g2", origin: origin.url("/")))
      #expect(try await load() == [2, 5, 8, 11])
      try await cache.purge(.tag("all"))
      #expect(try await load().count == 12)
    }
  }

  /// Purges by tag in another process, which then ends, or is killed.
  private func purgeInOtherProcess(
    _ tag: String, in directory: URL, fieldNames: [String], mode: PurgeMode = .hard, isKilled: Bool
  ) async {
    await #expect(processExitsWith: isKilled ? .signal(SIGKILL) : .success) {
      [
        tag = tag as String, path = directory.path as String, names = fieldNames as [String],
        isSoft = (mode == .soft) as Bool, isKilled = isKilled as Bool
      ] in
      var options = LMDBURLCache.Options()
      options.caching.tagFieldNames = names
      let cache = try LMDBURLCache(
        directory: URL(fileURLWithPath: path), memoryCapacity: 0, diskCapacity: 16 << 20, options: options)
      try await cache.purge(.tag(tag), mode: isSoft ? .soft : .hard)
      if isKilled { kill(getpid(), SIGKILL) }
    }
  }

  @Test(
    "A purge by a process with other fields reaches the memory of this one, also if the process is killed at once",
    arguments: [PurgeMode.hard, .soft], [false, true])
  func processes(_ mode: PurgeMode, isKilled: Bool) async throws {
    try await withCache { _ in
    } origin: {
      Self.reply(to: $0)
    } _: { fixture, origin in
      let cache = fixture.cache
      let (url, other) = (origin.url("/xkey/a"), origin.url("/xkey/b"))
      for url in [url, other] { _ = try await cache.data(from: url) }
      // Here the field has no tags.
      try await cache.purge(.tag("a"))
      #expect(cache.isCached(url))
      #expect(cache.flush())
      await purgeInOtherProcess(
        "a", in: fixture.directory, fieldNames: ["Cache-Tag", "XKEY"], mode: mode, isKilled: isKilled)
      #expect(cache.isCached(url) == (mode == .soft) && cache.isCached(other))
      let expected = mode == .soft ? ResponseSource.revalidated : .miss
      #expect(try await cache.load(URLRequest(url: url)).source != .hit)
      #expect(try await cache.load(URLRequest(url: other)).source == .hit)
      try await cache.purge(.tag("a", fieldNames: ["xkey"]), mode: mode)
      try fixture.reopen(memory: 0)
      #expect(try await fixture.cache.load(URLRequest(url: url)).source == expected)
    }
  }

  @Test(
    "A purge by a tag that another process has updated reaches the copy in memory with the earlier tags",
    arguments: [PurgeMode.hard, .soft])
  func updatedTags(_ mode: PurgeMode) async throws {
    try await withCache { _ in
    } origin: { request in
      let isValidation = request["If-None-Match"] != nil
      let fields = [Self.lifetime, ("ETag", "\"1\""), Self.field("Cache-Groups", isValidation ? "new" : "old")]
      return isValidation ? Reply(304, fields) : Reply(200, fields, "body")
    } _: { fixture, origin in
      let cache = fixture.cache
      let request = URLRequest(url: origin.url("/a"))
      _ = try await cache.load(request)
      #expect(cache.flush())
      await #expect(processExitsWith: .success) {
        [path = fixture.directory.path as String, url = request.url! as URL, now = fixture.clock.now as Date] in
        var options = LMDBURLCache.Options()
        options.clock = { now }
        let cache = try LMDBURLCache(
          directory: URL(fileURLWithPath: path), memoryCapacity: 0, diskCapacity: 16 << 20, options: options)
        let source = try await cache.load(URLRequest(url, ["Cache-Control": "no-cache"])).source
        guard source == .revalidated, cache.flush() else { exit(1) }
      }
      #expect(try await cache.load(request).source == .hit)
      await purgeInOtherProcess("new", in: fixture.directory, fieldNames: ["Cache-Groups"], mode: mode, isKilled: false)
      #expect(try await cache.load(request).source != .hit)
    }
  }

  @Test(
    "A response whose head or body arrives during a purge by tag is not stored, and later requests do not join",
    arguments: [true, false], [0, 16 << 20])
  func inFlight(hasHead: Bool, disk: Int) async throws {
    let gate = Gate()
    try await withCache(disk: disk) { _ in
    } origin: { request in
      let reply = Reply(200, [Self.lifetime, Self.field("Cache-Groups", "a")], "body \(request.number)")
      if request.number > 0 { return reply }
      return hasHead ? reply.held(at: gate, afterBodyBytes: 2) : reply.held(at: gate)
    } _: { fixture, origin in
      let (cache, url) = (fixture.cache, origin.url("/a"))
      async let early = cache.data(from: url)
      await gate.waitForArrivals()
      try await cache.purge(.tag("a"))
      #expect(try await cache.data(from: url).0.text == "body 1")
      gate.open()
      #expect(try await early.0.text == "body 0")
      #expect(try await cache.data(from: url).0.text == "body 1")
      #expect(origin.requestCount == 2)
    }
  }

  @Test("A validation that adds a tag while another process purges it does not make the response fresh")
  func validationInFlight() async throws {
    let gate = Gate()
    try await withCache { _ in
    } origin: { request in
      let isValidation = request["If-None-Match"] != nil
      let fields = [
        ("Cache-Control", "max-age=5"), ("ETag", "\"1\""), Self.field("Cache-Groups", isValidation ? "new" : "old"),
      ]
      return isValidation ? Reply(304, fields).held(at: gate) : Reply(200, fields, "body \(request.number)")
    } _: { fixture, origin in
      fixture.cache.minCacheInterval = 0
      let (cache, url) = (fixture.cache, origin.url("/a"))
      _ = try await cache.data(from: url)
      #expect(cache.flush())
      fixture.clock.advance(by: 100)
      async let validated = cache.load(URLRequest(url: url))
      await gate.waitForArrivals()
      await purgeInOtherProcess("new", in: fixture.directory, fieldNames: ["Cache-Groups"], isKilled: false)
      gate.open()
      _ = try await validated
      #expect(cache.flush())
      #expect(try await cache.load(URLRequest(url: url)).source != .hit)
    }
  }

  @Test("A response with too many tags is not stored, and the rule says so", arguments: [1001, 100_000])
  func limits(count: Int) async throws {
    try await withCache {
      $0.caching.tagFieldNames = ["xkey"]
    } origin: { request in
      let count = request.path == "/most" ? 1000 : count
      // libcurl reads no longer lines.
      let lines = stride(from: 0, to: count, by: 10_000).map { start in
        ("xkey", String(repeating: "t ", count: min(count - start, 10_000)))
      }
      return Reply(200, [Self.lifetime] + lines, "body")
    } _: { fixture, origin in
      let cache = fixture.cache
      let (url, most) = (origin.url("/a"), origin.url("/most"))
      for _ in 0..<2 {
        let result = try await cache.load(URLRequest(url: url))
        #expect(result.data.text == "body" && result.source == .miss)
        #expect(result.storageRefusal == .tooManyTags)
        #expect(result.response.cacheProvenance?.storage == .notStored(.tooManyTags))
      }
      _ = try await cache.data(from: most)
      #expect(!cache.isCached(url) && cache.isCached(most))
      #expect(cache.statistics.requests.storageRefusals == ["too-many-tags": 2])
      #expect(fixture.logged.all.count { $0.contains("more or longer tags than the cache keeps") } == 1)
      #expect(cache.prometheusText().contains("rule=\"too-many-tags\"} 2\n"))
      let inspected = try CacheDirectory(existingAt: fixture.directory)
      #expect(inspected.explain(URLRequest(url: url))?.lastRefusal?.rule == "too-many-tags")
      // By hand.
      let fields = ["Cache-Control": "max-age=600", "xkey": String(repeating: "t ", count: count)]
      cache.storeCachedResponse(self.cached(most, fields), for: URLRequest(url: most))
      #expect(!cache.isCached(most))
      try await cache.purge(.tag("t"))
    }
  }

  private func cached(_ url: URL, _ fields: [String: String]) -> CachedURLResponse {
    CachedURLResponse(response: httpResponse(url, fields), data: Data("by hand".utf8))
  }

  @Test("A tag with any bytes is purged by these bytes, and an empty one is an error")
  func bytes() async throws {
    try await withCache {
      $0.caching.tagFieldNames = ["xkey"]
    } origin: { _ in
      Reply(404)
    } _: { fixture, origin in
      let cache = fixture.cache
      let latin = FieldText.text(ofBytes: [0xFC])
      let tags = ["\"quoted\"", "(a)", "ü", "u\u{308}", "日本", String(repeating: "long", count: 1000)]
      for (number, tag) in tags.enumerated() {
        let url = origin.url("/\(number)")
        cache.storeCachedResponse(
          cached(url, ["Cache-Control": "max-age=600", "xkey": "a \(tag) b"]), for: URLRequest(url: url))
      }
      for (number, tag) in tags.enumerated() {
        try await cache.purge(.tag(latin))
        #expect(cache.isCached(origin.url("/\(number)")))
        try await cache.purge(.tag(tag))
        for other in tags.indices { #expect(cache.isCached(origin.url("/\(other)")) == (other > number), "\(tag)") }
      }
      for scope in [PurgeScope.tag(""), .tag("a", origin: URL(string: "/a")!), .tag("a", fieldNames: [])] {
        let error = await #expect(throws: URLError.self) { try await cache.purge(scope) }
        #expect(error?.localizedDescription.hasPrefix("Nothing was purged: ") == true)
      }
    }
  }
}

import CacheActivity
import CachingClient
import Foundation
import FoundationNetworking
import Glibc
import HTTPCaching
import LMDBURLCache
import LoopbackOrigin
import ResponseStore
import Testing

@Suite("Events, entries and shared statistics", .timeLimit(.minutes(1)))
struct EventTests {
  private static let handler: LoopbackOrigin.Handler = { request in
    request.path == "/secret"
      ? Reply(200, [("Cache-Control", "no-store")], "secret")
      : Reply(200, [("Cache-Control", "max-age=600")], "body")
  }

  private struct Unexpected: Error {}

  /// Fails the store, and waits until the cache has another one.
  private func failStore(_ fixture: CacheFixture) async throws {
    let cache = fixture.cache
    #expect(unlink(fixture.directory.path + "/data-1/data.mdb") == 0)
    // The removal finds the data deleted.
    cache.removeAllCachedResponses()
    // A lookup triggers the recovery.
    let url = try #require(URL(string: "http://example.com/"))
    try await waitInTask {
      _ = cache.isCached(url)
      return cache.core.store?.hasFailed == false
    }
    #expect(cache.core.store?.hasFailed == false)
  }

  @Test("A stream has the events of requests, purges and failures, in order")
  func events() async throws {
    try await withCache(origin: Self.handler) { fixture, origin in
      let cache = fixture.cache
      let stream = cache.events
      let (url, secret) = (origin.url("/a"), origin.url("/secret"))
      for url in [url, url, secret] { _ = try await cache.data(from: url) }
      cache.removeAllCachedResponses()
      try await failStore(fixture)
      var events: [CacheEvent] = []
      for await event in stream {
        events.append(event)
        if event == .reopened { break }
      }
      var answered: [RequestEvent] = []
      for case .answered(let event) in events { answered.append(event) }
      #expect(answered.map(\.outcome) == [.miss, .hit, .miss])
      #expect(answered.map(\.url) == [url, url, secret].map(\.absoluteString))
      #expect(answered.map(\.status) == [200, 200, 200])
      #expect(answered[1].byteCount == 4)
      #expect(answered[1].timeToLive == 600)
      #expect(answered[2].rule == "no-store")
      let others = events.filter { if case .answered = $0 { false } else { true } }
      #expect(others.contains(.fetchBegan(method: "GET", url: url.absoluteString)))
      #expect(others.contains(.stored(url: url.absoluteString, byteCount: 4)))
      #expect(others.contains(.refused(url: secret.absoluteString, rule: "no-store")))
      #expect(others.contains(.purged(scope: .everything, isSoft: false)))
      try #require(others.count == 7)
      guard case .storeFailed(let reason) = others[5] else { throw Unexpected() }
      #expect(reason == "its directory or its data was deleted, renamed or replaced")
      #expect(cache.droppedEventCount == 0)
    }
  }

  @Test("No event and no file has the user and password of a URL")
  func users() async throws {
    try await withCache(origin: Self.handler) { fixture, origin in
      let cache = fixture.cache
      let stream = cache.events
      let directory = try CacheDirectory(existingAt: fixture.directory)
      let watch = try #require(directory.watchEvents())
      func url(_ path: String) throws -> URL {
        let text = origin.url(path).absoluteString.replacing("://", with: "://top-user:top-secret@")
        return try #require(URL(string: text))
      }
      for path in ["/a", "/a", "/secret"] { _ = try await cache.data(from: url(path)) }
      _ = try await cache.data(for: URLRequest(url("/a"), method: "POST"))
      let manual = try url("/manual?b")
      cache.storeCachedResponse(cached(manual), for: URLRequest(url: manual))
      #expect(cache.cachedResponse(for: URLRequest(url: manual))?.response.url == manual)
      try await cache.purge(.url(url("/a")))
      #expect(cache.flush())
      var events: [CacheEvent] = []
      for await event in stream {
        events.append(event)
        if case .purged(.target, _) = event, events.count > 9 { break }
      }
      let texts = events.map { "\($0)" }
      for name in ["answered", "fetchBegan", "stored", "refused", "purged"] {
        #expect(texts.contains { $0.hasPrefix(name) }, "\(name)")
      }
      let urls = watch.next().map(\.url)
      #expect(urls == ["/a", "/a", "/secret", "/a"].map { origin.url($0).absoluteString })
      #expect(!(texts + urls + fixture.logged.all).contains { $0.contains("top-") })
      for name in try FileManager.default.subpathsOfDirectory(atPath: fixture.directory.path) where name != "data-1" {
        let content = try Data(contentsOf: fixture.directory.appendingPathComponent(name))
        #expect(content.range(of: Data("top-".utf8)) == nil, "\(name)")
      }
    }
  }

  @Test("A slow reader loses the oldest events, which are counted")
  func slowReader() async throws {
    try await withCache(origin: Self.handler) { fixture, origin in
      let cache = fixture.cache
      _ = try await cache.data(from: origin.url("/a"))
      let stream = cache.events
      for _ in 0..<(LMDBURLCache.eventBufferCount + 10) { _ = try await cache.data(from: origin.url("/a")) }
      #expect(cache.droppedEventCount == 10)
      _ = stream
    }
  }

  @Test("An event costs nothing after the last reader has left")
  func end() async throws {
    try await withCache(origin: Self.handler) { fixture, origin in
      let observers = fixture.cache.core.activity.observers
      var stream: AsyncStream<CacheEvent>? = fixture.cache.events
      #expect(observers.isObserved && stream != nil)
      stream = nil
      #expect(!observers.isObserved)
      _ = try await fixture.cache.data(from: origin.url("/a"))
      #expect(fixture.cache.droppedEventCount == 0)
    }
  }

  @Test("A cache without a disk tier has events, too")
  func memoryOnly() async throws {
    try await withCache(disk: 0, origin: Self.handler) { fixture, origin in
      let stream = fixture.cache.events
      for _ in 0..<2 { _ = try await fixture.cache.data(from: origin.url("/a")) }
      var outcomes: [RequestOutcome] = []
      for await event in stream {
        if case .answered(let event) = event { outcomes.append(event.outcome) }
        if outcomes.count == 2 { break }
      }
      #expect(outcomes == [.miss, .hit])
      #expect(fixture.cache.statistics.directory == nil)
    }
  }

  @Test("A purge is an event with its scope and mode")
  func purges() async throws {
    try await withCache(origin: Self.handler) { fixture, origin in
      let cache = fixture.cache
      let stream = cache.events
      try await cache.purge(.host("a.example"), mode: .soft)
      try await cache.purge(.url(origin.url("/a?b=c")))
      cache.removeCachedResponses(inGroup: "g", origin: origin.url("/"))
      var texts: [String] = []
      for await event in stream {
        guard case .purged(let scope, let isSoft) = event else { continue }
        texts.append("\(isSoft ? "soft " : "")\(scope)")
        if texts.count == 3 { break }
      }
      #expect(
        texts == [
          "soft host a.example", "url \(origin.url("/a?b=c").absoluteString)",
          "group g of \(origin.url("/").absoluteString.dropLast())",
        ])
    }
  }

  @Test("A reopened store is an event, and its removals are events again")
  func reopening() async throws {
    try await withCache(origin: Self.handler) { fixture, origin in
      let cache = fixture.cache
      let stream = cache.events
      try await failStore(fixture)
      cache.removeAllCachedResponses()
      var events: [CacheEvent] = []
      for await event in stream {
        events.append(event)
        if case .purged = event { break }
      }
      guard case .storeFailed? = events.first else { throw Unexpected() }
      #expect(events.dropFirst() == [.reopened, .purged(scope: .everything, isSoft: false)])
    }
  }

  @Test("The counters of the directory include sessions and data(for:)")
  func directoryStatistics() async throws {
    try await withCache(origin: Self.handler) { fixture, origin in
      let session = fixture.session()
      for _ in 0..<3 { _ = try await session.data(from: origin.url("/a")) }
      for _ in 0..<2 { _ = try await fixture.cache.data(from: origin.url("/a")) }
      let counts = try #require(fixture.cache.statistics.directory)
      #expect(counts.requests[.miss] == 1)
      #expect(counts.requests[.hit] == 4)
      #expect(counts.hitByteCount == 16)
      #expect(counts.originByteCount == 4)
      let text = fixture.cache.prometheusText()
      #expect(text.contains("urlcache_requests_total{directory=\"\(fixture.directory.path)\",outcome=\"hit\"} 4\n"))
      #expect(text.contains("urlcache_memory_entries{directory=\"\(fixture.directory.path)\"} 1\n"))
    }
  }

  @Test("Sources of responses, outcomes of requests and labels for Prometheus have the same words")
  func outcomeWords() async throws {
    // Their positions are numbers in the file of events.
    let outcomes = [
      "hit", "stale", "revalidated", "miss", "coalesced", "staleOnError", "bypassed", "unavailable", "failed",
    ]
    #expect(RequestOutcome.allCases.map(\.rawValue) == outcomes)
    #expect(Set(outcomes).subtracting(ResponseSource.allCases.map(\.rawValue)) == ["bypassed", "failed"])
    #expect(ResponseSource.allCases.count == outcomes.count - 2)
    #expect(Rule.coalesced.id == ResponseSource.coalesced.rawValue)
    try await withCache(origin: Self.handler) { fixture, _ in
      let labels = fixture.cache.prometheusText().matches(of: /\nurlcache_requests_total\{.*outcome="(\w+)"\}/)
      #expect(labels.map { String($0.1) } == outcomes)
    }
  }

  @Test("Entries are walked while others are stored and removed")
  func entries() async throws {
    try await withCache(origin: Self.handler) { fixture, origin in
      let cache = fixture.cache
      for number in 0..<300 { _ = try await cache.data(from: origin.url("/\(number)")) }
      cache.flush()
      #expect(cache.entries().map(\.url) == (0..<300).map { origin.url("/\($0)").absoluteString })
      #expect(Set(cache.entries(in: .stored).map(\.url)).count == 300)
      var count = 0
      for entry in cache.entries() {
        #expect(entry.bodyByteCount == 4)
        count += 1
        if count == 10 { cache.removeAllCachedResponses() }
      }
      // The first batch was read before the removal.
      #expect(count >= 10 && count < 300)
      #expect(Array(cache.entries()).isEmpty)
    }
  }
}

import CacheModel
import Foundation
import FoundationNetworking
import HTTPCaching
import LMDBURLCache
import LoopbackOrigin
import Synchronization
import Testing

/// Key spaces over a store: what makes their records, and bursts of requests that find none.
@Suite("Key spaces", .timeLimit(.minutes(1)))
struct KeySpaceTests {
  private func query(_ url: URL, _ content: String, _ fields: [String: String] = [:]) -> URLRequest {
    var request = URLRequest(url, method: "QUERY", ["Content-Type": "text/plain"].merging(fields) { $1 })
    request.httpBody = Data(content.utf8)
    return request
  }

  /// The number of records of a store, also of those that are no responses.
  private func recordCount(_ fixture: CacheFixture) throws -> Int {
    #expect(fixture.cache.flush())
    return try #require(fixture.cache.core.store).statistics.entryCount
  }

  private enum Unstored: String, CaseIterable {
    case requestNoStore, responseNoStore, onlyIfCached, override, failed
  }

  @Test("A query whose response is not stored leaves nothing in the store", arguments: Unstored.allCases)
  private func unstored(why: Unstored) async throws {
    try await withCache {
      if why == .override { $0.overrides = { _ in RequestOverrides(allowsStoring: false) } }
    } origin: { _ in
      why == .failed
        ? Reply(503) : Reply(200, [("Cache-Control", why == .responseNoStore ? "no-store" : "max-age=60")], "r")
    } _: { fixture, origin in
      let fields: [String: String] =
        switch why {
        case .requestNoStore: ["Cache-Control": "no-store"]
        case .onlyIfCached: ["Cache-Control": "only-if-cached"]
        default: [:]
        }
      for number in 0..<20 {
        _ = try? await fixture.cache.data(for: query(origin.url("/q\(number)"), "secret", fields))
      }
      let count = try recordCount(fixture)
      #expect(count == 0)
    }
  }

  @Test("A response that a program keeps in memory leaves nothing on the disk, also for one user")
  func memoryOnly() async throws {
    try await withCache { _ in
    } origin: { _ in
      Reply(404)
    } _: { fixture, origin in
      let request = URLRequest(origin.url("/me"), ["Authorization": "Bearer 1"])
      let policies = CachedURLResponse(
        response: httpResponse(request.url!, ["Cache-Control": "max-age=600"]), data: Data("a".utf8), userInfo: nil,
        storagePolicy: .allowedInMemoryOnly)
      fixture.cache.storeCachedResponse(policies, for: request)
      fixture.cache.storeCachedResponse(
        cached(origin.url("/other"), "b", ["Cache-Control": "no-store"]),
        for: URLRequest(origin.url("/other"), ["Authorization": "Bearer 1"]))
      #expect(fixture.cache.cachedResponse(for: request)?.data.text == "a")
      let count = try recordCount(fixture)
      #expect(count == 0)
    }
  }

  @Test("A burst of queries to a new URL makes one fetch for each content, and stores each response")
  func queryBursts() async throws {
    try await withCache(disk: 32 << 20) { _ in
    } origin: { request in
      Reply(200, [("Cache-Control", "max-age=600")], String(decoding: request.body, as: UTF8.self))
    } _: { fixture, origin in
      let cache = fixture.cache
      for burst in 0..<40 {
        let url = origin.url("/burst\(burst)")
        try await withThrowingTaskGroup { group in
          for number in 0..<16 {
            group.addTask {
              let (data, _) = try await cache.data(for: query(url, "content \(number % 4)"))
              #expect(data.text == "content \(number % 4)")
            }
          }
          try await group.waitForAll()
        }
        #expect(origin.requestCount == 4 * (burst + 1), "burst \(burst)")
      }
      for burst in 0..<40 {
        for number in 0..<4 {
          _ = try await fixture.cache.data(for: query(origin.url("/burst\(burst)"), "content \(number)"))
        }
      }
      #expect(origin.requestCount == 160)
    }
  }

  @Test("Responses of new equivalent URLs that are stored at the same time are found by their own URLs")
  func equivalentBursts() async throws {
    try await withCache(disk: 32 << 20) { _ in
    } origin: { request in
      Reply(200, [("Cache-Control", "max-age=600"), ("No-Vary-Search", #"params=("utm")"#)], request.target)
    } _: { fixture, origin in
      let cache = fixture.cache
      for burst in 0..<40 {
        let urls = (0..<8).map { origin.url("/p\(burst)?id=\($0)") }
        try await withThrowingTaskGroup { group in
          for url in urls { group.addTask { _ = try await cache.data(from: url) } }
          try await group.waitForAll()
        }
        let count = origin.requestCount
        for url in urls { _ = try await fixture.cache.data(from: url) }
        #expect(origin.requestCount == count, "burst \(burst)")
      }
    }
  }

  @Test("A URL is found by itself, also if its path has many values of the field")
  func severalVariations() async throws {
    try await withCache { _ in
    } origin: { request in
      let number = Int(request.query?.split(separator: "=").last ?? "") ?? 0
      return Reply(
        200, [("Cache-Control", "max-age=600"), ("No-Vary-Search", "params=(\"p\(number)\")")], request.target)
    } _: { fixture, origin in
      // More values than a path's space has sections.
      for round in 1...2 {
        for number in 0..<12 { _ = try await fixture.cache.data(from: origin.url("/p?id=\(number)")) }
        #expect(origin.requestCount == 12, "round \(round)")
      }
      // Those in the space answer equivalent URLs, too.
      let (data, _) = try await fixture.cache.data(from: origin.url("/p?p3=x&id=3"))
      #expect(data.text == "/p?id=3")
      let (other, _) = try await fixture.cache.data(from: origin.url("/p?p3=x&id=4"))
      #expect(other.text == "/p?p3=x&id=4")
    }
  }

  @Test("A response that a program stores without the field ends the equivalence of older responses")
  func storedByProgram() async throws {
    try await withCache { _ in
    } origin: { request in
      Reply(200, [("Cache-Control", "max-age=600"), ("No-Vary-Search", #"params=("utm")"#)], request.target)
    } _: { fixture, origin in
      let cache = fixture.cache
      _ = try await cache.data(from: origin.url("/p?utm=1"))
      let url = origin.url("/p?utm=2")
      #expect(cache.cachedResponse(for: URLRequest(url: url))?.data.text == "/p?utm=1")
      cache.storeCachedResponse(cached(url, "new"), for: URLRequest(url: url))
      #expect(cache.cachedResponse(for: URLRequest(url: url))?.data.text == "new")
      for query in ["utm=1", "utm=3", ""] {
        #expect(cache.cachedResponse(for: URLRequest(url: origin.url("/p?\(query)"))) == nil, "\(query)")
      }
    }
  }

  @Test("A miss looks for equivalent URLs only where a response with the field was stored")
  func noSecondLookup() async throws {
    try await withCache { _ in
    } origin: { request in
      Reply(
        200, [("Cache-Control", "max-age=600")] + (request.path == "/nvs" ? [("No-Vary-Search", "params")] : []), "b")
    } _: { fixture, origin in
      _ = try await fixture.cache.data(from: origin.url("/a"))
      #expect(!fixture.cache.core.mayHaveEquivalentURLs)
      try fixture.reopen()
      #expect(!fixture.cache.core.mayHaveEquivalentURLs)
      // As another process.
      var options = LMDBURLCache.Options()
      options.clock = { [clock = fixture.clock] in clock.now }
      let other = try LMDBURLCache(
        directory: fixture.directory, memoryCapacity: 0, diskCapacity: 16 << 20, options: options)
      _ = try await other.data(from: origin.url("/nvs?x=1"))
      #expect(fixture.cache.core.mayHaveEquivalentURLs)
      _ = try await fixture.cache.data(from: origin.url("/nvs?x=2"))
      #expect(origin.requestCount == 2)
      try fixture.reopen()
      _ = try await fixture.cache.data(from: origin.url("/nvs?x=3"))
      #expect(origin.requestCount == 2)
    }
  }

  // MARK: Lost records

  /// Returns a cache that shares the directory of another one.
  private func secondCache(_ fixture: CacheFixture) throws -> LMDBURLCache {
    var options = LMDBURLCache.Options()
    options.clock = { [clock = fixture.clock] in clock.now }
    return try LMDBURLCache(
      directory: fixture.directory, memoryCapacity: 0, diskCapacity: 16 << 20, options: options)
  }

  private func user(_ name: String, _ url: URL, method: String = "GET") -> URLRequest {
    URLRequest(url, method: method, ["Authorization": name])
  }

  @Test(
    "An unsafe request invalidates responses whose record was evicted, also if it is made again",
    arguments: [false, true])
  func invalidationWithoutRecord(isShared: Bool) async throws {
    try await withCache(memory: 0) { _ in
    } origin: { request in
      request.method == "PUT" ? Reply(204) : Reply(200, [("Cache-Control", "private, max-age=600")], "body")
    } _: { fixture, origin in
      let other = isShared ? try secondCache(fixture) : nil
      let (cache, url) = (fixture.cache, origin.url("/me"))
      let store = try #require(cache.core.store)
      let record = try #require(RequestKey(url: url)).urlSpace
      for invalidates in [false, true] {
        _ = try await cache.data(for: user("a", url))
        let stored = try #require(store.lookup(record))
        store.discard(
          CacheableResponse(
            status: stored.status, fields: stored.fields, body: Data(), freshness: stored.freshness,
            vary: stored.vary), for: record)
        #expect(cache.cachedResponse(for: user("a", url)) == nil)
        if invalidates { _ = try await cache.data(for: user("b", url, method: "PUT")) }
        _ = try await cache.data(for: user("b", url))
        // Where other caches can have the directory open, nothing is lost with the record alone.
        #expect((cache.cachedResponse(for: user("a", url)) != nil) == (isShared && !invalidates))
      }
      withExtendedLifetime(other) {}
    }
  }

  @Test("A section that another process has replaced is found again after the next store with it")
  func replacedSection() async throws {
    try await withCache(memory: 0) { _ in
    } origin: { request in
      let name = request.query?.first.map { String($0) } ?? ""
      return Reply(
        200, [("Cache-Control", "max-age=600"), ("No-Vary-Search", "params=(\"\(name)\")")], request.target)
    } _: { fixture, origin in
      let other = try secondCache(fixture)
      let cache = fixture.cache
      func isFound(_ query: String) -> Bool {
        cache.cachedResponse(for: URLRequest(url: origin.url("/p?\(query)"))) != nil
      }
      _ = try await cache.data(from: origin.url("/p?a=1&id=1"))
      let store = try #require(cache.core.store)
      let key = try #require(RequestKey(url: origin.url("/p"))).searchSpace
      let first = try #require(store.lookup(key)).fields
      _ = try await other.data(from: origin.url("/p?b=1&id=1"))
      let both = try #require(store.lookup(key))
      #expect(both.fields.count == 4)
      #expect(isFound("a=2&id=1") && isFound("b=2&id=1"))
      // As a process that did not know the first section.
      var fields = both.fields
      for name in Set(first.map(\.name)) { fields.remove(name) }
      for field in both.fields where !first.contains(where: { $0.value == field.value }) {
        fields.append(name: field.name, value: field.value)
      }
      #expect(fields.count == 2)
      store.store(
        CacheableResponse(
          status: both.status, fields: fields, body: Data(), freshness: both.freshness, vary: both.vary), for: key)
      #expect(!isFound("a=2&id=1") && isFound("b=2&id=1"))
      _ = try await cache.data(from: origin.url("/p?a=1&id=2"))
      #expect(isFound("a=2&id=1") && isFound("b=2&id=1") && isFound("a=2&id=2"))
    }
  }
}

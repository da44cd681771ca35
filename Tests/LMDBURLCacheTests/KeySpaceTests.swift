import CacheModel
import Foundation
import FoundationNetworking
import LoopbackOrigin
import Synchronization
import Testing

@testable import LMDBURLCache

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
}

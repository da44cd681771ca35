import CacheModel
import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Testing

/// Many users of one URL: a server that calls an API for them has a response for each.
@Suite("Users of one URL", .timeLimit(.minutes(1)))
struct UsersTests {
  /// Returns an origin's reply that names the user.
  private static func reply(_ request: RecordedRequest) -> Reply {
    Reply(
      200, [("Cache-Control", "private, max-age=600"), ("Content-Type", "application/json")],
      #"{"user": "\#(request["Authorization"] ?? "anonymous")"}"#)
  }

  private func request(_ url: URL, _ user: Int?) -> URLRequest {
    var request = URLRequest(url: url)
    if let user { request.setValue("Bearer \(user)-4f2a", forHTTPHeaderField: "Authorization") }
    return request
  }

  private func text(_ user: Int?) -> String { #"{"user": "\#(user.map { "Bearer \($0)-4f2a" } ?? "anonymous")"}"# }

  @Test("A thousand users of one URL are all hits in the next round", arguments: [0, 16 << 20])
  func thousand(memory: Int) async throws {
    try await withCache(memory: memory, disk: 64 << 20) { _ in
    } origin: {
      Self.reply($0)
    } _: { fixture, origin in
      let url = origin.url("/me")
      for round in 1...2 {
        for user in 0..<1000 {
          let (data, _) = try await fixture.cache.data(for: request(url, user))
          #expect(data.text == text(user))
        }
        #expect(origin.requestCount == 1000, "round \(round)")
        #expect(fixture.cache.flush())
      }
      // Another opening finds them on the disk.
      try fixture.reopen(memory: memory, disk: 64 << 20)
      for user in stride(from: 0, to: 1000, by: 37) {
        let (data, _) = try await fixture.cache.data(for: request(url, user))
        #expect(data.text == text(user))
      }
      #expect(origin.requestCount == 1000)
      #expect(fixture.cache.cachedResponse(for: request(url, 500))?.data.text == text(500))
      #expect(fixture.cache.cachedResponse(for: request(url, 5000)) == nil)
      #expect(fixture.cache.cachedResponse(for: request(url, nil)) == nil)
    }
  }

  private enum Change: CaseIterable {
    case url, prefix, host, group, tag, put, remove, everything
  }

  @Test("One removal reaches the responses of all users", arguments: Change.allCases, [0, 4 << 20])
  private func removal(by change: Change, memory: Int) async throws {
    try await withCache(memory: memory) { _ in
    } origin: { request in
      request.method == "PUT"
        ? Reply(204) : Reply(200, [("Cache-Control", "private, max-age=600"), ("Cache-Groups", "\"g\"")], "body")
    } _: { fixture, origin in
      let cache = fixture.cache
      let (url, other) = (origin.url("/me"), origin.url("/other"))
      let users: [Int?] = [nil] + (0..<20).map { $0 }
      for user in users {
        _ = try await cache.data(for: request(url, user))
        _ = try await cache.data(for: request(other, user))
      }
      var put = request(url, 3)
      put.httpMethod = "PUT"
      switch change {
      case .url: try await cache.purge(.url(url))
      case .prefix: try await cache.purge(.prefix(origin.url("/m")))
      case .host: try await cache.purge(.host("127.0.0.1"))
      case .group: cache.removeCachedResponses(inGroup: "g", origin: url)
      case .tag: try await cache.purge(.tag("g"))
      case .put: _ = try await cache.data(for: put)
      case .remove: cache.removeCachedResponse(for: request(url, nil))
      case .everything: cache.removeAllCachedResponses()
      }
      let reachesOther = [.host, .group, .tag, .everything].contains(change)
      for user in users {
        #expect(cache.cachedResponse(for: request(url, user)) == nil, "\(change), user \(user ?? -1)")
        #expect((cache.cachedResponse(for: request(other, user)) == nil) == reachesOther)
      }
      let count = origin.requestCount
      for user in users { _ = try await cache.data(for: request(url, user)) }
      #expect(origin.requestCount == count + users.count)
      for user in users { #expect(cache.cachedResponse(for: request(url, user)) != nil) }
    }
  }

  @Test("A removal of one user's response leaves those of the others")
  func oneUser() async throws {
    try await withCache { _ in
    } origin: { request in
      let isGone = request["Authorization"]?.contains("7-") == true && request["If-None-Match"] != nil
      return isGone
        ? Reply(404, [("Cache-Control", "no-store")])
        : Reply(200, [("Cache-Control", "private, max-age=600"), ("ETag", "\"1\"")], "body")
    } _: { fixture, origin in
      let url = origin.url("/me")
      for user in 0..<20 { _ = try await fixture.cache.data(for: request(url, user)) }
      fixture.clock.advance(by: 700)
      _ = try await fixture.cache.data(for: request(url, 7))
      for user in 0..<20 {
        #expect((fixture.cache.cachedResponse(for: request(url, user)) == nil) == (user == 7))
      }
    }
  }

  @Test(
    "Requests without credentials, and those of other users, never get a user's response", arguments: [false, true])
  func separation(isShared: Bool) async throws {
    try await withCache {
      if isShared { $0.caching.mode = .shared }
    } origin: { request in
      // A shared cache may store it, and must not give it to others.
      Reply(
        200, [("Cache-Control", "public, max-age=600"), ("Vary", "Authorization")],
        request["Authorization"] ?? "anonymous")
    } _: { fixture, origin in
      let url = origin.url("/me")
      for _ in 1...2 {
        for user in [1, nil, 2] as [Int?] {
          let (data, _) = try await fixture.cache.data(for: request(url, user))
          #expect(data.text == user.map { "Bearer \($0)-4f2a" } ?? "anonymous")
        }
      }
      #expect(origin.requestCount == 3)
    }
  }

  @Test("A shared cache gives a response for everybody to users, also after one for a single user")
  func everybody() async throws {
    try await withCache {
      $0.caching.mode = .shared
    } origin: { request in
      let isOwn = request.target.contains("own") && request["If-None-Match"] == nil
      return Reply(
        200, [("Cache-Control", "public, max-age=60")] + (isOwn ? [("Vary", "Authorization")] : []), "body")
    } _: { fixture, origin in
      for user in 1...5 { _ = try await fixture.cache.data(for: request(origin.url("/all"), user)) }
      #expect(origin.requestCount == 1)
      _ = try await fixture.cache.data(for: request(origin.url("/all"), nil))
      #expect(origin.requestCount == 1)
    }
  }

  @Test("A subclass sees the lookups and stores of requests with credentials")
  func subclass() async throws {
    final class Watching: LMDBURLCache, @unchecked Sendable {
      // The test uses one task at a time.
      nonisolated(unsafe) var calls: [String] = []
      override func cachedResponse(for request: URLRequest) -> CachedURLResponse? {
        calls.append("lookup")
        return super.cachedResponse(for: request)
      }
      override func storeCachedResponse(_ cachedResponse: CachedURLResponse, for request: URLRequest) {
        calls.append("store")
        super.storeCachedResponse(cachedResponse, for: request)
      }
    }
    let origin = try LoopbackOrigin { Self.reply($0) }
    defer { origin.stop() }
    let directory = URL(fileURLWithPath: memoryDirectory(for: 64 << 20))
    let cache = try Watching(directory: directory, memoryCapacity: 1 << 20, diskCapacity: 8 << 20)
    for user in [1, 2, 1, 2] {
      let (data, _) = try await cache.data(for: request(origin.url("/me"), user))
      #expect(data.text == text(user))
    }
    #expect(origin.requestCount == 2)
    #expect(cache.calls == ["lookup", "store", "lookup", "store", "lookup", "lookup"])
    cache.flush()
    #expect(cache.core.store?.checkInvariants() == [])
    // A leftover directory does no harm.
    try? FileManager.default.removeItem(at: directory)
  }

  @Test("Each user has the equivalent URLs and the queries of its own")
  func spaces() async throws {
    try await withCache { _ in
    } origin: { request in
      Reply(
        200, [("Cache-Control", "private, max-age=600"), ("No-Vary-Search", #"params=("utm")"#)],
        (request["Authorization"] ?? "anonymous") + " " + String(decoding: request.body, as: UTF8.self))
    } _: { fixture, origin in
      for round in 1...2 {
        for user in [nil, 1, 2] as [Int?] {
          let (data, _) = try await fixture.cache.data(
            for: request(origin.url("/p?utm=\(round)&u=\(user ?? 0)&x"), user))
          #expect(data.text == user.map { "Bearer \($0)-4f2a " } ?? "anonymous ")
          var query = request(origin.url("/q"), user)
          query.httpMethod = "QUERY"
          query.setValue("text/plain", forHTTPHeaderField: "Content-Type")
          query.httpBody = Data("who".utf8)
          let (answer, _) = try await fixture.cache.data(for: query)
          #expect(answer.text == user.map { "Bearer \($0)-4f2a who" } ?? "anonymous who")
        }
        #expect(origin.requestCount == 6, "round \(round)")
      }
      try await fixture.cache.purge(.url(origin.url("/q")))
      try await fixture.cache.purge(.url(origin.url("/p?utm=9")))
      _ = try await fixture.cache.data(for: request(origin.url("/p?utm=1&u=1&x"), 1))
      #expect(origin.requestCount == 7)
    }
  }

  @Test("Variants beyond the bound are counted, logged once, and shown by an explanation")
  func variantBound() async throws {
    try await withCache { _ in
    } origin: { _ in
      Reply(200, [("Cache-Control", "max-age=600"), ("Vary", "X-Device")], "body")
    } _: { fixture, origin in
      func request(_ device: Int) -> URLRequest {
        var request = URLRequest(url: origin.url("/a"))
        request.setValue("device \(device)", forHTTPHeaderField: "X-Device")
        return request
      }
      for device in 0..<150 { _ = try await fixture.cache.data(for: request(device)) }
      #expect(fixture.cache.flush())
      let lines = fixture.logged.all.filter { $0.contains("128 variants") }
      #expect(lines.count == 1)
      let directory = try CacheDirectory(existingAt: fixture.directory)
      let explained = try #require(directory.explain(request(0)))
      #expect(explained.selected == nil)
      #expect(explained.lastRefusal?.rule == "too-many-variants")
      #expect(try #require(directory.explain(request(149))).selected != nil)
      #expect(directory.statistics?.storageRefusals["too-many-variants"] == 22)
    }
  }
}

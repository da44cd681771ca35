import Foundation
import FoundationNetworking
import HTTPCaching
import LMDBURLCache
import LoopbackOrigin
import Testing

/// A response for one user never reaches another through `data(for:)`, sessions, or `URLCache`'s own methods.
@Suite("Separation of users", .endsFixtures, .timeLimit(.minutes(1)))
struct UserSeparationTests {
  private func url(_ user: String?, _ origin: LoopbackOrigin, _ path: String = "/x") -> URL {
    URL(string: "http://\(user.map { "\($0):pw@" } ?? "")127.0.0.1:\(origin.port)\(path)")!
  }

  /// Returns the page that the origin sends to a user of a URL.
  private func page(of user: String?) -> String {
    user.map { "Basic " + Data("\($0):pw".utf8).base64EncodedString() } ?? "none"
  }

  @Test("Users of one URL get their own pages, with concurrent requests and from the cache", arguments: [true, false])
  func usersOfURL(usesSession: Bool) async throws {
    let gate = Gate()
    try await withCache { request in
      Reply(200, [("Cache-Control", "private, max-age=600")], request["Authorization"] ?? "none").held(at: gate)
    } _: { (fixture, origin) async throws in
      let (cache, session) = (fixture.cache, fixture.session())
      @Sendable func load(_ user: String?) async throws -> String {
        let url = url(user, origin)
        return try await (usesSession ? session.data(from: url) : cache.data(from: url)).0.text
      }
      try await withThrowingTaskGroup { group in
        for user in ["alice", "bob", nil] {
          group.addTask {
            let text = try await load(user)
            #expect(text == page(of: user))
          }
        }
        while origin.requestCount + fixture.cache.client.statistics.waiting < 3 { await Task.yield() }
        gate.open()
        try await group.waitForAll()
      }
      for user in ["bob", nil, "alice"] { #expect(try await load(user) == page(of: user)) }
      #expect(origin.requestCount == 3)
    }
  }

  @Test("A response that a shared cache stored for all users serves no other user in a private cache")
  func sharedThenPrivate() async throws {
    let shared = try CacheFixture(configure: { $0.caching.mode = .shared })
    let origin = try LoopbackOrigin {
      Reply(200, [("Cache-Control", "public, max-age=600")], $0["Authorization"] ?? "")
    }
    func request(_ user: String) -> URLRequest { URLRequest(origin.url("/a"), ["Authorization": user]) }
    for user in ["ann", "bob"] { #expect(try await shared.cache.data(for: request(user)).0.text == "ann") }
    shared.cache.flush()
    var options = LMDBURLCache.Options()
    options.clock = { [clock = shared.clock] in clock.now }
    let own = try LMDBURLCache(
      directory: shared.directory, memoryCapacity: 1 << 20, diskCapacity: 16 << 20, options: options)
    #expect(own.cachedResponse(for: request("bob")) == nil)
    #expect(try await own.data(for: request("bob")).0.text == "bob")
    #expect(try await own.data(for: request("ann")).0.text == "ann")
    #expect(origin.requestCount == 3)
    origin.stop()
  }

  @Test("Only a keyed digest of a URL's user reaches the disk")
  func digest() async throws {
    try await withCache { _ in
      Reply(200, [("Cache-Control", "max-age=600")], "body")
    } _: { (fixture, origin) async throws in
      _ = try await fixture.cache.data(from: url("alice", origin))
      #expect(fixture.cache.flush())
      let store = try #require(fixture.cache.core.store)
      let key = try #require(store.entries().map(\.key).first { !$0.isKeySpace })
      let record = try #require(store.lookup(key))
      #expect(record.key.urlString == url(nil, origin).absoluteString)
      #expect(!String(decoding: record.key.bytes, as: UTF8.self).contains("alice"))
      #expect(record.vary.fields.map(\.name) == ["authorization"])
      let digest = try #require(record.vary.fields.first?.value ?? nil)
      #expect(!digest.contains("alice"))
      // Another store has another secret.
      let other = try CacheFixture()
      #expect(fixture.cache.core.credentialDigest("value") == fixture.cache.core.credentialDigest("value"))
      #expect(fixture.cache.core.credentialDigest("value") != other.cache.core.credentialDigest("value"))
    }
  }

  @Test("Without a disk tier only a digest of the credentials is kept, too")
  func digestInMemory() throws {
    let cache = LMDBURLCache(memoryCapacity: 1 << 20, diskCapacity: 0, diskPath: nil)
    #expect(cache.core.credentialDigest("value") == cache.core.credentialDigest("value"))
    #expect(!cache.core.credentialDigest("value").contains("value"))
  }

  @Test("A response stored manually for one user of a URL is not returned to another")
  func byHand() async throws {
    try await withCache { _ in
      Reply(200)
    } _: { (fixture, origin) async throws in
      for user in ["alice", "bob"] {
        let url = url(user, origin)
        fixture.cache.storeCachedResponse(cached(url, user), for: URLRequest(url: url))
      }
      func text(_ user: String?) -> String? {
        fixture.cache.cachedResponse(for: URLRequest(url: url(user, origin)))?.data.text
      }
      #expect([text("alice"), text("bob"), text("eve"), text(nil)] == ["alice", "bob", nil, nil])
    }
  }

  @Test("An unsafe request with a user in its URL invalidates the responses of all other users")
  func unsafe() async throws {
    try await withCache { _ in
      Reply(200, [("Cache-Control", "max-age=600")], "body")
    } _: { (fixture, origin) async throws in
      for user in [nil, "alice"] {
        _ = try await fixture.cache.data(from: url(user, origin))
        _ = try await fixture.cache.data(for: URLRequest(url(user == nil ? "alice" : nil, origin), method: "POST"))
        #expect(!fixture.cache.isCached(url(user, origin)))
      }
    }
  }

  @Test("Requests with different Host fields never get each other's pages")
  func hostFields() async throws {
    try await withCache { request in
      Reply(200, [("Cache-Control", "max-age=600")], request["Host"] ?? "")
    } _: { (fixture, origin) async throws in
      let session = fixture.session()
      for round in 0..<2 {
        for host in ["a.example", "b.example"] {
          let request = URLRequest(origin.url("/x"), ["Host": host])
          #expect(try await fixture.cache.data(for: request).0.text == host, "round \(round)")
          #expect(try await session.data(for: request).0.text == host, "round \(round)")
          #expect(fixture.cache.cachedResponse(for: request) == nil)
        }
      }
      let (one, other) = (URLRequest(origin.url("/y"), ["Host": "a.example"]), URLRequest(origin.url("/y")))
      fixture.cache.storeCachedResponse(cached(origin.url("/y"), "a"), for: one)
      #expect(fixture.cache.cachedResponse(for: other) == nil)
      #expect(fixture.cache.cachedResponse(for: one) == nil)
    }
  }

  /// The transport adds a User-Agent with the name of this process, which the request's own fields lack.
  @Test("A response with Vary: User-Agent matches the transport's User-Agent unless the request has its own")
  func userAgent() async throws {
    try await withCache { request in
      Reply(200, [("Cache-Control", "max-age=600"), ("Vary", "User-Agent")], request["User-Agent"] ?? "")
    } _: { (fixture, origin) async throws in
      let sent = try await fixture.cache.data(from: origin.url("/x")).0.text
      #expect(try await fixture.session().data(from: origin.url("/x")).0.text == sent)
      #expect(origin.requestCount == 1)
      let key = try #require(RequestKey(url: origin.url("/x")))
      let fields = try #require(fixture.cache.core.lookup(key) { _ in true }?.vary.fields)
      let value = try #require(fields.first { $0.name == "user-agent" }?.value)
      #expect(value.contains(ProcessInfo.processInfo.processName))
      let named = URLRequest(origin.url("/x"), ["User-Agent": "mine"])
      #expect(try await fixture.cache.data(for: named).0.text == "mine")
      #expect(origin.requestCount == 2)
    }
  }
}

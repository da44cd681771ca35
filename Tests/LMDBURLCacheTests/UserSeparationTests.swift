import Foundation
import FoundationNetworking
import HTTPCaching
import LoopbackOrigin
import Testing

@testable import LMDBURLCache

/// What one user gets is never given to another: over `data(for:)`, over sessions, and through `URLCache`'s own methods.
@Suite("The cache keeps users apart", .timeLimit(.minutes(1)))
struct UserSeparationTests {
  private func url(_ user: String?, _ origin: LoopbackOrigin, _ path: String = "/x") -> URL {
    URL(string: "http://\(user.map { "\($0):pw@" } ?? "")127.0.0.1:\(origin.port)\(path)")!
  }

  /// What the origin answers to a user of a URL.
  private func page(of user: String?) -> String {
    user.map { "Basic " + Data("\($0):pw".utf8).base64EncodedString() } ?? "nobody"
  }

  // Issue 15, item 1.
  @Test("Users of one URL, asking at the same time and then again, get their own pages", arguments: [true, false])
  func usersOfURL(usesSession: Bool) async throws {
    let gate = Gate()
    try await withCache { request in
      Reply(200, [("Cache-Control", "private, max-age=600")], request["Authorization"] ?? "nobody").held(at: gate)
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
        while origin.requestCount + fixture.cache.engine.statistics.waiting < 3 { await Task.yield() }
        gate.open()
        try await group.waitForAll()
      }
      for user in ["bob", nil, "alice"] { #expect(try await load(user) == page(of: user)) }
      #expect(origin.requestCount == 3)
    }
  }

  // Issue 15, item 1.
  @Test("Only a keyed digest of a URL's user reaches the disk")
  func digest() async throws {
    try await withCache { _ in
      Reply(200, [("Cache-Control", "max-age=600")], "body")
    } _: { (fixture, origin) async throws in
      _ = try await fixture.cache.data(from: url("alice", origin))
      let asked = URLRequest(url: url("alice", origin))
      let key = try #require(fixture.cache.key(for: asked))
      #expect(key == fixture.cache.key(for: URLRequest(url: url(nil, origin))))
      let record = try #require(fixture.cache.core.find(key) { _ in true }?.record)
      #expect(record.vary.selectors.map(\.name) == ["authorization"])
      let digest = try #require(record.vary.selectors.first?.value ?? nil)
      #expect(!digest.contains("alice"))
      // Another store has another secret.
      let other = try CacheFixture()
      #expect(fixture.cache.credentialDigest("value") == fixture.cache.credentialDigest("value"))
      #expect(fixture.cache.credentialDigest("value") != other.cache.credentialDigest("value"))
      await other.finish()
    }
  }

  // Issue 15, item 1.
  @Test("Without a disk, too, a credential is known by a digest only")
  func digestInMemory() throws {
    let cache = LMDBURLCache(memoryCapacity: 1 << 20, diskCapacity: 0, diskPath: nil)
    #expect(cache.credentialDigest("value") == cache.credentialDigest("value"))
    #expect(!cache.credentialDigest("value").contains("value"))
  }

  // Issue 15, item 1.
  @Test("A response stored by hand for one user of a URL is not another's")
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

  // Issue 15, item 7.
  @Test("An unsafe request with a user in its URL removes what is stored for everybody else")
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

  // Issue 15, item 4.
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

  // Issue 15, item 7.
  /// The origin is sent a User-Agent with the name of this process, which the request's own fields do not show.
  @Test("A response that varies by User-Agent is for processes of the same name, unless the request has the field")
  func userAgent() async throws {
    try await withCache { request in
      Reply(200, [("Cache-Control", "max-age=600"), ("Vary", "User-Agent")], request["User-Agent"] ?? "")
    } _: { (fixture, origin) async throws in
      let sent = try await fixture.cache.data(from: origin.url("/x")).0.text
      #expect(try await fixture.session().data(from: origin.url("/x")).0.text == sent)
      #expect(origin.requestCount == 1)
      let key = try #require(fixture.cache.key(for: URLRequest(url: origin.url("/x"))))
      let selectors = try #require(fixture.cache.core.find(key) { _ in true }?.record.vary.selectors)
      let value = try #require(selectors.first { $0.name == "user-agent" }?.value)
      #expect(value.contains(ProcessInfo.processInfo.processName))
      let named = URLRequest(origin.url("/x"), ["User-Agent": "mine"])
      #expect(try await fixture.cache.data(for: named).0.text == "mine")
      #expect(origin.requestCount == 2)
    }
  }
}

import CurlTransport
import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Synchronization
import Testing

/// The session's configuration and the cache's options apply to every way to load a request.
@Suite("Configurations")
struct ConfigurationTests {
  @Test("Changes of the configuration after caching(with:) take effect")
  func changedLater() async throws {
    try await withCache { _ in
      Reply(200, [("Cache-Control", "max-age=600"), ("Vary", "X-Tenant")], "a")
    } _: { (fixture, origin) async throws in
      let configuration = URLSessionConfiguration.ephemeral.caching(with: fixture.cache)
      configuration.httpAdditionalHeaders = ["X-Tenant": "blue"]
      configuration.requestCachePolicy = .returnCacheDataElseLoad
      let session = URLSession(configuration: configuration)
      let url = origin.url("/a")
      for _ in 0..<3 {
        _ = try await session.data(from: url)
        fixture.clock.advance(by: 1000)
      }
      #expect(origin.requestCount == 1)
      #expect(origin.requests[0]["X-Tenant"] == "blue")
      // The Vary key contains the field that the session added.
      #expect(fixture.cache.cachedResponse(for: URLRequest(url, ["X-Tenant": "blue"])) != nil)
      #expect(fixture.cache.cachedResponse(for: URLRequest(url: url)) == nil)
      // A request's own field overrides the session's.
      _ = try await session.data(for: URLRequest(url, ["x-tenant": "red"]))
      #expect(origin.requests[1]["X-Tenant"] == "red")
    }
  }

  @Test("A session's additional fields determine the variant, partition and credentials")
  func additionalFields() async throws {
    try await withCache(configure: { $0.partition = { $0.value(forHTTPHeaderField: "X-User") ?? "" } }) { request in
      Reply(
        200, [("Cache-Control", "max-age=600"), ("Vary", "Accept-Language")],
        "\(request["X-User"] ?? "-") \(request["Accept-Language"] ?? "-") \(request["Authorization"] ?? "-")")
    } _: { (fixture, origin) async throws in
      let sessions = [
        ["X-User": "1", "Accept-Language": "de"], ["X-User": "2", "Accept-Language": "de"],
        ["X-User": "1", "Accept-Language": "en"], ["X-User": "1", "Accept-Language": "de", "Authorization": "A"],
        ["X-User": "1", "Accept-Language": "de", "Authorization": "B"],
      ].map { (fields: [String: String]) in (fields, fixture.session { $0.httpAdditionalHeaders = fields }) }
      for _ in 0..<2 {
        for (fields, session) in sessions {
          let expected = "\(fields["X-User"]!) \(fields["Accept-Language"]!) \(fields["Authorization"] ?? "-")"
          #expect(try await session.data(from: origin.url("/a")).0.text == expected)
          let direct = try await fixture.cache.data(from: origin.url("/a"), by: session)
          #expect(direct.text == expected)
        }
      }
      #expect(origin.requestCount == 5)
    }
  }

  @Test("Cookies are sent and stored on each hop as without the cache", arguments: [true, false])
  func cookies(_ setsCookies: Bool) async throws {
    let handler: LoopbackOrigin.Handler = { request in
      switch request.path {
      case "/from": Reply(302, [("Location", "/to"), ("Set-Cookie", "hop=1; Path=/")])
      case "/to":
        Reply(200, [("Set-Cookie", "end=2; Path=/"), ("Vary", "Cookie"), ("Cache-Control", "max-age=600")], "a")
      default: Reply(200, [("Vary", "Cookie"), ("Cache-Control", "max-age=600")], request["Cookie"] ?? "none")
      }
    }
    try await withCache(origin: handler) { (fixture, origin) async throws in
      func cookies(_ configuration: URLSessionConfiguration) async throws -> [[String]] {
        configuration.httpShouldSetCookies = setsCookies
        let first = origin.requestCount
        let session = URLSession(configuration: configuration)
        _ = try await session.data(from: origin.url("/from"))
        let seen = try await session.data(from: origin.url("/seen")).0.text
        let kept = configuration.httpCookieStorage?.cookies?.map(\.name).sorted() ?? []
        let sent = origin.requests.dropFirst(first).map { $0["Cookie"] ?? "none" }
        return [kept, sent.map(sorted), [sorted(seen)]]
      }
      func sorted(_ field: String) -> String { field.split(separator: "; ").sorted().joined(separator: "; ") }
      let plain = try await cookies(.ephemeral)
      let caching = try await cookies(URLSessionConfiguration.ephemeral.caching(with: fixture.cache))
      #expect(caching == plain)
      #expect(plain[0] == ["end", "hop"])
    }
  }

  @Test("A session has no more connections to an origin than its configuration permits")
  func connections() async throws {
    let gate = Gate()
    try await withCache { request in
      let reply = Reply(200, [], request.path)
      return request.path == "/other" ? reply : reply.held(at: gate)
    } _: { (fixture, origin) async throws in
      let session = fixture.session { $0.httpMaximumConnectionsPerHost = 2 }
      try await withThrowingTaskGroup(of: Void.self) { group in
        for number in 0..<6 {
          group.addTask {
            let text = try await session.data(from: origin.url("/\(number)")).0.text
            #expect(text == "/\(number)")
          }
        }
        await gate.waitForArrivals(count: 2)
        // A complete load of another session shows that time has passed.
        #expect(try await fixture.session().data(from: origin.url("/other")).0.text == "/other")
        #expect(gate.arrivals == 2)
        gate.open()
        try await group.waitForAll()
      }
    }
  }

  @Test(
    "The time limit of a whole load ends it, also while its body arrives",
    arguments: [HostileOriginTests.Way.task, .delegate, .loadFromSession])
  func resourceTimeLimit(_ way: HostileOriginTests.Way) async throws {
    let gate = Gate()
    try await withCache { _ in
      Reply(200, [], "0123456789").held(at: gate, afterBodyBytes: 5)
    } _: { (fixture, origin) async throws in
      let session = fixture.session { $0.timeoutIntervalForResource = 0.1 }
      let request = URLRequest(url: origin.url("/"))
      switch way {
      case .task:
        await #expect { try await session.data(for: request) } throws: { ($0 as? URLError)?.code == .timedOut }
      case .loadFromSession:
        await #expect { try await fixture.cache.data(for: request, from: session) } throws: {
          ($0 as? URLError)?.code == .timedOut
        }
      case .delegate:
        let delegate = RecordingDelegate()
        let session = fixture.session(delegate: delegate) { $0.timeoutIntervalForResource = 0.1 }
        await delegate.run(session.dataTask(with: request))
        #expect(delegate.events.completions == [.timedOut])
      case .data, .bytes: Issue.record("a load without a session has no such limit")
      }
      gate.open()
    }
  }

  @Test("Cookies are rejected if the configuration requires it")
  func refusedCookies() async throws {
    try await withCache { _ in
      Reply(200, [("Set-Cookie", "a=1; Path=/")], "a")
    } _: { (fixture, origin) async throws in
      let configuration = URLSessionConfiguration.ephemeral.caching(with: fixture.cache)
      configuration.httpCookieAcceptPolicy = .never
      _ = try await URLSession(configuration: configuration).data(from: origin.url("/"))
      #expect(configuration.httpCookieStorage?.cookies?.isEmpty ?? true)
    }
  }

  @Test("A shared cache does not send the cookies and credentials of the process")
  func sharedCookies() async throws {
    try await withCache(configure: { options in
      options.caching.mode = .shared
      options.transport = .curl(CurlTransport.Configuration())
    }) { request in
      Reply(200, [("Set-Cookie", "lmdburlcache-user=\(request.path.dropFirst()); Path=/")], request["Cookie"] ?? "none")
    } _: { (fixture, origin) async throws in
      for path in ["/alice", "/bob"] {
        #expect(try await fixture.cache.data(from: origin.url(path)).0.text == "none")
      }
      let kept = HTTPCookieStorage.shared.cookies(for: origin.url("/")) ?? []
      #expect(!kept.contains { $0.name == "lmdburlcache-user" })
    }
  }

  @Test("Loads without a session use a copy of the configuration in the options")
  func transport() async throws {
    let configuration = URLSessionConfiguration.ephemeral
    configuration.httpAdditionalHeaders = ["X-Tenant": "blue"]
    try await withCache(configure: { options in
      options.caching.mode = .shared
      options.transport = .urlSession(configuration)
      configuration.httpAdditionalHeaders = ["X-Tenant": "red"]
    }) { request in
      Reply(200, [("Set-Cookie", "c=1; Path=/")], "\(request["X-Tenant"] ?? "none") \(request["Cookie"] ?? "none")")
    } _: { (fixture, origin) async throws in
      #expect(try await fixture.cache.data(from: origin.url("/")).0.text == "blue none")
      // The caller chose the configuration's cookie storage.
      #expect(try await fixture.cache.data(from: origin.url("/")).0.text == "blue c=1")
      #expect(try await fixture.cache.load(URLRequest(url: origin.url("/"))).data.text == "blue c=1")
    }
  }

  @Test("A record shows whether its body was decoded, also on disk and after a validation")
  func decoded() async throws {
    let coded = try #require(Data(base64Encoded: "H4sIAAAAAAACA8tIzcnJBwCGphA2BQAAAA=="))
    try await withCache { request in
      let isCoded = request.path == "/coded"
      let fields =
        [("Cache-Control", "max-age=60"), ("ETag", "\"1\"")] + (isCoded ? [("Content-Encoding", "gzip")] : [])
      if request["If-None-Match"] != nil { return Reply(304, fields) }
      return Reply(200, fields, body: isCoded ? coded : Data("hello".utf8))
    } _: { (fixture, origin) async throws in
      func isDecoded(_ path: String) throws -> Bool {
        #expect(fixture.cache.flush())
        let stored = fixture.cache.core.store?.lookup(try #require(RequestKey(url: origin.url(path))))
        return try #require(stored).freshness.flags.contains(.decoded)
      }
      for round in 0..<3 {
        fixture.cache.minCacheInterval = 0
        for path in ["/coded", "/plain"] {
          #expect(try await fixture.cache.data(from: origin.url(path)).0.text == "hello")
          #expect(try isDecoded(path) == (path == "/coded"), "round \(round)")
        }
        if round == 0 { try fixture.reopen() } else { fixture.clock.advance(by: 100) }
      }
      #expect(fixture.cache.statistics.requests.revalidations == 2)
      // A delegate that changes the response receives the decoded body.
      let delegate = RecordingDelegate(willCache: {
        let fields = ["Cache-Control": "max-age=60", "Content-Encoding": "gzip", "X-Mine": "1"]
        return CachedURLResponse(response: httpResponse($0.response.url!, fields), data: $0.data)
      })
      await delegate.run(fixture.session(delegate: delegate).dataTask(with: origin.url("/coded?changed")))
      #expect(delegate.events.questions.map(\.text) == ["hello"])
      #expect(try isDecoded("/coded?changed"))
    }
  }

  @Test("Overrides apply to every way to load a request: lifetime, ignored fields, ignored query parameters")
  func overrides() async throws {
    try await withCache(configure: { options in
      options.overrides = { request in
        request.url?.path == "/plain"
          ? .init() : .init(lifetime: 1000, ignoredResponseFields: ["Vary"], ignoredQueryParameters: ["token"])
      }
    }) { request in
      Reply(200, [("Cache-Control", "no-store"), ("Vary", "*")], request.query ?? "")
    } _: { (fixture, origin) async throws in
      let session = fixture.session()
      let cache = fixture.cache
      #expect(try await session.data(from: origin.url("/a?token=1&q=x")).0.text == "token=1&q=x")
      #expect(try await session.data(from: origin.url("/a?q=x&token=2")).0.text == "token=1&q=x")
      #expect(try await cache.data(from: origin.url("/a?q=x")).0.text == "token=1&q=x")
      #expect(cache.isCached(origin.url("/a?token=9&q=x")))
      #expect(cache.cachedResponse(for: URLRequest(url: origin.url("/a?q=x&token=")))?.data.text == "token=1&q=x")
      #expect(origin.requestCount == 1)
      try fixture.reopen()
      #expect(try await fixture.cache.data(from: origin.url("/a?q=x&token=3")).0.text == "token=1&q=x")
      fixture.clock.advance(by: 1001)
      _ = try await fixture.cache.data(from: origin.url("/a?q=x&token=4"))
      #expect(origin.requestCount == 2)
      fixture.cache.removeCachedResponse(for: URLRequest(url: origin.url("/a?token=5&q=x")))
      #expect(!fixture.cache.isCached(origin.url("/a?q=x")))
      // Stored manually.
      let url = origin.url("/b?token=1")
      fixture.cache.storeCachedResponse(cached(url, "hand", [:]), for: URLRequest(url: url))
      #expect(try await fixture.cache.data(from: origin.url("/b?token=2")).0.text == "hand")
      // Other URLs have no overrides.
      for _ in 0..<2 { _ = try await session.data(from: origin.url("/plain")) }
      #expect(origin.requestCount == 4)
    }
  }

  @Test("finishBackgroundWork() waits for background revalidations")
  func backgroundWork() async throws {
    let gate = Gate()
    try await withCache { request in
      let reply = Reply(200, [("Cache-Control", "max-age=60, stale-while-revalidate=600")], "\(request.number)")
      return request.number == 1 ? reply.held(at: gate) : reply
    } _: { (fixture, origin) async throws in
      let session = fixture.session()
      await fixture.cache.finishBackgroundWork()
      #expect(try await session.data(from: origin.url("/")).0.text == "0")
      fixture.clock.advance(by: 100)
      #expect(try await session.data(from: origin.url("/")).0.text == "0")
      await gate.waitForArrivals()
      gate.open()
      await fixture.cache.finishBackgroundWork()
      #expect(try await session.data(from: origin.url("/")).0.text == "1")
      #expect(origin.requestCount == 2)
    }
  }

  /// Replies to each request, as stubs in tests do.
  private final class Stub: URLProtocol {
    override class func canInit(with request: URLRequest) -> Bool { true }
    override class func canonicalRequest(for request: URLRequest) -> URLRequest { request }
    override func stopLoading() {}

    override func startLoading() {
      guard let client, let url = request.url else { return }
      client.urlProtocol(
        self, didReceive: httpResponse(url, ["Cache-Control": "max-age=600"]), cacheStoragePolicy: .notAllowed)
      client.urlProtocol(self, didLoad: Data("stub".utf8))
      client.urlProtocolDidFinishLoading(self)
    }
  }

  @Test("Protocol classes of the configuration reply instead of the origin, and their responses are stored")
  func protocolClasses() async throws {
    try await withCache { _ in
      Reply(200, [("Cache-Control", "max-age=600")], "origin")
    } _: { (fixture, origin) async throws in
      let configuration = URLSessionConfiguration.ephemeral
      configuration.protocolClasses = [Stub.self] + (configuration.protocolClasses ?? [])
      let session = URLSession(configuration: configuration.caching(with: fixture.cache))
      #expect(try await session.data(from: origin.url("/task")).0.text == "stub")
      #expect(try await fixture.cache.data(from: origin.url("/load"), by: session).text == "stub")
      #expect(origin.requestCount == 0)
      for path in ["/task", "/load"] { #expect(fixture.cache.isCached(origin.url(path))) }
    }
  }
}

extension LMDBURLCache {
  func data(from url: URL, by session: URLSession) async throws -> Data {
    try await data(for: URLRequest(url: url), from: session).0
  }
}

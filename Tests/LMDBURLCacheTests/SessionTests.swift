import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Testing

/// A caching session, with every way to load a request.
@Suite("Sessions")
struct SessionTests {
  enum Way: CaseIterable { case async, handler, delegate, direct, directFromSession }

  /// Loads a request once; with the delegate, the response may be nil.
  func load(
    _ request: URLRequest, _ way: Way, _ session: URLSession, _ delegate: RecordingDelegate, _ cache: LMDBURLCache
  ) async throws -> (Data, URLResponse?) {
    switch way {
    case .async: return try await session.data(for: request)
    case .direct: return try await cache.data(for: request)
    case .directFromSession: return try await cache.data(for: request, from: session)
    case .handler:
      return try await withCheckedThrowingContinuation { continuation in
        session.dataTask(with: request) { data, response, error in
          if let error {
            continuation.resume(throwing: error)
          } else {
            continuation.resume(returning: (data ?? Data(), response))
          }
        }.resume()
      }
    case .delegate:
      let before = delegate.body.count
      let task = session.dataTask(with: request)
      await delegate.run(task)
      if let code = delegate.events.completions.last ?? nil { throw URLError(code) }
      return (delegate.body.dropFirst(before), task.response)
    }
  }

  @Test("Fresh responses come from the cache, and stale ones are revalidated", arguments: Way.allCases)
  func freshThenStale(_ way: Way) async throws {
    try await withCache { request in
      if request["If-None-Match"] == "\"1\"" {
        return Reply(304, [("ETag", "\"1\""), ("Cache-Control", "max-age=60")])
      }
      return Reply(200, [("ETag", "\"1\""), ("Cache-Control", "max-age=60"), ("Content-Type", "text/plain")], "hello")
    } _: { (fixture, origin) async throws in
      let delegate = RecordingDelegate()
      let session = fixture.session(delegate: delegate)
      let request = URLRequest(url: origin.url("/a?b#c"))
      var ages: [String?] = []
      for step in 0..<5 {
        if step == 3 { fixture.clock.advance(by: 61) }
        if step > 0 { fixture.clock.advance(by: 5) }
        let (data, response) = try await load(request, way, session, delegate, fixture.cache)
        #expect(data.text == "hello")
        #expect(response?.status == 200)
        #expect(response?.mimeType == "text/plain")
        #expect(response?.url == request.url)
        ages.append(response?.field("Age"))
      }
      #expect(ages == [nil, "5", "10", "0", "5"])
      #expect(origin.requestCount == 2)
      #expect(origin.requests.last?["If-None-Match"] == "\"1\"")
      #expect(fixture.cache.statistics.requests.revalidations == 1)
    }
  }

  @Test("The cache policies of requests and configurations apply", arguments: [false, true])
  func policies(_ throughConfiguration: Bool) async throws {
    try await withCache { request in
      if request["If-None-Match"] != nil { return Reply(304, [("ETag", "\"1\"")]) }
      return Reply(200, [("Cache-Control", "max-age=60"), ("ETag", "\"1\"")], "\(request.number)")
    } _: { (fixture, origin) async throws in
      func get(_ path: String, _ policy: URLRequest.CachePolicy) async throws -> String {
        var request = URLRequest(url: origin.url(path))
        if !throughConfiguration { request.cachePolicy = policy }
        let session = fixture.session { if throughConfiguration { $0.requestCachePolicy = policy } }
        defer { session.finishTasksAndInvalidate() }
        return try await session.data(for: request).0.text
      }
      let plain = URLRequest.CachePolicy.useProtocolCachePolicy
      #expect(try await get("/a", plain) == "0")
      #expect(try await get("/a", plain) == "0")
      // The origin's response replaces the stored one.
      #expect(try await get("/a", .reloadIgnoringLocalCacheData) == "1")
      #expect(try await get("/a", plain) == "1")
      #expect(origin.requests.last?["If-None-Match"] == nil)
      #expect(try await get("/a", .reloadIgnoringLocalAndRemoteCacheData) == "2")
      #expect(origin.requests.last?["Cache-Control"] == "no-cache")
      #expect(origin.requests.last?["Pragma"] == "no-cache")
      #expect(try await get("/a", .reloadRevalidatingCacheData) == "2")
      #expect(origin.requests.last?["If-None-Match"] == "\"1\"")
      #expect(origin.requestCount == 4)
      fixture.clock.advance(by: 1000)
      #expect(try await get("/a", .returnCacheDataElseLoad) == "2")
      #expect(try await get("/a", .returnCacheDataDontLoad) == "2")
      #expect(origin.requestCount == 4)
      #expect(try await get("/b", .returnCacheDataElseLoad) == "4")
      await #expect { try await get("/c", .returnCacheDataDontLoad) } throws: {
        ($0 as? URLError)?.code == .resourceUnavailable
      }
      #expect(origin.requestCount == 5)
    }
  }

  @Test("only-if-cached returns 504 if nothing is stored", arguments: Way.allCases)
  func onlyIfCached(_ way: Way) async throws {
    try await withCache { _ in
      Reply(200, [], "a")
    } _: { (fixture, origin) async throws in
      let delegate = RecordingDelegate()
      let request = URLRequest(origin.url("/a"), ["Cache-Control": "only-if-cached"])
      let (data, response) = try await load(request, way, fixture.session(delegate: delegate), delegate, fixture.cache)
      #expect(data.isEmpty)
      #expect(response?.status == 504)
      #expect(origin.requestCount == 0)
    }
  }

  @Test("HEAD is served from a stored GET; POST, PUT and DELETE invalidate")
  func methods() async throws {
    try await withCache { request in
      Reply(200, [("Cache-Control", "max-age=600")], "\(request.method) \(request.body.text)")
    } _: { (fixture, origin) async throws in
      let session = fixture.session()
      let url = origin.url("/a")
      #expect(try await session.data(from: url).0.text == "GET ")
      let (data, response) = try await session.data(for: URLRequest(url, method: "HEAD"))
      #expect(data.isEmpty)
      #expect(response.field("Content-Length") == "4")
      #expect(origin.requestCount == 1)
      var count = 1
      for method in ["POST", "PUT", "DELETE", "PATCH"] {
        var request = URLRequest(url, method: method)
        if method != "DELETE" { request.httpBody = Data("body".utf8) }
        let text = try await session.data(for: request).0.text
        #expect(text == (method == "DELETE" ? "DELETE " : "\(method) body"))
        #expect(!fixture.cache.isCached(url), "\(method)")
        _ = try await session.data(from: url)
        count += 2
        #expect(origin.requestCount == count)
        request.httpBody = Data("direct".utf8)
        #expect(try await fixture.cache.data(for: request).0.text == "\(method) direct")
        #expect(!fixture.cache.isCached(url), "\(method)")
        _ = try await session.data(from: url)
        count += 2
      }
      #expect(try await session.upload(for: URLRequest(url, method: "POST"), from: Data("up".utf8)).0.text == "POST up")
      #expect(!fixture.cache.isCached(url))
    }
  }

  @Test("The response to a POST serves a later GET, regardless of how the POST was sent", arguments: Way.allCases)
  func postThenGet(_ way: Way) async throws {
    try await withCache { request in
      let fields = [("Cache-Control", "max-age=600"), ("Content-Location", request.path)]
      let reply = Reply(200, fields, "\(request.method) \(request.body.text)")
      // In two pieces, which a delegate gets one by one.
      return request.path == "/chunked" ? reply.chunked(byteCount: 4) : reply
    } _: { (fixture, origin) async throws in
      let delegate = RecordingDelegate()
      let session = fixture.session(delegate: delegate)
      for path in ["/a", "/chunked"] {
        var post = URLRequest(origin.url(path), method: "POST")
        post.httpBody = Data("x".utf8)
        #expect(try await load(post, way, session, delegate, fixture.cache).0.text == "POST x")
        let (data, response) = try await session.data(from: origin.url(path))
        #expect(data.text == "POST x")
        #expect(response.field("Age") == "0")
      }
    }
  }

  @Test("The response to a POST is not stored if a delegate rejects it or it was invalidated in flight")
  func postNotStored() async throws {
    let gates = ["/session": Gate(), "/direct": Gate()]
    try await withCache { request in
      let reply = Reply(200, [("Cache-Control", "max-age=600"), ("Content-Location", request.path)], request.method)
      guard request.method == "POST", let gate = gates[request.path] else { return reply }
      return reply.held(at: gate)
    } _: { (fixture, origin) async throws in
      let refusing = RecordingDelegate(willCache: { _ in nil })
      let refused = try await fixture.session(delegate: refusing).data(
        for: URLRequest(origin.url("/refused"), method: "POST"))
      #expect(refused.0.text == "POST")
      #expect(refusing.events.questions.map(\.text) == ["POST"])
      #expect(!fixture.cache.isCached(origin.url("/refused")))

      let (session, cache) = (fixture.session(), fixture.cache)
      for (path, gate) in gates {
        let post = URLRequest(origin.url(path), method: "POST")
        async let response = path == "/session" ? session.data(for: post) : cache.data(for: post)
        await gate.waitForArrivals()
        _ = try await session.data(for: URLRequest(origin.url(path), method: "PUT"))
        gate.open()
        #expect(try await response.0.text == "POST")
        #expect(!fixture.cache.isCached(origin.url(path)), "\(path)")
      }
    }
  }

  @Test("A failed POST invalidates nothing, and a redirected one invalidates its URL")
  func failedPosts() async throws {
    try await withCache { request in
      if request.method == "POST" {
        return request.query == "redirect" ? Reply(303, [("Location", "/gone")]) : Reply(500, [], "no")
      }
      return request.path == "/gone" ? Reply(404) : Reply(200, [("Cache-Control", "max-age=600")], "a")
    } _: { (fixture, origin) async throws in
      let session = fixture.session()
      for (target, isKept) in [("/a", true), ("/a?redirect", false)] {
        let url = origin.url(target)
        _ = try await session.data(from: url)
        var post = URLRequest(url, method: "POST")
        post.httpBody = Data("x".utf8)
        _ = try await session.data(for: post)
        #expect(fixture.cache.isCached(url) == isKept, "\(target)")
        _ = try await session.data(from: url)
        _ = try await fixture.cache.data(for: post)
        #expect(fixture.cache.isCached(url) == isKept, "\(target)")
      }
    }
  }

  // RFC 9111, 4.4: the request that follows a 307 is unsafe, too.
  @Test("A POST that is redirected with its method invalidates both URLs", arguments: [307, 308, 302])
  func redirectedPosts(_ status: Int) async throws {
    try await withCache { request in
      if request.method == "POST", request.path == "/from" { return Reply(status, [("Location", "/to")]) }
      return Reply(200, [("Cache-Control", "max-age=600")], request.method)
    } _: { (fixture, origin) async throws in
      let (cache, session) = (fixture.cache, fixture.session())
      let (from, to) = (origin.url("/from"), origin.url("/to"))
      for url in [from, to] { _ = try await cache.data(from: url) }
      let isKept = status != 302
      #expect(try await session.data(for: URLRequest(from, method: "POST")).0.text == (isKept ? "POST" : "GET"))
      #expect(!cache.isCached(from))
      #expect(cache.isCached(to) == !isKept)
    }
  }

  @Test("Errors are those of a session without this cache")
  func errors() async throws {
    let gate = Gate()
    try await withCache { request in
      switch request.path {
      case "/cut": Reply(200, [("Cache-Control", "max-age=600")], "0123456789").cut(.inBody(after: 5))
      case "/nothing": Reply.nothing
      case "/held": Reply(200, [], "late").held(at: gate)
      case "/stalled": Reply(200, [], "late").held(at: gate, afterBodyBytes: 2)
      case "/loop": Reply(302, [("Location", "/loop")])
      case "/garbage": Reply.raw("garbage\r\n\r\n")
      default: Reply(200, [], "a")
      }
    } _: { (fixture, origin) async throws in
      let closed = try LoopbackOrigin { _ in Reply(200) }
      let refused = closed.url("/")
      closed.stop()
      let plain = URLSessionConfiguration.ephemeral
      plain.timeoutIntervalForRequest = 1
      let plainSession = URLSession(configuration: plain)
      let session = fixture.session { $0.timeoutIntervalForRequest = 1 }
      let direct = fixture.session { $0.timeoutIntervalForRequest = 1 }
      @Sendable func code(_ body: () async throws -> (Data, URLResponse)) async -> URLError.Code? {
        do {
          _ = try await body()
          return nil
        } catch { return (error as? URLError)?.code }
      }
      let targets = ["/cut", "/nothing", "/held", "/stalled", "/loop", "/garbage"].map { origin.url($0) }
      // Foundation names no cause for these.
      let named: [String: URLError.Code] = ["/cut": .networkConnectionLost, "/garbage": .badServerResponse]
      let cache = fixture.cache
      // Concurrently, because two of them wait for a timeout.
      await withTaskGroup(of: Void.self) { group in
        for url in targets + [refused, URL(string: "http://no-such-host.invalid/")!] {
          group.addTask {
            async let plain = code { try await plainSession.data(from: url) }
            async let caching = code { try await session.data(from: url) }
            async let other = code { try await cache.data(for: URLRequest(url: url), from: direct) }
            let codes = await [plain, caching, other]
            let expected = named[url.path] ?? codes[0]
            #expect(codes[1] == expected, "\(url.path)")
            #expect(codes[2] == expected, "\(url.path)")
            #expect(!cache.isCached(url))
          }
        }
      }
      gate.open()
    }
  }

  @Test("A download task fails with an error that names the reason")
  func downloads() async throws {
    try await withCache { _ in
      Reply(200, [("Cache-Control", "max-age=600")], "a")
    } _: { (fixture, origin) async throws in
      let session = fixture.session()
      await #expect { try await session.download(from: origin.url("/a")) } throws: {
        ($0 as? URLError)?.code == .unsupportedURL && "\(($0 as NSError).localizedDescription)".contains("download")
      }
    }
  }

  @Test("A 401 is handled as without the cache", arguments: ["", "Bearer", "Basic realm=\"r\""])
  func unauthorized(_ challenge: String) async throws {
    try await withCache { request in
      if request["Authorization"] != nil { return Reply(200, [("Cache-Control", "max-age=600")], "in") }
      return Reply(401, challenge.isEmpty ? [] : [("WWW-Authenticate", challenge)], "who?")
    } _: { (fixture, origin) async throws in
      // On Linux, a session without credentials never completes a task with a Basic challenge; other challenges return
      // the 401.
      if challenge != "Basic realm=\"r\"" {
        #expect(try await fixture.session().data(from: origin.url("/a")).1.status == 401)
      }
      let (data, response) = try await fixture.cache.data(from: origin.url("/a"))
      #expect(data.text == "who?")
      #expect(response.status == 401)
      let request = URLRequest(origin.url("/a"), ["Authorization": "Basic eA=="])
      #expect(try await fixture.session().data(for: request).0.text == "in")
      #expect(try await fixture.session().data(for: request).0.text == "in")
    }
  }

  @Test("Requests of other schemes are loaded as without the cache")
  func otherSchemes() async throws {
    try await withCache { _ in
      Reply(200)
    } _: { (fixture, _) async throws in
      let url = URL(string: "data:text/plain,hello")!
      let plain = try? await URLSession(configuration: .ephemeral).data(from: url).0
      let caching = try? await fixture.session().data(from: url).0
      let direct = try? await fixture.cache.data(from: url).0
      #expect(caching == plain)
      #expect(direct == plain)
      var none = URLRequest(url: url)
      none.url = nil
      let request = none
      await #expect(throws: URLError.self) { try await fixture.cache.data(for: request) }
    }
  }
}

import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Synchronization
import Testing

/// Redirects over all kinds of sessions.
@Suite("Redirects")
struct RedirectTests {
  /// The kind of a session that is passed to `data(for:from:)`.
  enum Kind: CaseIterable {
    case plain, plainDelegate, taskDelegate, caching

    func session(_ fixture: CacheFixture, _ delegate: RecordingDelegate = RecordingDelegate()) -> URLSession {
      let configuration = URLSessionConfiguration.ephemeral
      return switch self {
      case .plain: URLSession(configuration: configuration)
      case .plainDelegate: URLSession(configuration: configuration, delegate: SessionDelegate(), delegateQueue: nil)
      case .taskDelegate: URLSession(configuration: configuration, delegate: delegate, delegateQueue: nil)
      case .caching: fixture.session(delegate: delegate)
      }
    }
  }

  /// A delegate without task callbacks.
  private final class SessionDelegate: NSObject, URLSessionDelegate {}

  @Test(
    "Over any session each hop is stored under its own URL, and credentials stay with their origin",
    arguments: Kind.allCases)
  func hops(_ kind: Kind) async throws {
    let other = try LoopbackOrigin { request in
      Reply(200, [("Cache-Control", "max-age=600")], "\(request.path) \(request["Authorization"] ?? "none")")
    }
    defer { other.stop() }
    let target = other.url("/to")
    try await withCache { _ in
      Reply(302, [("Location", target.absoluteString), ("Cache-Control", "max-age=600")], "moved")
    } _: { (fixture, origin) async throws in
      let cache = fixture.cache
      let request = URLRequest(origin.url("/from"), ["Authorization": "Bearer secret"])
      let session = kind.session(fixture)
      for _ in 0..<2 {
        let (data, response) = try await cache.data(for: request, from: session)
        #expect(data.text == "/to none")
        #expect(response.url == target)
      }
      #expect(origin.requestCount == 1)
      #expect(other.requestCount == 1)
      #expect(other.requests.first?["Authorization"] == nil)
      #expect(cache.cachedResponse(for: request)?.data.text == "moved")
      #expect(cache.cachedResponse(for: URLRequest(url: target))?.data.text == "/to none")
    }
  }

  @Test(
    "A session's delegate can reject a redirect, and the response is the redirect",
    arguments: [Kind.taskDelegate, .caching])
  func refused(_ kind: Kind) async throws {
    try await withCache { request in
      request.path == "/from"
        ? Reply(302, [("Location", "/to"), ("Cache-Control", "max-age=600")], "moved") : Reply(200, [], "there")
    } _: { (fixture, origin) async throws in
      let delegate = RecordingDelegate(follow: { _ in nil })
      let session = kind.session(fixture, delegate)
      for round in 1...2 {
        let (data, response) = try await fixture.cache.data(for: URLRequest(url: origin.url("/from")), from: session)
        #expect(response.status == 302)
        #expect(response.url == origin.url("/from"))
        #expect(data.text == "moved")
        #expect(delegate.events.redirects == Array(repeating: origin.url("/to"), count: round))
      }
      #expect(origin.requestCount == 1)
      // The delegate is not told of tasks that it did not start.
      #expect(delegate.events.completions.isEmpty)
    }
  }

  // Foundation ends the process if the reply to a redirect comes after the time limit.
  @Test("Over URLSession, after half of the time limit a redirect is delivered without its content")
  func late() async throws {
    try await withCache(configure: { $0.transport = .urlSession(.ephemeral) }) { request in
      guard request.path == "/from" else { return Reply(200, [], "there") }
      let reply = Reply(302, [("Location", "/to")], "moved")
      guard request.query == "late" else { return reply }
      let gate = Gate()
      DispatchQueue.global().asyncAfter(deadline: .now() + 0.55) { gate.open() }
      return reply.held(at: gate)
    } _: { (fixture, origin) async throws in
      let (refusing, following) = (RecordingDelegate(follow: { _ in nil }), RecordingDelegate())
      for (query, content) in [("?soon", "moved"), ("?late", "")] {
        var request = URLRequest(url: origin.url("/from" + query))
        request.timeoutInterval = 1
        let (data, response) = try await fixture.cache.data(for: request, from: fixture.session(delegate: refusing))
        #expect(response.status == 302)
        #expect(response.field("Location") == "/to")
        #expect(data.text == content)
        let session = fixture.session(delegate: following)
        #expect(try await session.data(for: request).0.text == "there")
      }
    }
  }

  @Test("A cookie that a redirect sets is sent with the next hop of the same origin", arguments: [true, false])
  func cookies(_ usesTask: Bool) async throws {
    try await withCache { request in
      request.path == "/from"
        ? Reply(302, [("Location", "/to"), ("Set-Cookie", "c=new; Path=/")])
        : Reply(200, [("Cache-Control", "no-store")], request["Cookie"] ?? "none")
    } _: { (fixture, origin) async throws in
      let old = HTTPCookie(properties: [.domain: "127.0.0.1", .path: "/", .name: "c", .value: "old"])
      let request = URLRequest(url: origin.url("/from"))
      for delegate in [nil, RecordingDelegate()] {
        let session = fixture.session(delegate: delegate)
        session.configuration.httpCookieStorage?.setCookie(try #require(old))
        if usesTask {
          #expect(try await session.data(for: request).0.text == "c=new")
        } else {
          #expect(try await fixture.cache.data(for: request, from: session).0.text == "c=new")
        }
        #expect(origin.requests.suffix(2).map { $0["Cookie"] } == ["c=old", "c=new"])
      }
    }
  }

  @Test("A cookie deleted during a redirect is not sent again, but a Cookie field set by the caller is")
  func deletedCookies() async throws {
    let configuration = URLSessionConfiguration.ephemeral
    let jar = try #require(configuration.httpCookieStorage)
    let properties: [HTTPCookiePropertyKey: Any] = [.domain: "127.0.0.1", .path: "/", .name: "c", .value: "old"]
    let old = try #require(HTTPCookie(properties: properties))
    try await withCache { request in
      guard request.path == "/from" else {
        return Reply(200, [("Cache-Control", "no-store")], request["Cookie"] ?? "none")
      }
      jar.deleteCookie(old)
      return Reply(302, [("Location", "/to")])
    } _: { (fixture, origin) async throws in
      jar.setCookie(old)
      let session = URLSession(configuration: configuration.caching(with: fixture.cache))
      #expect(try await session.data(from: origin.url("/from")).0.text == "none")
      #expect(origin.requests.map { $0["Cookie"] } == ["c=old", nil])
      let byHand = URLRequest(origin.url("/from"), ["Cookie": "mine=1"])
      #expect(try await session.data(for: byHand).0.text == "mine=1")
      #expect(try await fixture.cache.data(for: byHand, from: session).0.text == "mine=1")
    }
  }

  @Test("Loads that are cancelled while their redirect arrives do not end the process")
  func cancelled() async {
    await #expect(processExitsWith: .success) {
      let cache = LMDBURLCache(memoryCapacity: 1 << 20, diskCapacity: 0, diskPath: NSTemporaryDirectory())
      let origin = try LoopbackOrigin { request in
        request.path == "/to" ? Reply(200, [], "there") : Reply(302, [("Location", "/to")], "moved")
      }
      let session = URLSession(configuration: .ephemeral)
      for round in 0..<200 {
        let url = origin.url("/from?\(round)")
        let count = origin.requestCount
        let load = Task {
          try await round % 2 == 0 ? cache.data(from: url).0 : cache.data(from: url, by: session)
        }
        // The origin responds at the same time.
        while origin.requestCount == count { await Task.yield() }
        for _ in 0..<(round % 40) { await Task.yield() }
        load.cancel()
        // Both outcomes are valid.
        _ = await load.result
      }
      origin.stop()
    }
  }
}

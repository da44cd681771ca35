import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Synchronization
import Testing

/// Cookies, credentials and content at redirects: what the caller set stays the caller's, and what was taken off does
/// not come back.
@Suite("Secrets at redirects", .timeLimit(.minutes(1)))
struct RedirectSecretsTests {
  private static let kept = [("Cache-Control", "max-age=600")]

  /// A configuration whose jar has a cookie of user A.
  private func configurationOfA(_ url: URL) throws -> URLSessionConfiguration {
    let configuration = URLSessionConfiguration.ephemeral
    let cookie = HTTPCookie(properties: [.domain: try #require(url.host), .path: "/", .name: "sid", .value: "A"])
    configuration.httpCookieStorage?.setCookie(try #require(cookie))
    return configuration
  }

  enum Way: CaseIterable {
    case task, loadFromSession

    func load(_ request: URLRequest, _ session: URLSession, _ cache: LMDBURLCache) async throws -> String {
      switch self {
      case .task: try await session.data(for: request).0.text
      case .loadFromSession: try await cache.data(for: request, from: session).0.text
      }
    }
  }

  @Test(
    "A cookie that the caller set stays on each hop of the origin, and its page stays in its partition",
    arguments: Way.allCases)
  func ownCookie(_ way: Way) async throws {
    try await withCache(configure: { $0.partition = { $0.value(forHTTPHeaderField: "Cookie") ?? "" } }) { request in
      switch request.path {
      case "/from": Reply(302, [("Location", "/page")])
      default: Reply(200, Self.kept, "page of \(request["Cookie"] ?? "no one")")
      }
    } _: { (fixture, origin) async throws in
      let session = URLSession(configuration: try configurationOfA(origin.url("/")).caching(with: fixture.cache))
      let request = URLRequest(origin.url("/from"), ["Cookie": "sid=B"])
      // Foundation replaces the cookies of a task's request by those of the jar, before this library sees it.
      let (sent, other) = way == .task ? ("sid=A", "sid=B") : ("sid=B", "sid=A")
      #expect(try await way.load(request, session, fixture.cache) == "page of \(sent)")
      #expect(origin.requests.map { $0["Cookie"] } == [sent, sent])
      #expect(fixture.cache.cachedResponse(for: URLRequest(origin.url("/page"), ["Cookie": other])) == nil)
      let stored = fixture.cache.cachedResponse(for: URLRequest(origin.url("/page"), ["Cookie": sent]))
      #expect(stored?.data.text == "page of \(sent)")
    }
  }

  @Test("After a redirect to another origin, the jar does not replace a cookie that the caller set")
  func cookieOfFirstOrigin() async throws {
    let other = try LoopbackOrigin { Reply(200, [], $0["Cookie"] ?? "none") }
    defer { other.stop() }
    let target = other.url("/").absoluteString
    try await withCache { _ in
      Reply(302, [("Location", target)])
    } _: { (fixture, origin) async throws in
      let session = URLSession(configuration: try configurationOfA(origin.url("/")))
      let request = URLRequest(origin.url("/from"), ["Cookie": "sid=B"])
      #expect(try await fixture.cache.data(for: request, from: session).0.text == "none")
      // Without a cookie of its own, a load has those of the jar at each origin of this host.
      #expect(try await fixture.cache.data(from: origin.url("/from"), by: session).text == "sid=A")
    }
  }

  @Test("Another user's cookie that arrives during a load of the process's jar does not replace the caller's")
  func jarOfProcess() async throws {
    let name = "lmdburlcache-\(UUID().uuidString)"
    try await withCache { request in
      switch request.path {
      case "/login": Reply(200, [("Set-Cookie", "\(name)=A; Path=/")])
      case "/from": Reply(302, [("Location", "/page"), ("Set-Cookie", "\(name)=A2; Path=/")])
      default: Reply(200, Self.kept + [("Vary", "Cookie")], "page of \(request["Cookie"] ?? "no one")")
      }
    } _: { (fixture, origin) async throws in
      _ = try await fixture.cache.data(from: origin.url("/login"))
      for _ in 0..<2 {
        let (data, _) = try await fixture.cache.data(for: URLRequest(origin.url("/from"), ["Cookie": "\(name)=B"]))
        #expect(data.text == "page of \(name)=B")
      }
      // Without a cookie of its own, a load has those of the jar on each hop.
      #expect(try await fixture.cache.data(from: origin.url("/from")).0.text.contains("\(name)=A2"))
      for cookie in HTTPCookieStorage.shared.cookies ?? [] where cookie.name == name {
        HTTPCookieStorage.shared.deleteCookie(cookie)
      }
    }
  }

  @Test(
    "Credentials for a whole session do not come back after a redirect to another origin, nor on the way back",
    arguments: Way.allCases)
  func sessionCredentials(_ way: Way) async throws {
    // The query is the host of the first origin.
    let other = try LoopbackOrigin { request in
      let query = request.query ?? ""
      return Reply(302, [("Location", request.path == "/away" ? "/stay?\(query)" : "http://\(query)/back")])
    }
    defer { other.stop() }
    let away = other.url("/away").absoluteString
    try await withCache { request in
      request.path == "/back"
        ? Reply(200, [], "back") : Reply(302, [("Location", "\(away)?\(request["Host"] ?? "")")])
    } _: { (fixture, origin) async throws in
      let secrets = [
        "Authorization": "Bearer secret", "cookie": "sid=secret", "Proxy-Authorization": "secret", "X-Tenant": "blue",
      ]
      let session = fixture.session { $0.httpAdditionalHeaders = secrets }
      #expect(try await way.load(URLRequest(url: origin.url("/from")), session, fixture.cache) == "back")
      #expect(origin.requests.map { $0["Authorization"] } == ["Bearer secret", nil])
      #expect(origin.requests.map { $0["Cookie"] } == ["sid=secret", nil])
      #expect(origin.requests.map { $0["Proxy-Authorization"] } == ["secret", nil])
      for request in other.requests {
        for name in ["Authorization", "Cookie", "Proxy-Authorization"] { #expect(request[name] == nil, "\(name)") }
        // Other fields are the session's for each request.
        #expect(request["X-Tenant"] == "blue")
      }
      #expect(other.requestCount == 2)
    }
  }

  @Test("Credentials for a whole session stay on each hop of the same origin")
  func sameOrigin() async throws {
    try await withCache { request in
      request.path == "/to" ? Reply(200, [], request["Authorization"] ?? "none") : Reply(302, [("Location", "/to")])
    } _: { (fixture, origin) async throws in
      let session = fixture.session { $0.httpAdditionalHeaders = ["Authorization": "Bearer secret"] }
      #expect(try await session.data(from: origin.url("/from")).0.text == "Bearer secret")
    }
  }

  /// Gives a new stream for content that must be sent again, if it has one.
  private final class StreamDelegate: NSObject, URLSessionTaskDelegate {
    private let content: Data?
    init(_ content: Data?) { self.content = content }

    func urlSession(
      _ session: URLSession, task: URLSessionTask, needNewBodyStream completionHandler: @escaping (InputStream?) -> Void
    ) {
      completionHandler(content.map { InputStream(data: $0) })
    }
  }

  @Test("After a 307 or 308, a body stream is sent again if the delegate has another one; otherwise the load fails")
  func streams() async throws {
    try await withCache { request in
      switch request.path {
      case "/307", "/308": Reply(Int(request.path.dropFirst())!, [("Location", "/to")])
      case "/303": Reply(303, [("Location", "/to")])
      default: Reply(200, [], "\(request.method) \(request.body.text)")
      }
    } _: { (fixture, origin) async throws in
      func post(_ path: String) -> URLRequest {
        var request = URLRequest(origin.url(path), method: "POST")
        request.httpBodyStream = InputStream(data: Data("stream".utf8))
        return request
      }
      let giving = fixture.session(delegate: StreamDelegate(Data("again".utf8)))
      let refusing = fixture.session(delegate: StreamDelegate(nil))
      for path in ["/307", "/308"] {
        #expect(try await fixture.cache.data(for: post(path), from: giving).0.text == "POST again")
        #expect(try await giving.data(for: post(path)).0.text == "POST again")
        for load in [
          { try await fixture.cache.data(for: post(path)) },
          { try await fixture.cache.data(for: post(path), from: refusing) },
          { try await refusing.data(for: post(path)) },
        ] {
          await #expect { _ = try await load() } throws: { ($0 as? URLError)?.code == .requestBodyStreamExhausted }
        }
      }
      #expect(try await fixture.cache.data(for: post("/303")).0.text == "GET ")
      // Content in memory is sent again.
      var request = URLRequest(origin.url("/307"), method: "POST")
      request.httpBody = Data("memory".utf8)
      #expect(try await fixture.session().data(for: request).0.text == "POST memory")
      #expect(origin.requests.filter { $0.path == "/to" && $0.method == "POST" }.allSatisfy { !$0.body.isEmpty })
    }
  }
}

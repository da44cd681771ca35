import CachingClient
import CurlTransport
import FoundationEssentials
import HTTPCaching
import LoopbackOrigin
import Testing

/// Requests that follow redirects, over real connections (RFC 9110, section 15.4).
@Suite("Followed redirects", .timeLimit(.minutes(1)))
struct RedirectTests {
  private let fixture = Fixture()
  private let transport = CurlTransport()
  private static let kept = ("Cache-Control", "max-age=600")

  private func request(
    _ url: URL, _ method: String = "GET", _ fields: [(String, String)] = [], body: RequestBodySource? = nil,
    limit: Int = 20
  ) -> CachingClientRequest {
    var head = RequestHead(method: method, url: url)
    for (name, value) in fields { head.fields.append(name: name, value: value) }
    var request = CachingClientRequest(head: head, body: body)
    request.maximumRedirectCount = limit
    return request
  }

  private func load(_ request: CachingClientRequest) async throws -> String {
    try await fixture.client.respond(to: request, over: transport).text()
  }

  /// An origin whose reply to `/0` and each later path redirects to the next one, up to `/last`, which is the end.
  private func chain(_ last: Int, status: Int = 301, _ fields: [(String, String)] = [kept]) throws -> LoopbackOrigin {
    try LoopbackOrigin { request in
      let number = Int(request.path.dropFirst()) ?? 0
      return number < last
        ? Reply(status, fields + [("Location", "/\(number + 1)")], "moved") : Reply(200, fields, "end")
    }
  }

  @Test("A redirect is the response by default")
  func off() async throws {
    let origin = try chain(1)
    let response = try await fixture.client.respond(to: request(origin.url("/0"), limit: 0), over: transport)
    #expect(response.status == 301)
    #expect(response.redirects.isEmpty)
    #expect(response.redirectedURL == nil)
    #expect(try await response.text() == "moved")
    #expect(fixture.client.storedResponse(to: request(origin.url("/0"), limit: 0))?.status == 301)
  }

  @Test("A redirect with two different targets is the response, and equal ones count once")
  func twoTargets() async throws {
    let origin = try LoopbackOrigin { request in
      switch request.path {
      case "/different": Reply(302, [("Location", "/a"), ("Location", "/b")], "moved")
      case "/equal": Reply(302, [("Location", "/a"), ("Location", "/a")], "moved")
      default: Reply(200, [Self.kept], "end")
      }
    }
    #expect(try await load(request(origin.url("/different"))) == "moved")
    #expect(try await load(request(origin.url("/equal"))) == "end")
  }

  @Test("Each hop is stored under its own URL, and the response names the hops")
  func hops() async throws {
    let origin = try chain(2)
    let first = request(origin.url("/0"))
    for source in [ResponseSource.miss, .hit] {
      let response = try await fixture.client.respond(to: first, over: transport)
      #expect(try await response.text() == "end")
      #expect(response.source == source)
      #expect(response.redirectedURL == origin.url("/2"))
      #expect(response.redirects.map(\.request.url) == [origin.url("/0"), origin.url("/1")])
      #expect(response.redirects.map(\.target.url) == [origin.url("/1"), origin.url("/2")])
      #expect(response.redirects.map(\.response.status) == [301, 301])
      #expect(response.redirects.map(\.source) == [source, source])
      #expect(response.head.fields["Cache-Control"] == "max-age=600")
      #expect(response.isWholeEntry == (source == .hit))
      #expect(response.storageRefusal == nil)
    }
    #expect(origin.requestCount == 3)
    #expect(fixture.storage.entryCount == 3)
    #expect(try await load(request(origin.url("/1"))) == "end")
    #expect(try await load(request(origin.url("/2"))) == "end")
    #expect(origin.requestCount == 3)
  }

  @Test("The rules of the target apply to it, so that its users stay apart")
  func rules() async throws {
    let origin = try LoopbackOrigin { request in
      request.path == "/login"
        ? Reply(301, [Self.kept, ("Location", "/account")], "moved")
        : Reply(200, [Self.kept], request["X-User"] ?? "none")
    }
    let rules = try CachingRules([CachingRule(name: "accounts", paths: ["/account"], partitionField: "X-User")])
    for user in ["a", "b", "a"] {
      var request = CachingClientRequest(
        head: RequestHead(method: "GET", url: origin.url("/login"), fields: HeaderFields([("X-User", user)])),
        rules: rules)
      request.maximumRedirectCount = 20
      #expect(try await load(request) == user)
    }
    #expect(origin.requestCount == 3)
  }

  @Test("A stored redirect is not returned as the response to a request that follows it")
  func storedRedirect() async throws {
    let origin = try chain(1)
    _ = try await load(request(origin.url("/0")))
    #expect(fixture.client.storedResponse(to: request(origin.url("/0"))) == nil)
    #expect(fixture.client.storedResponse(to: request(origin.url("/1")))?.status == 200)
    #expect(origin.requestCount == 2)
  }

  @Test("The redirects of a loop, and of a chain longer than the limit, end with an error")
  func limit() async throws {
    let loop = try LoopbackOrigin { _ in Reply(302, [("Location", "/a")]) }
    await #expect(throws: CachingClientError.tooManyRedirects(limit: 5)) {
      try await load(request(loop.url("/a"), limit: 5))
    }
    #expect(loop.requestCount == 6)
    let origin = try chain(3)
    await #expect(throws: CachingClientError.tooManyRedirects(limit: 2)) {
      try await load(request(origin.url("/0"), limit: 2))
    }
    #expect(try await load(request(origin.url("/0"), limit: 3)) == "end")
    // Also from the store.
    await #expect(throws: CachingClientError.tooManyRedirects(limit: 2)) {
      try await load(request(origin.url("/0"), limit: 2))
    }
    #expect(origin.requestCount == 4)
  }

  @Test("Another origin does not get credentials, nor do later hops; its response is not that of another user")
  func credentials() async throws {
    let other = try LoopbackOrigin { request in
      request.path == "/away"
        ? Reply(302, [("Location", "http://\(request.query ?? "")/back")])
        : Reply(200, [Self.kept], request["Authorization"] ?? "none")
    }
    let target = other.url("/away").absoluteString
    let origin = try LoopbackOrigin { request in
      request.path == "/back"
        ? Reply(200, [Self.kept], request["Authorization"] ?? "none")
        : Reply(302, [("Location", "\(target)?\(request["Host"] ?? "")")])
    }
    let secrets = [("Authorization", "Bearer a"), ("Cookie", "id=1"), ("Proxy-Authorization", "b"), ("X-Tenant", "c")]
    #expect(try await load(request(origin.url("/from"), "GET", secrets)) == "none")
    for received in other.requests + origin.requests.dropFirst() {
      for (name, _) in secrets.dropLast() { #expect(received[name] == nil, "\(name)") }
      #expect(received["X-Tenant"] == "c")
    }
    #expect(origin.requests.first?["Authorization"] == "Bearer a")
    // The response belongs to requests without credentials.
    #expect(try await load(request(origin.url("/back"))) == "none")
    #expect(try await load(request(origin.url("/back"), "GET", secrets)) == "Bearer a")
    #expect(origin.requestCount == 3)
  }

  @Test("A POST becomes a GET after 301, 302 and 303, and keeps its content after 307 and 308")
  func methods() async throws {
    let origin = try LoopbackOrigin { request in
      let status = Int(request.path.dropFirst())
      return status.map { Reply($0, [("Location", "/to")]) }
        ?? Reply(200, [], "\(request.method) \(String(decoding: request.body, as: UTF8.self))")
    }
    func post(_ path: String) -> CachingClientRequest {
      request(origin.url(path), "POST", [("Content-Type", "text/plain")], body: .bytes(Data("a".utf8)))
    }
    for path in ["/301", "/302", "/303"] { #expect(try await load(post(path)) == "GET ") }
    #expect(origin.requests.filter { $0.method == "GET" }.allSatisfy { $0["Content-Type"] == nil })
    for path in ["/307", "/308"] { #expect(try await load(post(path)) == "POST a") }
    #expect(origin.requests.last?["Content-Type"] == "text/plain")
  }

  /// Sends content that can be read once. A second reading would send nothing.
  private struct ReadingOnce: Transport {
    let transport: CurlTransport
    let content: ContentOnce

    func send(_ request: OutgoingRequest) async throws -> IncomingResponse {
      var request = request
      if case .inContext? = request.body { request.body = .bytes(await content.read()) }
      return try await transport.send(request)
    }
  }

  private actor ContentOnce {
    private var content: Data
    private let isRepeatable: Bool
    init(_ text: String, isRepeatable: Bool) {
      content = Data(text.utf8)
      self.isRepeatable = isRepeatable
    }

    func read() -> Data {
      defer { if !isRepeatable { content = Data() } }
      return content
    }
  }

  @Test(
    "After 307 and 308, content is sent again if that is possible, and otherwise the redirect is the response",
    arguments: [307, 308], [true, false])
  func contentOnce(status: Int, isRepeatable: Bool) async throws {
    let origin = try LoopbackOrigin { request in
      request.path == "/from"
        ? Reply(status, [("Location", "/to")], "moved") : Reply(200, [], String(decoding: request.body, as: UTF8.self))
    }
    var put = request(origin.url("/from"), "PUT", body: .inContext)
    put.canResendBody = isRepeatable
    let content = ContentOnce("a", isRepeatable: isRepeatable)
    let response = try await fixture.client.respond(
      to: put, over: ReadingOnce(transport: transport, content: content))
    #expect(response.status == (isRepeatable ? 200 : status))
    #expect(try await response.text() == (isRepeatable ? "a" : "moved"))
    #expect(response.redirects.count == (isRepeatable ? 1 : 0))
    #expect(origin.requests.allSatisfy { String(decoding: $0.body, as: UTF8.self) == "a" })
  }

  @Test("After 303, content that can be read once is not needed again")
  func contentOnceAfterSeeOther() async throws {
    let origin = try LoopbackOrigin { request in
      request.path == "/from" ? Reply(303, [("Location", "/to")]) : Reply(200, [], request.method)
    }
    let content = ContentOnce("a", isRepeatable: false)
    let response = try await fixture.client.respond(
      to: request(origin.url("/from"), "POST", body: .inContext),
      over: ReadingOnce(transport: transport, content: content))
    #expect(try await response.text() == "GET")
  }

  @Test("A redirected POST or PUT invalidates the stored responses of both URLs")
  func invalidation() async throws {
    let origin = try LoopbackOrigin { request in
      request.method == "GET"
        ? Reply(200, [Self.kept], "\(request.number)")
        : request.path == "/a" ? Reply(request.method == "PUT" ? 307 : 303, [("Location", "/b")]) : Reply(200)
    }
    var texts: [String] = []
    for method in ["GET", "POST", "GET", "PUT", "GET"] {
      if method == "GET" {
        for path in ["/a", "/b"] { texts.append(try await load(request(origin.url(path)))) }
      } else {
        _ = try await load(request(origin.url("/a"), method, body: .bytes(Data("c".utf8))))
      }
    }
    // After the POST, the GET of /b is the redirected request.
    #expect(texts == ["0", "1", "4", "3", "7", "8"])
  }

  @Test("A HEAD is redirected as a HEAD, also from the stored redirect and response of a GET")
  func head() async throws {
    let origin = try chain(1, status: 303)
    let response = try await fixture.client.respond(to: request(origin.url("/0"), "HEAD"), over: transport)
    #expect(response.status == 200)
    #expect(origin.requests.map(\.method) == ["HEAD", "HEAD"])
    _ = try await load(request(origin.url("/0")))
    let stored = try await fixture.client.respond(to: request(origin.url("/0"), "HEAD"), over: transport)
    #expect(stored.source == .hit)
    #expect(stored.redirectedURL == origin.url("/1"))
    #expect(try await stored.text() == "")
    #expect(origin.requestCount == 4)
  }

  @Test("The response has the fragment of the request, which is not part of the key")
  func fragment() async throws {
    let origin = try chain(1)
    let url = try #require(URL(string: origin.url("/0").absoluteString + "#part"))
    let response = try await fixture.client.respond(to: request(url), over: transport)
    #expect(response.redirectedURL?.absoluteString == origin.url("/1").absoluteString + "#part")
    _ = try await load(request(origin.url("/0")))
    #expect(origin.requestCount == 2)
  }

  @Test("A request that forbids the network gets a 504 if any hop is not stored", arguments: [true, false])
  func forbidden(byPolicy: Bool) async throws {
    let origin = try chain(2)
    var forbidding = request(origin.url("/0"), "GET", byPolicy ? [] : [("Cache-Control", "only-if-cached")])
    if byPolicy { forbidding.policy = .returnCacheDataDontLoad }
    _ = try await load(request(origin.url("/0"), limit: 0))
    let missing = try await fixture.client.respond(to: forbidding, over: transport)
    #expect(missing.source == .unavailable)
    #expect(missing.status == 504)
    #expect(missing.redirectedURL == origin.url("/1"))
    #expect(origin.requestCount == 1)
    _ = try await load(request(origin.url("/0")))
    let found = try await fixture.client.respond(to: forbidding, over: transport)
    #expect(try await found.text() == "end")
    #expect(origin.requestCount == 3)
  }

  @Test("Each hop has the policy of the request")
  func policies() async throws {
    let origin = try chain(2)
    _ = try await load(request(origin.url("/0")))
    var reload = request(origin.url("/0"))
    reload.policy = .reloadIgnoringLocalCacheData
    _ = try await load(reload)
    #expect(origin.requestCount == 6)
    fixture.clock.advance(by: 3600)
    var any = request(origin.url("/0"))
    any.policy = .returnCacheDataElseLoad
    let response = try await fixture.client.respond(to: any, over: transport)
    #expect(response.source == .stale)
    #expect(response.redirects.map(\.source) == [.stale, .stale])
    #expect(origin.requestCount == 6)
  }

  @Test("Each hop is in the partition of the request, and has its overrides")
  func partitions() async throws {
    let origin = try chain(1, [])
    for partition in ["a", "b", "a"] {
      var request = CachingClientRequest(
        head: RequestHead(url: origin.url("/0")), partition: partition, overrides: RequestOverrides(lifetime: 60))
      request.maximumRedirectCount = 1
      #expect(try await load(request) == "end")
    }
    #expect(origin.requestCount == 4)
  }

  @Test("A stale hop in the middle of a chain is validated, and the hops around it are served from the store")
  func validation() async throws {
    let origin = try LoopbackOrigin { request in
      switch request.path {
      case "/1":
        let fields = [("ETag", "\"1\""), ("Cache-Control", "max-age=0"), ("Location", "/2")]
        return request["If-None-Match"] == "\"1\"" ? Reply(304, fields) : Reply(302, fields, "moved")
      case "/0": return Reply(301, [Self.kept, ("Location", "/1")])
      default: return Reply(200, [Self.kept], "end")
      }
    }
    _ = try await load(request(origin.url("/0")))
    let response = try await fixture.client.respond(to: request(origin.url("/0")), over: transport)
    #expect(response.source == .hit)
    #expect(response.redirects.map(\.source) == [.hit, .revalidated])
    #expect(origin.requests.map { $0["If-None-Match"] } == [nil, nil, nil, "\"1\""])
  }

  @Test("Cancelling the task during a later hop ends the request with CancellationError")
  func cancellation() async throws {
    let gate = Gate()
    let transport = ScriptedTransport { request, number in
      if number == 1 { return fixture.response(302, "moved", [("Location", "/1")]) }
      try await gate.pass()
      return fixture.ok()
    }
    let url = try #require(URL(string: "http://example.com/0"))
    let task = Task { try await fixture.client.respond(to: request(url), over: transport).text() }
    await until { transport.count == 2 }
    task.cancel()
    await #expect(throws: CancellationError.self) { try await task.value }
    #expect(fixture.client.statistics.waiting == 0)
  }

  @Test("The body of a redirect that breaks off fails the request, and nothing is stored for that hop")
  func brokenRedirect() async throws {
    let origin = try LoopbackOrigin { _ in Reply(301, [Self.kept, ("Location", "/1")], "moved").cut(.inBody(after: 2)) }
    await #expect(throws: (any Error).self) { try await load(request(origin.url("/0"))) }
    #expect(fixture.storage.entryCount == 0)
  }

  @Test("A redirect without Location, or to another scheme, is the response")
  func notFollowed() async throws {
    for fields in [[], [("Location", "ftp://example.com/a")]] {
      let origin = try LoopbackOrigin { _ in Reply(302, fields, "moved") }
      #expect(try await load(request(origin.url("/0"))) == "moved")
    }
  }
}

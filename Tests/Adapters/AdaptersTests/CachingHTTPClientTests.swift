import AsyncHTTPClient
import CachingStorage
import Foundation
import HTTPCaching
import NIOCore
import NIOHTTP1
import Origin
import Synchronization
import Testing

@Suite("The requests of AsyncHTTPClient through a caching client", .timeLimit(.minutes(1)))
struct CachingHTTPClientTests {
  private static let kept = [("Cache-Control", "max-age=600")]
  private let directory = TemporaryDirectory()
  private let client: CachingHTTPClient

  init() throws {
    client = CachingHTTPClient(cachingClient: try directory.openClient(), client: .overSockets())
  }

  private func request(_ url: URL, _ method: HTTPMethod = .GET, body: HTTPClientRequest.Body? = nil)
    -> HTTPClientRequest
  {
    var request = HTTPClientRequest(url: url.absoluteString)
    request.method = method
    request.body = body
    return request
  }

  private func text(_ response: HTTPClientResponse) async throws -> String {
    var bytes: [UInt8] = []
    for try await chunk in response.body { bytes += chunk.readableBytesView }
    return String(decoding: bytes, as: UTF8.self)
  }

  private func load(_ request: HTTPClientRequest) async throws -> String {
    try await text(client.execute(request, timeout: .seconds(30)))
  }

  @Test("The second request is answered from the store, with status, fields, content and history")
  func servesFromStore() async throws {
    let origin = try LoopbackOrigin { _ in Reply(404, Self.kept + [("X-Name", "a")], "hello") }
    for isHit in [false, true] {
      let response = try await client.execute(request(origin.url("/a")), timeout: .seconds(30))
      #expect(response.status.code == 404)
      #expect(response.headers.contains { $0.name == "X-Name" && $0.value == "a" })
      #expect(response.headers.contains { $0.name == "Age" } == isHit)
      #expect(response.url == origin.url("/a"))
      #expect(response.history.map(\.responseHead.status.code) == [404])
      #expect(try await text(response) == "hello")
    }
    #expect(origin.requestCount == 1)
  }

  @Test("Redirects are followed, and each hop is stored under its own URL")
  func followsRedirects() async throws {
    let origin = try LoopbackOrigin { request in
      request.path == "/to" ? Reply(200, Self.kept, "end") : Reply(301, Self.kept + [("Location", "/to")], "moved")
    }
    for _ in 0..<2 {
      let response = try await client.execute(request(origin.url("/from")), deadline: .now() + .seconds(30))
      #expect(response.status.code == 200)
      #expect(try await text(response) == "end")
      #expect(response.url == origin.url("/to"))
      #expect(response.history.map(\.request.url) == [origin.url("/from"), origin.url("/to")].map(\.absoluteString))
      #expect(response.history.map(\.responseHead.status.code) == [301, 200])
    }
    #expect(origin.requests.map(\.path) == ["/from", "/to"])
    let response = try await client.execute(request(origin.url("/from"), .POST), timeout: .seconds(30))
    #expect(response.history.map(\.request.method.rawValue) == ["POST", "GET"])
    #expect(try await text(response) == "end")
  }

  @Test("A loop of redirects ends with the client's own error")
  func limitsRedirects() async throws {
    let origin = try LoopbackOrigin { _ in Reply(302, [("Location", "/")]) }
    await #expect(throws: HTTPClientError.redirectLimitReached) { try await load(request(origin.url("/"))) }
    #expect(origin.requestCount == 6)
  }

  @Test("After 307, bytes are sent again if the caller says so, and a stream is sent once")
  func sendsContentAgain() async throws {
    let origin = try LoopbackOrigin { request in
      request.path == "/from"
        ? Reply(307, [("Location", "/to")], "moved") : Reply(200, [], String(decoding: request.body, as: UTF8.self))
    }
    let bytes = request(origin.url("/from"), .POST, body: .bytes(Array("abc".utf8)))
    #expect(try await client.execute(bytes, timeout: .seconds(30)).status.code == 307)
    var resending = client
    resending.canResendBody = true
    #expect(try await text(resending.execute(bytes, timeout: .seconds(30))) == "abc")
    let chunks = ChunksOnce(ByteBuffer(bytes: Array("abc".utf8)))
    let stream = request(origin.url("/from"), .POST, body: .stream(chunks, length: .unknown))
    let response = try await client.execute(stream, timeout: .seconds(30))
    #expect(response.status.code == 307)
    #expect(try await text(response) == "moved")
    #expect(origin.requests.allSatisfy { $0.body == Data("abc".utf8) })
    #expect(origin.requests.map(\.path) == ["/from", "/from", "/to", "/from"])
  }

  @Test("The first chunk of a body arrives while the origin holds the rest back")
  func streamsBodies() async throws {
    let gate = Gate()
    let origin = try LoopbackOrigin { _ in Reply(200, Self.kept, "hello").held(at: gate, afterBodyBytes: 3) }
    let response = try await client.execute(request(origin.url("/a")), timeout: .seconds(30))
    var chunks = response.body.makeAsyncIterator()
    #expect(try await chunks.next().map { Array($0.readableBytesView) } == Array("hel".utf8))
    gate.open()
    #expect(try await chunks.next().map { Array($0.readableBytesView) } == Array("lo".utf8))
    #expect(try await chunks.next() == nil)
    #expect(try await load(request(origin.url("/a"))) == "hello")
    #expect(origin.requestCount == 1)
  }

  @Test("The deadline is that of all hops together")
  func keepsDeadlines() async throws {
    let limits = Mutex<[TimeAmount]>([])
    let recording = HTTPClient { request, limit in
      limits.withLock { $0.append(limit) }
      let isLast = request.url.hasSuffix("/to")
      return HTTPClientResponse(
        status: HTTPResponseStatus(statusCode: isLast ? 200 : 302),
        headers: HTTPHeaders([("Location", "/to"), ("Content-Length", "0")]), body: .bytes(ByteBuffer(bytes: [])))
    }
    let caching = CachingHTTPClient(cachingClient: client.cachingClient, client: recording)
    let url = try #require(URL(string: "http://example.com/from"))
    #expect(try await caching.execute(request(url), timeout: .seconds(40)).status == .ok)
    let seen = limits.withLock { $0 }
    #expect(seen.count == 2)
    #expect(seen[0] <= .seconds(40))
    #expect(seen[1] <= seen[0])
  }

  @Test("A request that has waited for an identical one, and then for its own fetch, fails with the client's own error")
  func limitsWaiting() async throws {
    let gate = Gate()
    let origin = try LoopbackOrigin { _ in Reply(200, Self.kept, "hello").held(at: gate) }
    let first = Task { try await load(request(origin.url("/a"))) }
    #expect(await gate.waitForArrivals())
    await #expect(throws: HTTPClientError.deadlineExceeded) {
      // On a busy machine, too, half of this time is enough to send its own request.
      try await client.execute(request(origin.url("/a")), timeout: .seconds(2))
    }
    gate.open()
    #expect(try await first.value == "hello")
    #expect(origin.requestCount == 2)
  }

  @Test("A request with its own TLS settings or local address is sent past the cache", arguments: [true, false])
  func bypassesForConnection(byTLS: Bool) async throws {
    let origin = try LoopbackOrigin { _ in Reply(200, Self.kept, "hello") }
    var request = request(origin.url("/a"))
    if byTLS { request.tlsConfiguration = TLSConfiguration() } else { request.localAddress = "127.0.0.1" }
    for _ in 0..<2 { #expect(try await load(request) == "hello") }
    #expect(origin.requestCount == 2)
  }

  @Test("The client of the example returns redirects as responses")
  func hasSettings() throws {
    let directory = TemporaryDirectory()
    let opened = try openCachingHTTPClient(directory: directory.url.path)
    #expect(opened.client.configuration.redirectConfiguration == .disallow)
  }

  @Test("An invalid URL fails with the client's own error")
  func refusesInvalidURLs() async throws {
    await #expect(throws: HTTPClientError.invalidURL) {
      try await client.execute(HTTPClientRequest(url: ""), timeout: .seconds(30))
    }
  }
}

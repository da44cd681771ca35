import CachingStorage
import Foundation
import HTTPTypes
import OpenAPIRuntime
import Origin
import Testing

@Suite("The middleware for generated OpenAPI clients")
struct CachingMiddlewareTests {
  private let directory = TemporaryDirectory()
  private let cachingClient: CachingClient<ResponseCache>

  init() throws {
    cachingClient = try directory.openClient()
  }

  private func call(
    _ origin: LoopbackOrigin, _ method: HTTPRequest.Method = .get, _ fields: HTTPFields = [:],
    body: HTTPBody? = nil, decodesContent: Bool = false
  ) async throws -> (HTTPResponse, HTTPBody) {
    let middleware = CachingMiddleware(
      cachingClient: cachingClient, transport: SocketClientTransport(), decodesContent: decodesContent)
    let baseURL = try #require(URL(string: "http://127.0.0.1:\(origin.port)/api"))
    let request = HTTPRequest(method: method, scheme: nil, authority: nil, path: "/greet?name=a", headerFields: fields)
    let (response, content) = try await middleware.intercept(
      request, body: body, baseURL: baseURL, operationID: "greet"
    ) { _, _, _ in
      Issue.record("The middleware skipped the caching client")
      throw CancellationError()
    }
    return (response, try #require(content))
  }

  private func text(_ body: HTTPBody) async throws -> String {
    var bytes: [UInt8] = []
    for try await chunk in body { bytes += chunk }
    return String(decoding: bytes, as: UTF8.self)
  }

  @Test("The second call is answered from the store, with its age")
  func servesFromStore() async throws {
    let origin = try LoopbackOrigin { request in
      request.target == "/api/greet?name=a" ? Reply(200, [("Cache-Control", "max-age=600")], "hello") : Reply(404)
    }
    for isHit in [false, true] {
      let (response, body) = try await call(origin)
      #expect(response.status.code == 200)
      #expect(try await text(body) == "hello")
      #expect((response.headerFields[try #require(HTTPField.Name("age"))] != nil) == isHit)
    }
    #expect(origin.requestCount == 1)
  }

  @Test("The first chunk of a body arrives while the origin holds the rest back")
  func streamsBodies() async throws {
    let gate = Gate()
    let origin = try LoopbackOrigin { _ in
      Reply(200, [("Cache-Control", "max-age=600")], "hello").held(at: gate, afterBodyBytes: 3)
    }
    var chunks = try await call(origin).1.makeAsyncIterator()
    #expect(try await chunks.next().map { Array($0) } == Array("hel".utf8))
    gate.open()
    var rest: [UInt8] = []
    while let chunk = try await chunks.next() { rest += chunk }
    #expect(rest == Array("lo".utf8))
    #expect(try await text(call(origin).1) == "hello")
    #expect(origin.requestCount == 1)
  }

  @Test("A POST reaches the origin with its content, is not stored, and invalidates the stored response")
  func forwardsUnsafeMethods() async throws {
    let origin = try LoopbackOrigin { request in
      Reply(200, [("Cache-Control", "max-age=600")], "\(request.method) \(request.body.count)")
    }
    #expect(try await text(call(origin).1) == "GET 0")
    for _ in 0..<2 {
      #expect(try await text(call(origin, .post, body: HTTPBody([1, 2, 3])).1) == "POST 3")
    }
    #expect(try await text(call(origin).1) == "GET 0")
    #expect(origin.requestCount == 4)
  }

  @Test("Redirects are followed to any URL, and each hop is stored under its own")
  func followsRedirects() async throws {
    let other = try LoopbackOrigin { request in
      request.target == "/v2/greet%2F?name=b%20c"
        ? Reply(200, [("Cache-Control", "max-age=600")], request["Authorization"] ?? "none") : Reply(404)
    }
    let target = other.url("/v2/greet%2F?name=b%20c").absoluteString
    let origin = try LoopbackOrigin { request in
      let location = request.target == "/api/greet?name=a" ? "next?name=b" : target
      return Reply(301, [("Cache-Control", "max-age=600"), ("Location", location)], "moved")
    }
    let name = try #require(HTTPField.Name("authorization"))
    for _ in 0..<2 {
      let (response, body) = try await call(origin, .get, [name: "Bearer a"])
      #expect(response.status.code == 200)
      #expect(try await text(body) == "none")
    }
    #expect(origin.requests.map(\.target) == ["/api/greet?name=a", "/api/next?name=b"])
    #expect(origin.requests.map { $0["Authorization"] } == ["Bearer a", "Bearer a"])
    #expect(other.requestCount == 1)
  }

  @Test("After 307, content is sent again if it can be read again, and otherwise the redirect is the response")
  func sendsContentAgain() async throws {
    let origin = try LoopbackOrigin { request in
      request.path == "/api/greet"
        ? Reply(307, [("Location", "/to")], "moved") : Reply(200, [], "\(request.method) \(request.body.count)")
    }
    #expect(try await text(call(origin, .post, body: HTTPBody([1, 2, 3])).1) == "POST 3")
    let once = HTTPBody(ChunksOnce([UInt8](repeating: 1, count: 3)), length: .unknown, iterationBehavior: .single)
    let (response, body) = try await call(origin, .post, body: once)
    #expect(response.status.code == 307)
    #expect(try await text(body) == "moved")
    #expect(origin.requests.map(\.body.count) == [3, 3, 3])
  }

  @Test("After 303, a GET without content follows a POST whose content can be read once")
  func followsPost() async throws {
    let origin = try LoopbackOrigin { request in
      request.path == "/api/greet"
        ? Reply(303, [("Location", "/to")]) : Reply(200, [], "\(request.method) \(request.body.count)")
    }
    let once = HTTPBody(ChunksOnce([UInt8](repeating: 1, count: 3)), length: .unknown, iterationBehavior: .single)
    #expect(try await text(call(origin, .post, body: once).1) == "GET 0")
  }

  @Test("Responses are kept apart by the fields that Vary names")
  func respectsVary() async throws {
    let origin = try LoopbackOrigin { request in
      Reply(200, [("Cache-Control", "max-age=600"), ("Vary", "Accept-Language")], request["Accept-Language"] ?? "")
    }
    let name = try #require(HTTPField.Name("accept-language"))
    for language in ["en", "de", "en", "de"] {
      #expect(try await text(call(origin, .get, [name: language]).1) == language)
    }
    #expect(origin.requestCount == 2)
  }

  @Test("A response to one credential is not given to another one")
  func separatesCredentials() async throws {
    let origin = try LoopbackOrigin { request in
      Reply(200, [("Cache-Control", "max-age=600")], request["Authorization"] ?? "none")
    }
    let name = try #require(HTTPField.Name("authorization"))
    for user in ["Bearer a", "Bearer b", "Bearer b"] {
      #expect(try await text(call(origin, .get, [name: user]).1) == user)
    }
    #expect(try await text(call(origin).1) == "none")
    #expect(origin.requestCount == 3)
  }

  @Test("A stale response is validated, and a 304 yields the stored content")
  func validates() async throws {
    let origin = try LoopbackOrigin { request in
      let fields = [("Cache-Control", "no-cache"), ("ETag", "\"1\"")]
      return request["If-None-Match"] == "\"1\"" ? Reply(304, fields) : Reply(200, fields, "hello")
    }
    for _ in 0..<2 {
      let (response, body) = try await call(origin)
      #expect(response.status.code == 200)
      #expect(try await text(body) == "hello")
    }
    #expect(origin.requests.map { $0["If-None-Match"] } == [nil, "\"1\""])
  }

  @Test("A body that breaks off throws, and is not stored")
  func reportsBrokenBodies() async throws {
    let origin = try LoopbackOrigin { request in
      let reply = Reply(200, [("Cache-Control", "max-age=600")], "hello")
      return request.number == 0 ? reply.cut(.inBody(after: 2)) : reply
    }
    await #expect(throws: (any Error).self) { try await text(call(origin).1) }
    #expect(try await text(call(origin).1) == "hello")
    #expect(origin.requestCount == 2)
  }

  @Test("A body without a length or chunks is handed on, and is not stored")
  func doesNotStoreUnprovenEnds() async throws {
    let origin = try LoopbackOrigin { _ in Reply(200, [("Cache-Control", "max-age=600")], "hello").untilClose() }
    for _ in 0..<2 { #expect(try await text(call(origin).1) == "hello") }
    #expect(origin.requestCount == 2)
  }

  @Test("Content that the transport decoded is stored if the middleware knows that", arguments: [true, false])
  func storesDecodedContent(decodesContent: Bool) async throws {
    let content = try #require(Data(base64Encoded: "H4sIAAAAAAACA8tIzcnJzxj6BADhUNMAyAAAAA=="))
    let origin = try LoopbackOrigin { _ in
      Reply(200, [("Cache-Control", "max-age=600"), ("Content-Encoding", "gzip")], body: content)
    }
    for _ in 0..<2 {
      let body = try await call(origin, decodesContent: decodesContent).1
      #expect(try await text(body) == String(repeating: "hello", count: 40))
    }
    #expect(origin.requestCount == (decodesContent ? 1 : 2))
  }
}

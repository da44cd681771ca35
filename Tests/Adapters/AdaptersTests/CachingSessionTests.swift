import Foundation
import FoundationNetworking
import HTTPTypes
import LMDBURLCache
import OpenAPIRuntime
import Origin
import Testing

/// The transport that swift-openapi-urlsession has, over a session that caches.
@Suite("The session transport of generated OpenAPI clients", .timeLimit(.minutes(1)))
struct CachingSessionTests {
  private static let kept = [("Cache-Control", "max-age=600")]
  private let directory = TemporaryDirectory()
  private let transport: any ClientTransport
  private let cache: LMDBURLCache

  init() throws {
    var options = LMDBURLCache.Options()
    // The directory is deleted before the cache is released, which the cache would report.
    options.log = { _ in }
    cache = try LMDBURLCache(
      directory: directory.url, memoryCapacity: 1 << 20, diskCapacity: 16 << 20, options: options)
    transport = makeTransport(cache: cache)
  }

  private func call(
    _ origin: LoopbackOrigin, _ method: HTTPRequest.Method = .get, _ fields: HTTPTypes.HTTPFields = [:],
    body: HTTPBody? = nil
  ) async throws -> (HTTPResponse, String) {
    let baseURL = try #require(URL(string: "http://127.0.0.1:\(origin.port)/api"))
    let request = HTTPRequest(method: method, scheme: nil, authority: nil, path: "/greet?name=a", headerFields: fields)
    let (response, content) = try await transport.send(request, body: body, baseURL: baseURL, operationID: "greet")
    var bytes: [UInt8] = []
    if let content {
      for try await chunk in content { bytes += chunk }
    }
    return (response, String(decoding: bytes, as: UTF8.self))
  }

  @Test("The second call is answered from the store, with its age")
  func servesFromStore() async throws {
    let origin = try LoopbackOrigin { request in
      request.target == "/api/greet?name=a" ? Reply(200, Self.kept, "hello") : Reply(404)
    }
    for isHit in [false, true] {
      let (response, text) = try await call(origin)
      #expect(response.status.code == 200)
      #expect(text == "hello")
      #expect((response.headerFields[try #require(HTTPField.Name("age"))] != nil) == isHit)
    }
    #expect(origin.requestCount == 1)
  }

  @Test("A stale response is validated, and a 304 yields the stored content")
  func validates() async throws {
    let origin = try LoopbackOrigin { request in
      let fields = [("Cache-Control", "no-cache"), ("ETag", "\"1\"")]
      return request["If-None-Match"] == "\"1\"" ? Reply(304, fields) : Reply(200, fields, "hello")
    }
    for _ in 0..<2 {
      let (response, text) = try await call(origin)
      #expect(response.status.code == 200)
      #expect(text == "hello")
    }
    #expect(origin.requests.map { $0["If-None-Match"] } == [nil, "\"1\""])
  }

  @Test("Redirects are followed, and each hop is stored under its own URL")
  func followsRedirects() async throws {
    let origin = try LoopbackOrigin { request in
      request.path == "/to" ? Reply(200, Self.kept, "end") : Reply(301, Self.kept + [("Location", "/to")], "moved")
    }
    for _ in 0..<2 { #expect(try await call(origin).1 == "end") }
    #expect(origin.requestCount == 2)
    #expect(cache.isCached(origin.url("/to")))
  }

  @Test("Content that can be read once is sent again after 307, because the transport holds it in memory")
  func sendsContentAgain() async throws {
    let origin = try LoopbackOrigin { request in
      request.path == "/to"
        ? Reply(200, [], "\(request.method) \(request.body.count)") : Reply(307, [("Location", "/to")])
    }
    let once = HTTPBody(ChunksOnce([UInt8](repeating: 1, count: 3)), length: .unknown, iterationBehavior: .single)
    #expect(try await call(origin, .post, body: once).1 == "POST 3")
  }

  @Test("A POST invalidates the stored response of its URL")
  func invalidates() async throws {
    let origin = try LoopbackOrigin { request in Reply(200, Self.kept, "\(request.method) \(request.body.count)") }
    for text in ["GET 0", "GET 0"] { #expect(try await call(origin).1 == text) }
    #expect(try await call(origin, .post, body: HTTPBody([1, 2, 3])).1 == "POST 3")
    #expect(try await call(origin).1 == "GET 0")
    #expect(origin.requestCount == 3)
  }

  @Test("A response to one credential is not given to another one")
  func separatesCredentials() async throws {
    let origin = try LoopbackOrigin { request in Reply(200, Self.kept, request["Authorization"] ?? "none") }
    let name = try #require(HTTPField.Name("authorization"))
    for user in ["Bearer a", "Bearer b", "Bearer b"] {
      #expect(try await call(origin, .get, [name: user]).1 == user)
    }
    #expect(try await call(origin).1 == "none")
    #expect(origin.requestCount == 3)
  }

  @Test("Cancelling the task ends the request")
  func cancels() async throws {
    let gate = Gate()
    let origin = try LoopbackOrigin { _ in Reply(200, [], "hello").held(at: gate) }
    let task = Task { try await call(origin).1 }
    #expect(await gate.waitForArrivals())
    task.cancel()
    await #expect(throws: (any Error).self) { try await task.value }
    #expect(await origin.waitForAbandonedReplies())
  }
}

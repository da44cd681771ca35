import AsyncHTTPClient
import CachingStorage
import Foundation
import HTTPCaching
import NIOCore
import NIOHTTP1
import Origin
import Synchronization
import Testing

@Suite("The transport over AsyncHTTPClient")
struct AsyncHTTPClientTransportTests {
  private let directory = TemporaryDirectory()
  private let cachingClient: CachingClient<ResponseCache>
  private let transport = AsyncHTTPClientTransport(client: .overSockets())

  init() throws {
    cachingClient = try directory.openClient()
  }

  private func respond(
    to origin: LoopbackOrigin, _ method: String = "GET", _ fields: HeaderFields = [:], body: RequestBodySource? = nil,
    context: (any Sendable)? = nil
  ) async throws -> ResponseBodyStream {
    let head = RequestHead(method: method, url: origin.url("/a"), fields: fields)
    return try await cachingClient.respond(
      to: CachingClientRequest(head: head, body: body, context: context), over: transport
    )
    .body
  }

  private func text(_ body: ResponseBodyStream) async throws -> String {
    String(decoding: try await body.collect(upTo: 1 << 20), as: UTF8.self)
  }

  @Test("The second request is answered from the store")
  func servesFromStore() async throws {
    let origin = try LoopbackOrigin { _ in Reply(200, [("Cache-Control", "max-age=600")], "hello") }
    for _ in 0..<2 { #expect(try await text(respond(to: origin)) == "hello") }
    #expect(origin.requestCount == 1)
  }

  @Test("The first chunk of a body arrives while the origin holds the rest back")
  func streamsBodies() async throws {
    let gate = Gate()
    let origin = try LoopbackOrigin { _ in
      Reply(200, [("Cache-Control", "max-age=600")], "hello").held(at: gate, afterBodyBytes: 3)
    }
    var chunks = try await respond(to: origin).makeAsyncIterator()
    #expect(try await chunks.next() == Data("hel".utf8))
    gate.open()
    var rest = Data()
    while let chunk = try await chunks.next() { rest += chunk }
    #expect(rest == Data("lo".utf8))
  }

  @Test("Method, fields and content arrive as the caller gave them", arguments: [true, false])
  func sendsRequests(isInContext: Bool) async throws {
    let origin = try LoopbackOrigin { request in
      Reply(200, [], "\(request.method) \(request["X-Name"] ?? "") \(String(decoding: request.body, as: UTF8.self))")
    }
    let body =
      isInContext
      ? try await respond(
        to: origin, "PUT", ["X-Name": "a"], body: .inContext, context: HTTPClientRequest.Body.bytes(Array("b".utf8)))
      : try await respond(to: origin, "PUT", ["X-Name": "a"], body: .bytes(Data("b".utf8)))
    #expect(try await text(body) == "PUT a b")
  }

  @Test("A body that breaks off throws, and is not stored")
  func reportsBrokenBodies() async throws {
    let origin = try LoopbackOrigin { request in
      let reply = Reply(200, [("Cache-Control", "max-age=600")], "hello").chunked(byteCount: 2)
      return request.number == 0 ? reply.cut(.inBody(after: 3)) : reply
    }
    await #expect(throws: (any Error).self) { try await text(respond(to: origin)) }
    #expect(try await text(respond(to: origin)) == "hello")
    #expect(origin.requestCount == 2)
  }

  @Test("A body that ends with its connection is handed on, and is not stored")
  func doesNotStoreUnprovenEnds() async throws {
    let origin = try LoopbackOrigin { _ in Reply(200, [("Cache-Control", "max-age=600")], "hello").untilClose() }
    for _ in 0..<2 { #expect(try await text(respond(to: origin)) == "hello") }
    #expect(origin.requestCount == 2)
  }

  @Test("A body over HTTP/2 has a proven end without a length, and is stored")
  func storesOverHTTP2() async throws {
    let callCount = Atomic<Int>(0)
    let client = HTTPClient { _, _ in
      callCount.add(1, ordering: .relaxed)
      let chunks = AsyncStream<ByteBuffer> { continuation in
        continuation.yield(ByteBuffer(bytes: Array("hello".utf8)))
        continuation.finish()
      }
      return HTTPClientResponse(
        version: .http2, status: .ok, headers: HTTPHeaders([("Cache-Control", "max-age=600")]), body: .stream(chunks))
    }
    let url = try #require(URL(string: "https://example.com/a"))
    for _ in 0..<2 {
      let response = try await cachingClient.respond(
        to: CachingClientRequest(head: RequestHead(url: url)), over: AsyncHTTPClientTransport(client: client))
      #expect(try await text(response.body) == "hello")
    }
    #expect(callCount.load(ordering: .relaxed) == 1)
  }

  @Test("Cancelling the task ends the request")
  func cancels() async throws {
    let gate = Gate()
    let origin = try LoopbackOrigin { _ in Reply(200, [], "hello").held(at: gate) }
    let task = Task { try await text(respond(to: origin)) }
    #expect(await gate.waitForArrivals())
    task.cancel()
    await #expect(throws: CancellationError.self) { try await task.value }
    #expect(await origin.waitForAbandonedReplies())
  }

  @Test("Releasing a body before its end ends the transfer")
  func releasesBodies() async throws {
    let gate = Gate()
    let origin = try LoopbackOrigin { _ in Reply(200, [], "hello").held(at: gate, afterBodyBytes: 3) }
    do {
      var chunks = try await respond(to: origin).makeAsyncIterator()
      #expect(try await chunks.next() == Data("hel".utf8))
    }
    #expect(await origin.waitForAbandonedReplies())
  }

  @Test("The time limit of a request is the limit until its head")
  func passesTimeLimits() async throws {
    let limits = Mutex<[Int64]>([])
    let client = HTTPClient { _, timeout in
      limits.withLock { $0.append(timeout.nanoseconds) }
      throw URLError(.timedOut)
    }
    let url = try #require(URL(string: "https://example.com/a"))
    for limit in [nil, Duration.milliseconds(1500)] {
      await #expect(throws: URLError.self) {
        try await AsyncHTTPClientTransport(client: client).send(
          OutgoingRequest(head: RequestHead(url: url), timeLimit: limit))
      }
    }
    #expect(limits.withLock { $0 } == [60_000_000_000, 1_500_000_000])
  }

  @Test("The settings return redirects as responses and limit the time between two reads")
  func hasSettings() {
    #expect(AsyncHTTPClientTransport.configuration.redirectConfiguration == .disallow)
    #expect(AsyncHTTPClientTransport.configuration.timeout.read == .seconds(60))
  }
}

import CurlTransport
import FoundationEssentials
import HTTPCaching
import LoopbackOrigin
import Synchronization
import Testing

/// Tests of connection reuse and repeated requests.
@Suite("Connections of the curl transport", .timeLimit(.minutes(1)))
struct ConnectionTests {
  @Test("Sequential requests share a connection")
  func reuse() async throws {
    try await withOrigin { _ in
      Reply(200, [], "hello")
    } _: { origin in
      let transport = directTransport()
      for _ in 0..<20 { #expect(await transport.outcome(origin.url()) == .complete(200, "hello")) }
      #expect(origin.connectionCount == 1)
    }
  }

  @Test("Different transports do not share connections")
  func separation() async throws {
    try await withOrigin { _ in
      Reply(200)
    } _: { origin in
      for _ in 0..<3 { _ = try await directTransport().get(origin.url()) }
      #expect(origin.connectionCount == 3)
    }
  }

  private static let complete = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
  private static let poison = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"

  @Test(
    "Bytes that arrive on an idle connection, also a late 408, are not delivered as the next response",
    arguments: [
      (Self.complete, Self.poison), ("HTTP/1.1 304 Not Modified\r\nContent-Length: 44\r\n\r\n", Self.poison),
      (Self.complete, "HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
    ])
  func strayBytes(_ first: String, _ poison: String) async throws {
    let (sent, hold) = (Gate(), Gate())
    let handler: LoopbackOrigin.Handler = { request in
      guard request.number == 0 else { return Reply(200, [], "connection \(request.connection)") }
      // The poison has arrived when the origin reaches the second gate, because the loopback device delivers
      // within the sending call.
      return .raw([.text(first), .hold(sent), .text(poison), .hold(hold)], closes: false)
    }
    try await withOrigin(handler) { origin in
      let transport = directTransport()
      _ = try await transport.get(origin.url()).text()
      sent.open()
      await hold.waitForArrivals()
      #expect(await transport.outcome(origin.url()) == .complete(200, "connection 1"))
      hold.open()
    }
  }

  @Test(
    "An idempotent request is repeated if its reused connection was closed, also within the status line",
    arguments: ["GET", "HEAD", "PUT", "DELETE"], ["", "HTT"])
  func repetition(_ method: String, _ bytes: String) async throws {
    let handler: LoopbackOrigin.Handler = { request in
      // The connection is closed without a reply to the second request.
      request.number == 1 ? .raw(bytes) : Reply(200, [], "hello")
    }
    try await withOrigin(handler) { origin in
      let transport = directTransport()
      _ = try await transport.get(origin.url()).text()
      let outcome = await transport.outcome(origin.url(), method: method)
      #expect(outcome == .complete(200, method == "HEAD" ? "" : "hello"))
      #expect(origin.requests.map(\.connection) == [0, 0, 1])
    }
  }

  @Test(
    "A request that is not idempotent is sent once, on a new connection", arguments: ["POST", "PATCH", "PURGE"],
    ["", "HTT"])
  func noRepetition(_ method: String, _ bytes: String) async throws {
    let handler: LoopbackOrigin.Handler = { request in request.method == "GET" ? Reply(200) : .raw(bytes) }
    try await withOrigin(handler) { origin in
      let transport = directTransport()
      _ = try await transport.get(origin.url())
      #expect(await transport.outcome(origin.url(), method: method) == .failure(.badServerResponse))
      #expect(origin.requests.map(\.method) == ["GET", method])
      #expect(origin.requests.map(\.connection) == [0, 1])
    }
  }

  /// Row 120.
  @Test(
    "A QUERY is repeated once, with its content, if its reused connection was closed",
    arguments: [0, 5, 1 << 20], ["", "HTT"])
  func queryRepetition(_ byteCount: Int, _ bytes: String) async throws {
    let handler: LoopbackOrigin.Handler = { request in
      // The connection is closed without a reply to all but the first request and the third.
      [0, 2].contains(request.number) ? Reply(200, [], "hello") : .raw(bytes)
    }
    try await withOrigin(handler) { origin in
      let transport = directTransport()
      let content = Data(repeating: 7, count: byteCount)
      _ = try await transport.get(origin.url()).text()
      #expect(
        await transport.outcome(origin.url(), method: "QUERY", ["Content-Type": "a/b"], content: content)
          == .complete(200, "hello"))
      // Now the repetition gets no reply either.
      #expect(
        await transport.outcome(origin.url(), method: "QUERY", ["Content-Type": "a/b"], content: content)
          == .failure(.badServerResponse))
      #expect(origin.requests.map(\.connection) == [0, 0, 1, 1, 2])
      for request in origin.requests.dropFirst() {
        #expect(request.method == "QUERY" && request.body == content && request["Content-Type"] == "a/b")
        #expect(request["Content-Length"] == "\(byteCount)")
      }
    }
  }

  @Test("A request on a new connection is sent once")
  func noRepetitionOnNewConnection() async throws {
    try await withOrigin { _ in
      .nothing
    } _: { origin in
      #expect(await directTransport().outcome(origin.url()) == .failure(.badServerResponse))
      #expect(origin.requestCount == 1)
    }
  }

  @Test("A request is not repeated after its response has begun")
  func noRepetitionAfterHead() async throws {
    let handler: LoopbackOrigin.Handler = { request in
      request.number == 0 ? Reply(200) : .raw([.text("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel"), .reset])
    }
    try await withOrigin(handler) { origin in
      let transport = directTransport()
      _ = try await transport.get(origin.url())
      #expect(await transport.outcome(origin.url()) == .failure(.connectionLost))
      #expect(origin.requestCount == 2)
    }
  }

  @Test(
    "A connection with ambiguous framing is not reused",
    arguments: [
      "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
      "HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\nhello",
      "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello, world", "HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\n",
      "HTTP/1.1 204 No\r\nTransfer-Encoding: chunked\r\n\r\n",
      "HTTP/1.1 304 Not\r\nTransfer-Encoding: chunked\r\n\r\n",
    ])
  func oddFraming(_ bytes: String) async throws {
    let handler: LoopbackOrigin.Handler = { $0.number == 0 ? .raw(bytes, closes: false) : Reply(200) }
    try await withOrigin(handler) { origin in
      let transport = directTransport()
      _ = try await transport.get(origin.url()).text()
      _ = try await transport.get(origin.url())
      #expect(origin.requests.map(\.connection) == [0, 1])
    }
  }

  @Test("Concurrent callers get their own responses")
  func manyCallers() async throws {
    let handler: LoopbackOrigin.Handler = { Reply(200, [], String(repeating: $0.target, count: 200)) }
    try await withOrigin(handler) { origin in
      let transport = directTransport { $0.maximumConnectionsPerOrigin = 16 }
      await withTaskGroup(of: Void.self) { group in
        for caller in 0..<32 {
          group.addTask {
            for number in 0..<20 {
              let target = "/\(caller)-\(number)"
              let outcome = await transport.outcome(origin.url(target))
              #expect(outcome == .complete(200, String(repeating: target, count: 200)))
            }
          }
        }
      }
      #expect(origin.connectionCount <= 16)
    }
  }
}

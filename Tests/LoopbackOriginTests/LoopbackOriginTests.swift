import Foundation
import FoundationNetworking
import LoopbackOrigin
import Synchronization
import Testing

@Suite("Loopback origin")
struct LoopbackOriginTests {
  @Test("Requests are recorded in order with their fields and bodies")
  func recordsRequests() throws {
    let origin = try LoopbackOrigin { _ in Reply() }
    defer { origin.stop() }
    let client = RawClient(origin)
    client.send("GET /a?b=c HTTP/1.1\r\nHost: x\r\nX-Two: 1 \r\nx-two:\t2\r\n\r\n")
    client.send("POST /p HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello")
    client.send("PUT /q HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nT: 1\r\n\r\n")
    client.send("DELETE /r HTTP/1.1\r\nConnection: close\r\n\r\n")
    _ = client.readToEnd()
    let requests = origin.requests
    #expect(requests.map(\.method) == ["GET", "POST", "PUT", "DELETE"])
    #expect(requests.map(\.target) == ["/a?b=c", "/p", "/q", "/r"])
    #expect(requests.map { String(decoding: $0.body, as: UTF8.self) } == ["", "hello", "hello", ""])
    #expect(requests.map(\.number) == [0, 1, 2, 3])
    #expect(requests.allSatisfy { $0.connection == 0 && $0.version == "HTTP/1.1" })
    try #require(requests.count == 4)
    #expect(requests[0].headerLines == ["Host: x", "X-Two: 1 ", "x-two:\t2"])
    #expect(requests[0]["X-TWO"] == "1, 2")
    #expect(requests[0].values(of: "x-two") == ["1", "2"])
    #expect(requests[0]["absent"] == nil)
    #expect(requests[0].path == "/a")
    #expect(requests[0].query == "b=c")
    #expect(requests[1].query == nil)
  }

  @Test("A request with Expect: 100-continue gets a 100 response before its body is read")
  func sendsContinue() throws {
    let origin = try LoopbackOrigin { request in Reply(200, [], body: request.body).closing() }
    defer { origin.stop() }
    let client = RawClient(origin)
    client.send("PUT / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    client.expect("HTTP/1.1 100 Continue\r\n\r\n")
    client.send("hi")
    #expect(client.readToEnd().text.hasSuffix("\r\n\r\nhi"))
  }

  @Test(
    "Malformed requests get a 400 and are not recorded",
    arguments: [
      "nonsense\r\n\r\n", "GET /\r\n\r\n", "GET / SMTP/1\r\n\r\n", "GET / HTTP/1.1\r\nno colon\r\n\r\n",
      "GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ])
  func refusesMalformedRequests(_ text: String) throws {
    let origin = try LoopbackOrigin { _ in Reply() }
    defer { origin.stop() }
    let client = RawClient(origin)
    client.send(text)
    #expect(client.readToEnd().text.hasPrefix("HTTP/1.1 400 "))
    #expect(origin.requestCount == 0)
  }

  @Test("A request target can have 100,000 characters")
  func acceptsLongTargets() throws {
    let origin = try LoopbackOrigin { request in Reply(200, [], String(request.target.utf8.count)) }
    defer { origin.stop() }
    let target = "/" + String(repeating: "x", count: 99_999)
    #expect(RawClient.exchange(origin, "GET", target).hasSuffix("\r\n\r\n100000"))
  }

  @Test("The connection is closed after an HTTP/1.0 request")
  func closesAfterHTTP10() throws {
    let origin = try LoopbackOrigin { _ in Reply(200, [], "hi") }
    defer { origin.stop() }
    let client = RawClient(origin)
    client.send("GET / HTTP/1.0\r\n\r\n")
    #expect(client.readToEnd().text.hasSuffix("hi"))
  }

  @Test("Scripted replies are sent in order, and a 500 after the last one")
  func sendsScriptedReplies() throws {
    let origin = try LoopbackOrigin(replies: [Reply(200, [], "1"), Reply(404)])
    defer { origin.stop() }
    #expect(RawClient.exchange(origin).hasSuffix("\r\n\r\n1"))
    #expect(RawClient.exchange(origin).hasPrefix("HTTP/1.1 404"))
    #expect(RawClient.exchange(origin).hasPrefix("HTTP/1.1 500"))
    origin.answer { _ in Reply(410) }
    #expect(RawClient.exchange(origin).hasPrefix("HTTP/1.1 410"))
  }

  @Test("Stopping ends held replies and idle connections, and frees the port")
  func stopEndsConnections() async throws {
    let gate = Gate()
    let origin = try LoopbackOrigin { _ in Reply(200, [], "hello").held(at: gate, afterBodyBytes: 2) }
    let clients = (0..<8).map { _ in RawClient(origin) }
    for client in clients { client.send("GET / HTTP/1.1\r\n\r\n") }
    #expect(await gate.waitForArrivals(count: 8))
    let idle = RawClient(origin)
    #expect(await origin.waitForConnections(count: 9))
    async let never = origin.waitForRequests(count: 9)
    origin.stop()
    #expect(await !never)
    for client in clients { #expect(client.readToEnd().text.hasSuffix("\r\n\r\nhe")) }
    #expect(idle.readToEnd().text.isEmpty)
    #expect(origin.abandonedReplyCount == 0)
    origin.stop()

    let next = try LoopbackOrigin(port: origin.port) { _ in Reply(200, [], "next") }
    defer { next.stop() }
    #expect(RawClient.exchange(next).hasSuffix("next"))
    #expect(throws: OriginError.self) { try LoopbackOrigin(port: next.port) { _ in Reply() } }
  }

  @Test("Cancelling a task ends its wait")
  func cancellationEndsWaits() async throws {
    let origin = try LoopbackOrigin { _ in Reply() }
    defer { origin.stop() }
    let gate = Gate()
    let waits = [
      Task { await origin.waitForRequests(count: 1) }, Task { await gate.waitForArrivals() },
      Task { await gate.waitUntilOpen() },
    ]
    for wait in waits { wait.cancel() }
    for wait in waits { #expect(await !wait.value) }
    gate.open()
    #expect(await gate.waitUntilOpen())
  }

  @Test("Stopping an origin in its own handler traps")
  func stopInHandlerTraps() async {
    await #expect(processExitsWith: .failure) {
      let origin = Mutex<LoopbackOrigin?>(nil)
      let made = try LoopbackOrigin { _ in
        origin.withLock { $0?.stop() }
        return Reply()
      }
      origin.withLock { $0 = made }
      _ = RawClient.exchange(made)
    }
  }

  @Test("An invalid request target traps")
  func invalidTargetTraps() async {
    await #expect(processExitsWith: .failure) {
      let origin = try LoopbackOrigin { _ in Reply() }
      _ = origin.url("no slash")
    }
  }

  @Test("URLSession gets complete replies over one connection")
  func servesURLSession() async throws {
    let origin = try LoopbackOrigin { request in
      Reply(201, [("X-Method", request.method)], body: request.body).chunked(byteCount: 1000)
    }
    defer { origin.stop() }
    let session = URLSession(configuration: .ephemeral)
    defer { session.invalidateAndCancel() }
    let body = Data((0..<2_000_000).map { UInt8(truncatingIfNeeded: $0 &* 7) })
    for method in ["GET", "POST", "PUT", "DELETE"] {
      var request = URLRequest(url: origin.url("/a?b"))
      request.httpMethod = method
      if method != "GET" { request.httpBody = body }
      let (data, response) = try await session.data(for: request)
      let head = try #require(response as? HTTPURLResponse)
      #expect(head.statusCode == 201)
      #expect(head.value(forHTTPHeaderField: "X-Method") == method)
      #expect(data == (method == "GET" ? Data() : body))
    }
    #expect(Set(origin.requests.map(\.connection)) == [0], "the session keeps its connection")
  }

  @Test("The origin serves 300 connections at once")
  func servesManyConnections() async throws {
    let gate = Gate()
    let origin = try LoopbackOrigin { request in Reply(200, [], request.target).held(at: gate) }
    defer { origin.stop() }
    let clients = (0..<300).map { _ in RawClient(origin) }
    for (number, client) in clients.enumerated() { client.send("GET /\(number) HTTP/1.1\r\nConnection: close\r\n\r\n") }
    #expect(await gate.waitForArrivals(count: 300))
    gate.open()
    for (number, client) in clients.enumerated() {
      #expect(client.readToEnd().text.hasSuffix("\r\n\r\n/\(number)"))
    }
    #expect(Set(origin.requests.map(\.connection)).count == 300)
  }
}

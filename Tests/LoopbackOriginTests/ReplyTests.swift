import Foundation
import Glibc
import LoopbackOrigin
import Testing

/// Tests of the bytes that each kind of reply sends.
@Suite("Replies")
struct ReplyTests {
  static let kinds: [(name: String, reply: Reply, bytes: String)] = [
    (
      "plain", Reply(200, [("A", "1"), ("B", "2")], "hi"),
      "HTTP/1.1 200 OK\r\nA: 1\r\nB: 2\r\nContent-Length: 2\r\n\r\nhi"
    ),
    ("empty", Reply(404), "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"),
    ("304 has no body", Reply(304, [("ETag", "\"1\"")], "body"), "HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\n\r\n"),
    (
      "own framing field", Reply(200, [("content-length", "9")], "hi"), "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi"
    ),
    ("too long", Reply(200, [], "hi").declaring(contentLength: 5), "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhi"),
    ("too short", Reply(200, [], "hi").declaring(contentLength: 1), "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nhi"),
    ("until close", Reply(200, [], "hi").untilClose(), "HTTP/1.1 200 OK\r\n\r\nhi"),
    (
      "chunked", Reply(200, [], "hello").chunked(byteCount: 3),
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"
    ),
    (
      "trailers", Reply(200, [], "hello").chunked(trailers: [("ETag", "\"1\""), ("X", "y")]),
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nETag: \"1\"\r\nX: y\r\n\r\n"
    ),
    (
      "broken chunk", Reply(200, [], "hello").brokenChunk(after: 3),
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\nzz\r\n"
    ),
    ("cut before the head", Reply(200, [], "hello").cut(.beforeHead), ""),
    ("cut in the head", Reply(200, [], "hello").cut(.inHead(after: 10)), "HTTP/1.1 2"),
    (
      "cut in the body", Reply(200, [], "hello").cut(.inBody(after: 2)),
      "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe"
    ),
    (
      "cut in a chunked body", Reply(200, [], "hello").chunked(byteCount: 2).cut(.inBody(after: 3)),
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n1\r\nl\r\n"
    ),
    (
      "interim", Reply(200, [], "hi").preceded(by: 100).preceded(by: 103, [("Link", "</a>")]),
      "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
        + "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
    ),
    ("raw", .raw("no HTTP\n\0at all"), "no HTTP\n\0at all"),
    ("nothing", .nothing, ""),
    (
      "closing", Reply(200, [], "hi").closing(), "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi"
    ),
  ]

  @Test("Each kind of reply sends its exact bytes", arguments: kinds.indices)
  func sendsExactly(_ index: Int) throws {
    let kind = Self.kinds[index]
    let origin = try LoopbackOrigin { _ in kind.reply }
    defer { origin.stop() }
    #expect(RawClient.exchange(origin) == kind.bytes, "\(kind.name)")
  }

  @Test("The reply to HEAD has no body")
  func omitsBodyForHEAD() throws {
    let origin = try LoopbackOrigin { _ in Reply(200, [("ETag", "\"1\"")], "hello") }
    defer { origin.stop() }
    #expect(RawClient.exchange(origin, "HEAD") == "HTTP/1.1 200 OK\r\nETag: \"1\"\r\nContent-Length: 5\r\n\r\n")
  }

  @Test("A reset part resets the connection")
  func resets() throws {
    let origin = try LoopbackOrigin { _ in Reply(200, parts: [.text("st"), .reset], framing: .declaredLength(9)) }
    defer { origin.stop() }
    let client = RawClient(origin)
    client.send("GET / HTTP/1.1\r\n\r\n")
    #expect(client.readToEnd().failure == ECONNRESET)
  }

  @Test("A reply can be held before its head and within its body")
  func holdsReplies() async throws {
    let (head, body) = (Gate(), Gate())
    let origin = try LoopbackOrigin { _ in
      Reply(200, [], "hello").preceded(by: 103).held(at: head).held(at: body, afterBodyBytes: 2)
    }
    defer { origin.stop() }
    let client = RawClient(origin)
    client.send("GET / HTTP/1.1\r\n\r\n")
    client.expect("HTTP/1.1 103 Early Hints\r\n\r\n")
    #expect(await head.waitForArrivals())
    #expect(body.arrivals == 0)
    head.open()
    client.expect("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe")
    #expect(await body.waitForArrivals())
    body.open()
    client.expect("llo")
  }

  @Test("An endless body ends when its client disconnects")
  func endsEndlessBody() async throws {
    let origin = try LoopbackOrigin { _ in .endless(200, [("ETag", "\"1\"")]) }
    defer { origin.stop() }
    let client = RawClient(origin)
    client.send("GET / HTTP/1.1\r\n\r\n")
    #expect(client.read(1 << 20).utf8.count == 1 << 20)
    client.leave()
    #expect(await origin.waitForAbandonedReplies())
  }

  @Test("A held reply is abandoned when its client disconnects")
  func abandonsHeldReply() async throws {
    let gate = Gate()
    let origin = try LoopbackOrigin { _ in Reply().held(at: gate) }
    defer { origin.stop() }
    let client = RawClient(origin)
    client.send("GET / HTTP/1.1\r\n\r\n")
    #expect(await gate.waitForArrivals())
    #expect(origin.abandonedReplyCount == 0)
    client.leave()
    #expect(await origin.waitForAbandonedReplies())
  }
}

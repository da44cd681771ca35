import CachingClient
import CachingStorage
import CurlTransport
import FoundationEssentials
import HTTPCaching
import LoopbackOrigin
import Testing

/// Tests of the outcome of well-formed and malformed responses, given byte by byte.
@Suite("Responses of the curl transport", .timeLimit(.minutes(1)))
struct ResponseTests {
  struct Case: Sendable, CustomTestStringConvertible {
    let name: String
    let bytes: String
    let outcome: Outcome
    var method = "GET"
    /// Whether the server closes the connection after the bytes.
    var closes = true

    init(_ name: String, _ bytes: String, _ outcome: Outcome, method: String = "GET", closes: Bool = true) {
      self.name = name
      self.bytes = bytes
      self.outcome = outcome
      self.method = method
      self.closes = closes
    }

    var testDescription: String { name }
  }

  private static let hello = Outcome.complete(200, "hello")
  private static let bad = Outcome.failure(.badServerResponse)
  private static let lost = Outcome.failure(.connectionLost)

  /// Returns a response with the status 200.
  private static func ok(_ fields: String, _ content: String = "hello") -> String {
    "HTTP/1.1 200 OK\r\n\(fields)\r\n\r\n\(content)"
  }

  static let lengths = [
    Case("a body of the declared length", ok("Content-Length: 5"), hello, closes: false),
    Case("a body that ends early", ok("Content-Length: 10"), lost),
    Case("a body that exceeds its length", ok("Content-Length: 5", "hello, world"), hello),
    Case("the same length twice", ok("Content-Length: 5\r\nContent-Length: 5"), hello),
    Case("the same length twice as a list", ok("Content-Length: 5, 5"), hello),
    Case("two different lengths", ok("Content-Length: 5\r\nContent-Length: 6"), bad),
    Case("two different lengths as a list", ok("Content-Length: 5, 6"), bad),
    Case("a negative length", ok("Content-Length: -5"), bad),
    Case("a length with a sign", ok("Content-Length: +5"), bad),
    Case("a length of letters", ok("Content-Length: five"), bad),
    Case("a length followed by a letter", ok("Content-Length: 5x"), bad),
    Case("an empty length", ok("Content-Length: "), bad),
    Case("a length beyond 64 bits", ok("Content-Length: 99999999999999999999999"), .unproven(200, "hello")),
    Case("two lengths, one beyond 64 bits", ok("Content-Length: 5\r\nContent-Length: 99999999999999999999999"), bad),
    Case("a blank before the colon of a length", ok("Content-Length : 5"), bad),
    Case(
      "a length and chunks", ok("Content-Length: 3\r\nTransfer-Encoding: chunked", "5\r\nhello\r\n0\r\n\r\n"),
      .unproven(200, "hello")),
    Case(
      "chunks in HTTP/1.0", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
      .unproven(200, "hello")),
    Case("no length", "HTTP/1.1 200 OK\r\n\r\nhello", .unproven(200, "hello")),
    Case("no length, with Connection: close", ok("Connection: close"), .unproven(200, "hello")),
    Case("HTTP/1.0 with a length", "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", hello),
    Case("HTTP/1.0 without a length", "HTTP/1.0 200 OK\r\n\r\nhello", .unproven(200, "hello")),
    Case("an empty body", ok("Content-Length: 0", ""), .complete(200, ""), closes: false),
  ]

  static let chunks = [
    Case("chunks", ok("Transfer-Encoding: chunked", "3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"), hello, closes: false),
    Case("a chunk extension", ok("Transfer-Encoding: chunked", "5;a=b\r\nhello\r\n0\r\n\r\n"), hello, closes: false),
    Case("no chunk but the last", ok("Transfer-Encoding: chunked", "0\r\n\r\n"), .complete(200, ""), closes: false),
    Case("chunks cut between two chunks", ok("Transfer-Encoding: chunked", "5\r\nhello\r\n"), lost),
    Case("chunks cut within a chunk", ok("Transfer-Encoding: chunked", "10\r\nhello"), lost),
    Case("chunks cut in the last chunk", ok("Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\n"), lost),
    Case("trailers of 250 KB", ok("Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\n\(many(250, 1_000))\r\n"), hello),
    Case("trailers of 310 KB", ok("Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\n\(many(310, 1_000))\r\n"), bad),
    Case("chunks cut in a trailer", ok("Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\nX-T: 1"), lost),
    Case("a chunk size that is not a number", ok("Transfer-Encoding: chunked", "zz\r\nhello\r\n"), lost),
    Case(
      "a chunk size beyond 64 bits", ok("Transfer-Encoding: chunked", "fffffffffffffffffff\r\nhello\r\n"), lost),
    Case("a chunk without its line end", ok("Transfer-Encoding: chunked", "5\r\nhelloXX0\r\n\r\n"), lost),
  ]

  static let encodings = [
    Case("an unknown Transfer-Encoding", ok("Transfer-Encoding: rot13", "uryyb"), bad),
    Case("an unknown coding before chunked", ok("Transfer-Encoding: rot13, chunked", "5\r\nuryyb\r\n0\r\n\r\n"), bad),
    Case("an unknown coding after chunked", ok("Transfer-Encoding: chunked, rot13", "5\r\nuryyb\r\n0\r\n\r\n"), bad),
    Case("chunked twice", ok("Transfer-Encoding: chunked, chunked", "5\r\nhello\r\n0\r\n\r\n"), bad),
    Case("chunked on two lines", ok("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "0\r\n\r\n"), bad),
    Case("identity", ok("Transfer-Encoding: identity\r\nContent-Length: 5"), bad),
    Case("a compressed transfer", ok("Transfer-Encoding: gzip, chunked", "5\r\nhello\r\n0\r\n\r\n"), bad),
    Case("an unknown Content-Encoding", ok("Content-Encoding: made-up\r\nContent-Length: 5"), hello, closes: false),
    Case("a Content-Encoding of identity", ok("Content-Encoding: identity\r\nContent-Length: 5"), hello, closes: false),
    Case(
      "more codings than any server needs",
      ok("Content-Encoding: gzip, gzip, gzip, gzip, gzip, gzip\r\nContent-Length: 5"), hello, closes: false),
  ]

  static let statuses = [
    Case("204", "HTTP/1.1 204 No Content\r\n\r\n", .complete(204, ""), closes: false),
    Case("204 with a length", "HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\n", .complete(204, ""), closes: false),
    Case("204 with a body", "HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\nhello", .complete(204, "")),
    Case("204 with chunks", "HTTP/1.1 204 No\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", .complete(204, "")),
    Case("205 with a body", "HTTP/1.1 205 Reset\r\nContent-Length: 5\r\n\r\nhello", .complete(205, "hello")),
    Case("304 with a length", "HTTP/1.1 304 Not\r\nContent-Length: 5\r\n\r\n", .complete(304, ""), closes: false),
    Case("304 with a body", "HTTP/1.1 304 Not\r\nContent-Length: 5\r\n\r\nhello", .complete(304, "")),
    Case("600", "HTTP/1.1 600 Odd\r\nContent-Length: 5\r\n\r\nhello", .complete(600, "hello")),
    Case("999", "HTTP/1.1 999 Odd\r\nContent-Length: 5\r\n\r\nhello", .complete(999, "hello")),
    Case("1000", "HTTP/1.1 1000 Odd\r\nContent-Length: 5\r\n\r\nhello", bad),
    Case("20", "HTTP/1.1 20 Odd\r\nContent-Length: 5\r\n\r\nhello", bad),
    Case("099", "HTTP/1.1 099 Odd\r\nContent-Length: 5\r\n\r\nhello", bad),
    Case("no reason phrase", "HTTP/1.1 200\r\nContent-Length: 5\r\n\r\nhello", hello),
    Case("a reason phrase in UTF-8", "HTTP/1.1 200 schön\r\nContent-Length: 5\r\n\r\nhello", hello),
    Case(
      "a redirect, with its body", "HTTP/1.1 302 Found\r\nLocation: /a\r\nContent-Length: 5\r\n\r\nmoved",
      .complete(302, "moved")),
    Case(
      "401, without authentication",
      "HTTP/1.1 401 Un\r\nWWW-Authenticate: Basic realm=a\r\nContent-Length: 2\r\n\r\nno", .complete(401, "no")),
    Case("HEAD with a length", ok("Content-Length: 5", ""), .complete(200, ""), method: "HEAD", closes: false),
    Case("HEAD with chunks", ok("Transfer-Encoding: chunked", ""), .complete(200, ""), method: "HEAD", closes: false),
    Case("HEAD without framing", "HTTP/1.1 200 OK\r\n\r\n", .complete(200, ""), method: "HEAD", closes: false),
  ]

  static let interim = [
    Case("100", "HTTP/1.1 100 Continue\r\n\r\n" + ok("Content-Length: 5"), hello),
    Case("103 with fields", "HTTP/1.1 103 Early\r\nETag: \"1\"\r\n\r\n" + ok("Content-Length: 5"), hello),
    Case("199 with a length", "HTTP/1.1 199 Odd\r\nContent-Length: 5\r\n\r\n" + ok("Content-Length: 5"), hello),
    Case("50 interim responses", repeated(103, 50) + ok("Content-Length: 5"), hello),
    Case("101 interim responses", repeated(103, 101) + ok("Content-Length: 5"), bad),
    Case(
      "a switch of protocols", "HTTP/1.1 101 Switching\r\nUpgrade: a\r\nConnection: upgrade\r\n\r\nhello",
      .unproven(101, "hello")),
  ]

  private static func repeated(_ status: Int, _ count: Int) -> String {
    String(repeating: "HTTP/1.1 \(status) Early Hints\r\nLink: </a>\r\n\r\n", count: count)
  }

  static let heads = [
    Case("a folded field", ok("X-A: one\r\n two\r\n\tthree\r\nContent-Length: 5"), hello),
    Case("a folded first line", "HTTP/1.1 200 OK\r\n folded\r\nContent-Length: 5\r\n\r\nhello", bad),
    Case("a folded length", ok("Content-Length: \r\n 5"), bad),
    Case("a length with a folded second one", ok("Content-Length: 5\r\n , 5"), bad),
    Case("a folded coding", ok("Transfer-Encoding:\r\n chunked", "5\r\nhello\r\n0\r\n\r\n"), bad),
    Case("a folded coding, cut", ok("Transfer-Encoding: \r\n\tchunked", "50\r\nHEL"), bad),
    Case("NUL in a value", ok("X-A: a\0b\r\nContent-Length: 5"), bad),
    Case("NUL in a name", ok("X\0A: b\r\nContent-Length: 5"), bad),
    Case("CR in a value", ok("X-A: a\rb\r\nContent-Length: 5"), bad),
    Case("CR in a folded line", ok("X-A: a\r\n b\rc\r\nContent-Length: 5"), bad),
    Case("a line without a colon", ok("no colon here\r\nContent-Length: 5"), bad),
    Case("a blank before the colon", ok("X-A : b\r\nContent-Length: 5"), bad),
    Case("an empty field name", ok(": b\r\nContent-Length: 5"), bad),
    Case("lines that end with LF", "HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", hello),
    Case("HTTP/1.2", "HTTP/1.2 200 OK\r\nContent-Length: 5\r\n\r\nhello", bad),
    Case("HTTP/2 as text", "HTTP/2 200 OK\r\nContent-Length: 5\r\n\r\nhello", bad),
    Case("HTTP/0.9", "hello, this is no HTTP\n", bad),
    Case("another protocol", "SSH-2.0-OpenSSH_9.2\r\n", bad),
    Case("the status line of ICY", "ICY 200 OK\r\nContent-Length: 5\r\n\r\nhello", bad),
    Case("an empty line first", "\r\n" + ok("Content-Length: 5"), bad),
    Case("a field of 99 KB", ok("X-A: \(String(repeating: "a", count: 99 << 10))\r\nContent-Length: 5"), hello),
    Case("a field of 101 KB", ok("X-A: \(String(repeating: "a", count: 101 << 10))\r\nContent-Length: 5"), bad),
    // libcurl 8.14 takes no more.
    Case("5,000 fields", ok(many(4_999, 1) + "Content-Length: 5"), hello),
    Case("a head of 250 KB", ok(many(250, 1_000) + "Content-Length: 5"), hello),
    Case("a head of 310 KB", ok(many(310, 1_000) + "Content-Length: 5"), lost),
    Case("a head cut within a line", "HTTP/1.1 200 OK\r\nContent-Le", bad),
    Case("a head cut between lines", "HTTP/1.1 200 OK\r\nX-A: 1\r\n", bad),
    Case("a head cut before its empty line", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n", lost),
    Case("an empty reply", "", bad),
  ]

  private static func many(_ count: Int, _ byteCount: Int) -> String {
    let value = String(repeating: "a", count: byteCount)
    return (0..<count).map { "X-\($0): \(value)\r\n" }.joined()
  }

  static let cases = lengths + chunks + encodings + statuses + interim + heads

  @Test("Each response has the expected outcome", arguments: cases)
  func outcome(_ example: Case) async throws {
    try await withOrigin { _ in
      .raw(example.bytes, closes: example.closes)
    } _: { origin in
      #expect(await directTransport().outcome(origin.url(), method: example.method) == example.outcome)
    }
  }

  @Test("Of these responses, a cache stores only complete ones with a status that can be stored")
  func storing() async throws {
    let directory = FileManager.default.temporaryDirectory.appending(path: "responses-\(UUID().uuidString)")
    // A leftover directory does no harm.
    defer { try? FileManager.default.removeItem(at: directory) }
    let cache = try ResponseCache(directory: directory.path(), memoryCapacity: 0, diskCapacity: 64 << 20)
    let client = CachingClient(cache)
    try await withOrigin { request in
      let example = Int(request.path.dropFirst()).map { Self.cases[$0] }
      return example.map { .raw($0.bytes, closes: $0.closes) } ?? Reply(404)
    } _: { origin in
      for (index, example) in Self.cases.enumerated() {
        let url = origin.url("/\(index)")
        let request = CachingClientRequest(head: RequestHead(method: example.method, url: url))
        if let response = try? await client.respond(to: request, over: directTransport()) {
          // Errors are thrown here, too.
          _ = try? await response.body.collect(upTo: .max)
        }
        let lookedUp = CachingClientRequest(head: RequestHead(url: url))
        let isStored = client.storage.lookup(lookedUp, at: try #require(lookedUp.key)) != nil
        #expect(isStored == Self.isStorable(example), "\(example.name)")
      }
    }
    #expect(cache.flush())
    #expect(cache.tiers.store?.checkInvariants() == [])
  }

  /// Whether a private cache stores a response, which has no cache directives (RFC 9110 section 15.1).
  private static func isStorable(_ example: Case) -> Bool {
    guard case .complete(let status, _) = example.outcome else { return false }
    let lineCount = example.bytes.utf8.count { $0 == UInt8(ascii: "\n") }
    return example.method == "GET" && (status == 200 || status == 204) && lineCount <= HeaderFields.maximumStoredCount
  }

  @Test(
    "A reset connection is an error",
    arguments: [
      "", "HTTP/1.1 200 OK\r\nContent-Le", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
      "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel",
    ])
  func reset(_ bytes: String) async throws {
    try await withOrigin { _ in
      .raw([.text(bytes), .reset])
    } _: { origin in
      #expect(await directTransport().outcome(origin.url()) == .failure(.connectionLost))
    }
  }

  @Test("An endless head and endless interim responses are errors")
  func endlessHead() async throws {
    for bytes in ["X-A: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n", "\r\nHTTP/1.1 103 Early\r\nLink: </a>\r\n"] {
      try await withOrigin { _ in
        .raw([.text("HTTP/1.1 103 Early\r\n"), .endless(Data(bytes.utf8))])
      } _: { origin in
        let outcome = await directTransport().outcome(origin.url())
        #expect([.failure(.connectionLost), .failure(.badServerResponse)].contains(outcome))
        #expect(await origin.waitForAbandonedReplies())
      }
    }
  }

  @Test("Fields are delivered in their order, spelling and number, and trailers are not delivered")
  func fields() async throws {
    let reply = Reply(
      200,
      [
        ("Set-Cookie", "a=1"), ("Vary", "A"), ("set-cookie", "b=2"), ("vary", "B"), ("X-Empty", ""),
        ("X-Blanks", "  v  "), ("Trailer", "ETag"),
      ], "hello"
    ).chunked(trailers: [("ETag", "\"late\"")])
    try await withOrigin { _ in
      reply
    } _: { origin in
      let response = try await directTransport().get(origin.url())
      #expect(try await response.text() == "hello")
      let expected = [
        ("Set-Cookie", "a=1"), ("Vary", "A"), ("set-cookie", "b=2"), ("vary", "B"), ("X-Empty", ""), ("X-Blanks", "v"),
        ("Trailer", "ETag"), ("Transfer-Encoding", "chunked"),
      ]
      #expect(response.head.fields.map { "\($0.name): \($0.value)" } == expected.map { "\($0.0): \($0.1)" })
    }
  }

  @Test("A response that begins with a folded line does no harm to other requests of the transport")
  func foldedFirstLine() async throws {
    try await withOrigin { request in
      request.path == "/folded"
        ? .raw("HTTP/1.1 200 OK\r\n Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", closes: true)
        : Reply(200, [], "hello")
    } _: { origin in
      let transport = directTransport()
      for _ in 0..<20 {
        for _ in 0..<3 { #expect(await transport.outcome(origin.url("/")) == .complete(200, "hello")) }
        #expect(await transport.outcome(origin.url("/folded")) == .failure(.badServerResponse))
      }
    }
  }

  @Test("Field values are decoded as UTF-8, others keep their bytes, and folded values are unfolded")
  func values() async throws {
    let head = Data("HTTP/1.1 200 OK\r\nX-A: ".utf8) + Data([0xe4, 0xf6]) + Data("\r\nX-B: ä\r\n".utf8)
    let rest = Data("X-C: one\r\n \t two\r\nContent-Length: 5\r\n\r\nhello".utf8)
    try await withOrigin { _ in
      .raw([.bytes(head + rest)])
    } _: { origin in
      let response = try await directTransport().get(origin.url())
      let value = try #require(response.head.fields["X-A"])
      #expect(FieldText.bytes(of: value) == [0xe4, 0xf6] && FieldText.displayed(value) == "äö")
      #expect(response.head.fields["X-B"] == "ä")
      #expect(response.head.fields["X-C"] == "one two")
    }
  }

  @Test("The head of a response is delivered before a slow body ends")
  func slowEnd() async throws {
    let gate = Gate()
    try await withOrigin { _ in
      Reply(200, [], "hello").held(at: gate, afterBodyBytes: 2)
    } _: { origin in
      let response = try await directTransport().get(origin.url())
      #expect(response.body.bytes == nil)
      gate.open()
      #expect(try await response.text() == "hello")
    }
  }

  @Test("A small response is delivered with its complete body")
  func wholeResponse() async throws {
    try await withOrigin { _ in
      Reply(200, [], String(repeating: "a", count: 11_000))
    } _: { origin in
      let response = try await directTransport().get(origin.url())
      #expect(response.body.bytes?.count == 11_000)
    }
  }
}

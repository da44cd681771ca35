import CachingClient
import CurlTransport
import FoundationEssentials
import HTTPCaching
import LoopbackOrigin
import Testing

/// Tests of the requests that are sent and those that are refused.
@Suite("Requests of the curl transport", .timeLimit(.minutes(1)))
struct RequestTests {
  @Test("Fields are sent in their order, spelling and number, without additions")
  func fields() async throws {
    try await withOrigin { _ in
      Reply(200)
    } _: { origin in
      let fields: HeaderFields = [
        "x-B": "1", "If-None-Match": "\"e\"", "A-A": "2", "x-B": "3", "Cookie": "a=1", "Cookie": "b=2", "X-Empty": "",
        "X-Blank": " ", "X-Text": "café", "Accept-Encoding": "br", "X-Semicolon": ";", "User-Agent": "me",
      ]
      let outcome = await directTransport().outcome(origin.url("/a?b=c"), fields)
      #expect(outcome == .complete(200, ""))
      let request = try #require(origin.requests.first)
      #expect(request.target == "/a?b=c")
      #expect(
        request.headerLines == [
          "Host: 127.0.0.1:\(origin.port)", "x-B: 1", "If-None-Match: \"e\"", "A-A: 2", "x-B: 3", "Cookie: a=1",
          "Cookie: b=2", "X-Empty:", "X-Blank:", "X-Text: café", "Accept-Encoding: br", "X-Semicolon: ;",
          "User-Agent: me",
        ])
    }
  }

  @Test("A request without fields gets Accept-Encoding, and the default User-Agent and Accept-Language")
  func defaults() async throws {
    try await withOrigin { _ in
      Reply(200)
    } _: { origin in
      var head = RequestHead(url: origin.url())
      _ = try await directTransport().send(OutgoingRequest(head: head))
      head.defaultUserAgent = "program"
      head.defaultLanguage = "en"
      _ = try await directTransport { $0.decodesContent = false }.send(OutgoingRequest(head: head))
      head.fields = ["Range": "bytes=0-1"]
      head.fields.append(name: "accept-language", value: "de")
      head.defaultUserAgent = nil
      _ = try await directTransport().send(OutgoingRequest(head: head))
      let host = "Host: 127.0.0.1:\(origin.port)"
      #expect(
        origin.requests.map(\.headerLines) == [
          [host, "Accept-Encoding: gzip, deflate"], [host, "User-Agent: program", "Accept-Language: en"],
          [host, "Range: bytes=0-1", "accept-language: de"],
        ])
    }
  }

  @Test("A Host field replaces the host of the URL")
  func host() async throws {
    try await withOrigin { _ in
      Reply(200)
    } _: { origin in
      _ = try await directTransport().get(origin.url(), ["Host": "other.test"])
      #expect(origin.requests.first?.values(of: "Host") == ["other.test"])
    }
  }

  @Test(
    "Content is sent with its length, regardless of the method",
    arguments: ["POST", "PUT", "PATCH", "QUERY", "GET", "DELETE", "PURGE"])
  func content(_ method: String) async throws {
    try await withOrigin { _ in
      Reply(200)
    } _: { origin in
      let content = Data([104, 0, 105, 13, 10])
      let fields: HeaderFields = ["Content-Length": "77", "Transfer-Encoding": "chunked", "Expect": "100-continue"]
      #expect(
        await directTransport().outcome(origin.url(), method: method, fields, content: content) == .complete(200, ""))
      let request = try #require(origin.requests.first)
      #expect(request.method == method)
      #expect(request.body == content)
      #expect(request.values(of: "Content-Length") == ["5"])
      #expect(request["Transfer-Encoding"] == nil)
      #expect(request["Expect"] == nil)
      #expect(request["Content-Type"] == nil)
    }
  }

  @Test("Content of 2 MB is sent without Expect: 100-continue")
  func largeContent() async throws {
    try await withOrigin { _ in
      Reply(200)
    } _: { origin in
      let content = Data(repeating: 7, count: 2 << 20)
      let outcome = await directTransport().outcome(
        origin.url(), method: "POST", ["Content-Type": "a/b"], content: content)
      #expect(outcome == .complete(200, ""))
      #expect(origin.requests.first?.body == content)
      #expect(origin.requests.first?["Content-Type"] == "a/b")
    }
  }

  @Test(
    "A response that arrives while content is being sent is delivered, or the connection is lost",
    arguments: ["POST", "QUERY"])
  func earlyResponse(_ method: String) async throws {
    let server = try SilentListener()
    let url = server.url()
    let content = Data(repeating: 7, count: 16 << 20)
    let outcome = Task { await directTransport().outcome(url, method: method, content: content) }
    // The server closes the connection without reading, so the client may lose the response.
    await server.answer("HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno")
    #expect([.complete(413, "no"), .failure(.connectionLost)].contains(await outcome.value))
  }

  @Test("Cookies, alternative services and transport security of a response do not change the next request")
  func noMemory() async throws {
    let fields = [
      ("Set-Cookie", "a=1"), ("Alt-Svc", "h2=\":1\""), ("Strict-Transport-Security", "max-age=600"),
      ("WWW-Authenticate", "Basic realm=a"),
    ]
    try await withOrigin { _ in
      Reply(401, fields, "hello")
    } _: { origin in
      let transport = directTransport()
      for _ in 0..<2 { #expect(await transport.outcome(origin.url()) == .complete(401, "hello")) }
      let host = "Host: 127.0.0.1:\(origin.port)"
      #expect(
        origin.requests.map(\.headerLines) == Array(repeating: [host, "Accept-Encoding: gzip, deflate"], count: 2))
    }
  }

  @Test("Requests without content have Content-Length: 0 only for methods that define content")
  func noContent() async throws {
    try await withOrigin { _ in
      Reply(200)
    } _: { origin in
      let transport = directTransport()
      let methods = ["POST", "PUT", "PATCH", "QUERY", "DELETE", "OPTIONS", "GET", "HEAD", "PURGE"]
      for method in methods { #expect(await transport.outcome(origin.url(), method: method) == .complete(200, "")) }
      #expect(origin.requests.map { $0["Content-Length"] } == ["0", "0", "0", "0", nil, nil, nil, nil, nil])
      #expect(origin.requests.map(\.method) == methods)
    }
  }

  @Test("Methods, field names and field values that would break a request line are refused")
  func injection() async throws {
    try await withOrigin { _ in
      Reply(200)
    } _: { origin in
      let transport = directTransport()
      let refused = Outcome.failure(.invalidRequest)
      for value in ["a\r\nX-Injected: 1", "a\nX-Injected: 1", "a\rb", "a\0b"] {
        #expect(await transport.outcome(origin.url(), ["X-A": value]) == refused)
      }
      for name in ["", "X A", "X:A", "X\r\nA", "X-Ä", "X\0"] {
        #expect(await transport.outcome(origin.url(), HeaderFields([(name, "1")])) == refused)
      }
      for method in ["", "GE T", "GET / HTTP/1.1\r\nX-Injected: 1\r\n", "CONNECT", "Ä"] {
        #expect(await transport.outcome(origin.url(), method: method) == refused)
      }
      #expect(await transport.outcome(origin.url(), method: "HEAD", content: Data("a".utf8)) == refused)
      #expect(origin.requestCount == 0)
    }
  }

  @Test("1,000 fields are sent, and a head above 1 MB is refused before it is sent")
  func largeHead() async throws {
    try await withOrigin { _ in
      Reply(200)
    } _: { origin in
      let transport = directTransport()
      let many = HeaderFields((0..<1000).map { ("X-\($0)", "value") })
      #expect(await transport.outcome(origin.url(), many) == .complete(200, ""))
      #expect(origin.requests.first?["X-999"] == "value")
      #expect(await transport.outcome(origin.url("/" + text(900_000))) == .complete(200, ""))
      for byteCount in [1_000_000, 9_000_000] {
        #expect(await transport.outcome(origin.url("/" + text(byteCount))) == .failure(.invalidRequest))
      }
      let fields = HeaderFields((0..<100).map { ("X-\($0)", text(10_000)) })
      #expect(await transport.outcome(origin.url(), fields) == .failure(.invalidRequest))
      #expect(origin.requestCount == 2)
    }
  }

  private func text(_ byteCount: Int) -> String { String(repeating: "a", count: byteCount) }

  @Test("Content that another transport provides in its context is refused")
  func contentInContext() async throws {
    let request = OutgoingRequest(head: RequestHead(url: URL(string: "http://127.0.0.1/")!), body: .inContext)
    let error = await #expect(throws: CurlTransportError.self) { try await directTransport().send(request) }
    #expect(error?.code == .invalidRequest)
  }

  @Test(
    "URLs that are not http or https, or whose host is ambiguous, are refused",
    arguments: [
      ("file:///etc/passwd", CurlTransportError.Code.unsupportedScheme), ("ftp://127.0.0.1/", .unsupportedScheme),
      ("gopher://127.0.0.1/", .unsupportedScheme), ("about:blank", .unsupportedScheme),
      ("/relative", .unsupportedScheme),
      ("http:/127.0.0.1/", .invalidURL), ("http:///127.0.0.1/", .invalidURL), ("http://", .invalidURL),
      ("http://user@127.0.0.1/", .invalidURL), ("http://user:password@127.0.0.1/", .invalidURL),
      ("http://[::1/", .invalidURL), ("http://127.0.0.1:99999/", .invalidURL), ("http://a b/", .invalidURL),
      ("http://127.1/", .invalidURL), ("http://2130706433/", .invalidURL), ("http://0177.0.0.1/", .invalidURL),
    ])
  func badURL(_ text: String, _ code: CurlTransportError.Code) async throws {
    // Foundation does not accept some of these URLs.
    guard let url = URL(string: text) else { return }
    #expect(await directTransport().outcome(url) == .failure(code))
  }

  @Test("Path and query are sent unchanged, and a fragment is not sent")
  func target() async throws {
    try await withOrigin { _ in
      Reply(200)
    } _: { origin in
      let transport = directTransport()
      for target in ["/a/../b/./c", "/%2e%2e/a", "/a?", "/a?b=c&d=%20", "//a", "/a;b=c", "/%C3%A4"] {
        _ = try await transport.get(origin.url(target))
      }
      _ = try await transport.get(URL(string: origin.url("/a?b").absoluteString + "#fragment")!)
      _ = try await transport.get(URL(string: "http://127.0.0.1:\(origin.port)")!)
      for end in ["?", "/a?#b", "/a??", "/a#b?"] {
        _ = try await transport.get(URL(string: "http://127.0.0.1:\(origin.port)\(end)")!)
      }
      // Foundation encodes other characters.
      _ = try await transport.get(URL(string: "http://127.0.0.1:\(origin.port)/ä b?ö d")!)
      #expect(
        origin.requests.map(\.target) == [
          "/a/../b/./c", "/%2e%2e/a", "/a?", "/a?b=c&d=%20", "//a", "/a;b=c", "/%C3%A4", "/a?b", "/",
          "/?", "/a?", "/a??", "/a",
          "/%C3%A4%20b?%C3%B6%20d",
        ])
    }
  }

  @Test("An error contains a remedy and no part of the request")
  func errorText() async throws {
    let url = URL(string: "http://127.0.0.1:1/secret-path?token=secret-query")!
    let error = await #expect(throws: CurlTransportError.self) {
      try await directTransport().get(url, ["Authorization": "secret-value"])
    }
    #expect(error?.code == .cannotConnect)
    #expect(error?.curlCode == 7)
    #expect(error?.description.contains("secret") == false)
    #expect(error?.description.contains("Check the address") == true)
    for code in CurlTransportError.Code.allCases {
      #expect(CurlTransportError(code, "reason").description.hasPrefix("The request failed: reason. "))
    }
  }
}

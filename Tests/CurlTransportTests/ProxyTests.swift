import CurlTransport
import FoundationEssentials
import Glibc
import LoopbackOrigin
import Testing

/// Tests of requests that use or bypass a proxy.
@Suite("Proxies of the curl transport", .timeLimit(.minutes(1)))
struct ProxyTests {
  private func transport(_ proxy: CurlTransport.Configuration.Proxy) -> CurlTransport {
    directTransport { $0.proxy = proxy }
  }

  @Test("A request for an http URL is sent to the proxy, except for hosts that bypass it")
  func http() async throws {
    try await withOrigin { _ in
      Reply(200, [], "by proxy")
    } _: { proxy in
      try await withOrigin { _ in
        Reply(200, [], "direct")
      } _: { origin in
        let url = "http://127.0.0.1:\(proxy.port)"
        #expect(await transport(.server(url)).outcome(origin.url("/a")) == .complete(200, "by proxy"))
        #expect(proxy.requests.map(\.target) == ["http://127.0.0.1:\(origin.port)/a"])
        let bypassing = transport(.server(url, bypassing: ["example.com", "127.0.0.1"]))
        #expect(await bypassing.outcome(origin.url("/a")) == .complete(200, "direct"))
        // The whole URL is sent to the origin too, because libcurl alone knows which hosts bypass the proxy.
        let empty = "http://127.0.0.1:\(origin.port)/a?"
        #expect(await transport(.server(url)).outcome(origin.url("/a?")) == .complete(200, "by proxy"))
        #expect(await bypassing.outcome(origin.url("/a?")) == .complete(200, "direct"))
        #expect(proxy.requests.last?.target == empty)
        #expect(origin.requests.last?.target == empty)
      }
    }
  }

  @Test(
    "A request fails if the proxy refuses the tunnel, and the proxy's response is not delivered",
    arguments: [407, 502, 200])
  func refusedTunnel(_ status: Int) async throws {
    let handler: LoopbackOrigin.Handler = { _ in
      status == 200
        ? .raw("HTTP/1.1 200 OK\r\n\r\nno TLS at all") : Reply(status, [("X-Proxy", "1")], "refused").closing()
    }
    try await withOrigin(handler) { proxy in
      let url = URL(string: "https://origin.test/")!
      let outcome = await transport(.server("http://127.0.0.1:\(proxy.port)")).outcome(url, ["X-Origin": "1"])
      #expect(outcome == .failure(status == 200 ? .secureConnectionFailed : .cannotConnect))
      let request = try #require(proxy.requests.first)
      #expect(request.method == "CONNECT")
      #expect(request.target == "origin.test:443")
      #expect(request["X-Origin"] == nil)
      #expect(proxy.requestCount == 1)
    }
  }

  @Test(
    "A proxy's response to CONNECT that has no end, or is not HTTP, ends the request and no other one",
    arguments: [
      ("content after 407", "HTTP/1.1 407 No\r\n\r\n", "x"),
      ("chunks after 407", "HTTP/1.1 407 No\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n"),
      ("long content after 407", "HTTP/1.1 407 No\r\nContent-Length: 20000000\r\n\r\n", "x"),
      ("fields", "HTTP/1.1 200 OK\r\n", "X: y\r\n"), ("fields after 407", "HTTP/1.1 407 No\r\n", "X: y\r\n"),
      ("a field", "HTTP/1.1 200 OK\r\nX: ", "y"), ("interim responses", "", "HTTP/1.1 100 Continue\r\n\r\n"),
      ("no HTTP", "", "garbage\r\n"), ("no line", "", "x"), ("zeros", "HTTP/1.1 200 OK\r\n", "\0"),
    ])
  func endlessTunnelResponse(_ response: (name: String, begin: String, rest: String)) async throws {
    let rest = Data(String(repeating: response.rest, count: (16 << 10) / response.rest.utf8.count).utf8)
    let gate = Gate()
    try await withOrigin { _ in
      .raw([.text(response.begin), .endless(rest)])
    } _: { proxy in
      try await withOrigin {
        $0.path == "/held" ? Reply(200, [], "hello").held(at: gate) : Reply(200, [], "hello")
      } _: { origin in
        let direct = directTransport()
        let held = Task { await direct.outcome(origin.url("/held")) }
        await gate.waitForArrivals()
        let outcome = await transport(.server("http://127.0.0.1:\(proxy.port)"))
          .outcome(URL(string: "https://origin.test/")!)
        #expect(outcome.isFailure, "\(response.name): \(outcome)")
        gate.open()
        #expect(await held.value == .complete(200, "hello"))
        #expect(await direct.outcome(origin.url("/")) == .complete(200, "hello"))
        #expect(await proxy.waitForAbandonedReplies())
      }
    }
  }

  @Test("A tunnel is used after a response to CONNECT with fields and another status of success")
  func tunnelWithFields() async throws {
    try await withOrigin { _ in
      .raw("HTTP/1.0 201 Fine\r\nX: y\r\nContent-Length: 5\r\n\r\nno TLS at all")
    } _: { proxy in
      let outcome = await transport(.server("http://127.0.0.1:\(proxy.port)"))
        .outcome(URL(string: "https://origin.test/")!)
      #expect(outcome == .failure(.secureConnectionFailed))
    }
  }

  @Test("A request fails if the name of its proxy is unknown")
  func unknownName() async throws {
    let url = URL(string: "http://127.0.0.1:1/")!
    #expect(await transport(.server("http://missing.invalid:3128")).outcome(url) == .failure(.cannotFindHost))
  }

  @Test("A request fails if its proxy is unreachable")
  func unreachable() async throws {
    try await withOrigin { _ in
      Reply(200)
    } _: { origin in
      #expect(await transport(.server("http://127.0.0.1:1")).outcome(origin.url()) == .failure(.cannotConnect))
      #expect(origin.requestCount == 0)
    }
  }

  @Test("A request fails if a SOCKS proxy refuses it, and times out if a proxy is silent")
  func otherProxies() async throws {
    let url = URL(string: "http://127.0.0.1:1/")!
    let refusing = try SilentListener()
    let socks = refusing.url("socks5h").absoluteString
    let outcome = Task { await transport(.server(socks)).outcome(url) }
    // No authentication method is acceptable.
    await refusing.answer([5, 0xff])
    #expect(await outcome.value == .failure(.cannotConnect))

    let silent = try SilentListener()
    for (scheme, target) in [("http", "https://origin.test/"), ("socks5h", "http://origin.test/")] {
      let impatient = directTransport {
        $0.proxy = .server(silent.url(scheme).absoluteString)
        $0.connectTimeout = .milliseconds(200)
      }
      #expect(await impatient.outcome(URL(string: target)!) == .failure(.timedOut))
    }
  }

  @Test("The proxy of the environment is used unless the configuration turns proxies off")
  func environment() async {
    await #expect(processExitsWith: .success) {
      let proxy = try LoopbackOrigin { _ in Reply(200, [], "by proxy") }
      let origin = try LoopbackOrigin { _ in Reply(200, [], "direct") }
      setenv("http_proxy", "http://127.0.0.1:\(proxy.port)", 1)
      unsetenv("no_proxy")
      unsetenv("NO_PROXY")
      #expect(await CurlTransport().outcome(origin.url()) == .complete(200, "by proxy"))
      #expect(await directTransport().outcome(origin.url()) == .complete(200, "direct"))
      setenv("no_proxy", "127.0.0.1", 1)
      #expect(await CurlTransport().outcome(origin.url()) == .complete(200, "direct"))
    }
  }

  @Test("Unsolicited bytes from a proxy are not delivered as another origin's response")
  func strayBytes() async throws {
    let (sent, hold) = (Gate(), Gate())
    let handler: LoopbackOrigin.Handler = { request in
      guard request.number == 0 else { return Reply(200, [], request.target) }
      let poison = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"
      return .raw(
        [.text("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"), .hold(sent), .text(poison), .hold(hold)],
        closes: false)
    }
    try await withOrigin(handler) { proxy in
      let transport = transport(.server("http://127.0.0.1:\(proxy.port)"))
      #expect(await transport.outcome(URL(string: "http://one.test/")!) == .complete(200, "hello"))
      sent.open()
      await hold.waitForArrivals()
      let other = await transport.outcome(URL(string: "http://other.test/a")!)
      #expect(other == .complete(200, "http://other.test/a"))
      hold.open()
    }
  }
}

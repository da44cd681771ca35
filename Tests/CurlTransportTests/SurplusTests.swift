import CurlTransport
import FoundationEssentials
import Glibc
import LoopbackOrigin
import Testing

/// Tests of bytes that an origin sends after the end of a response.
@Suite("Surplus bytes of the curl transport", .timeLimit(.minutes(1)))
struct SurplusTests {
  /// The connection between the transport and the origin.
  enum Carrier: CaseIterable {
    case plain
    case tls12
    case tls13
    /// TLS 1.3 within the tunnel of a proxy.
    case tunnel
    /// The same, over TLS to the proxy.
    case tunnelOverTLS
  }

  /// A response that is followed by bytes.
  struct Kind: Sendable {
    var name: String
    var method = "GET"
    var response: String
    var surplus: String
    var outcome: Outcome
  }

  private static let maximumRecordByteCount = 16 << 10
  private static let poison = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"

  /// Content that begins with the target of its request.
  ///
  /// - Parameter byteCount: By default more than libcurl reads at once, so that it reads the end by itself.
  private static func content(_ target: String, byteCount: Int = 20_000) -> String {
    target + String(repeating: "x", count: byteCount - target.utf8.count)
  }

  private static func response(_ content: String) -> String {
    "HTTP/1.1 200 OK\r\nContent-Length: \(content.utf8.count)\r\n\r\n" + content
  }

  /// Returns all kinds of responses to a request for the target.
  private static func kinds(_ target: String) -> [Kind] {
    let content = content(target)
    let chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4e20\r\n\(content)\r\n0\r\n\r\n"
    // With its head, this content has the size of a record.
    let headByteCount = response(content).utf8.count - content.utf8.count
    let whole = Self.content(target, byteCount: maximumRecordByteCount - headByteCount)
    var kinds = [
      Kind(
        name: "a length, then another record", response: response(whole), surplus: poison,
        outcome: .complete(200, whole))
    ]
    for (name, surplus) in [("a response", poison), ("a byte", "x"), ("a line end", "\r\n")] {
      kinds += [
        Kind(
          name: "a length, then \(name)", response: response(content), surplus: surplus,
          outcome: .complete(200, content)),
        Kind(name: "chunks, then \(name)", response: chunks, surplus: surplus, outcome: .complete(200, content)),
      ]
    }
    let heads = [
      ("GET", 200, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
      ("GET", 204, "HTTP/1.1 204 No Content\r\n\r\n"),
      ("GET", 304, "HTTP/1.1 304 Not Modified\r\nContent-Length: 44\r\n\r\n"),
      ("HEAD", 200, "HTTP/1.1 200 OK\r\nContent-Length: 44\r\n\r\n"),
    ]
    for (method, status, head) in heads {
      let filler = String(repeating: "x", count: maximumRecordByteCount - head.utf8.count)
      for (name, surplus) in [
        ("a response", poison), ("a byte", "x"), ("a line end", "\r\n"), ("another record", filler + poison),
      ] {
        kinds.append(
          Kind(
            name: "\(method) \(status), then \(name)", method: method, response: head, surplus: surplus,
            outcome: .complete(status, "")))
      }
    }
    return kinds
  }

  private let lab: CertificateLab

  init() throws {
    lab = try CertificateLab()
  }

  /// Runs `body` with an origin, a transport that reaches it over the carrier, and the URL of the origin.
  private func withOrigin(
    over carrier: Carrier, _ handler: @escaping LoopbackOrigin.Handler,
    _ body: (LoopbackOrigin, CurlTransport, URL) async throws -> Void
  ) async throws {
    let origin = try LoopbackOrigin(handler: handler)
    var relays: [TLSRelay] = []
    defer {
      origin.stop()
      for relay in relays.reversed() { relay.stop() }
    }
    func relay(to port: UInt16, _ role: TLSRelay.Role) throws -> UInt16 {
      relays.append(try TLSRelay(to: port, lab, role))
      return relays[relays.count - 1].port
    }
    var port = origin.port
    var proxy = CurlTransport.Configuration.Proxy.none
    switch carrier {
    case .plain: break
    case .tls12: port = try relay(to: port, .server(.tls12))
    case .tls13: port = try relay(to: port, .server(.tls13))
    case .tunnel: proxy = .server("http://127.0.0.1:\(try relay(to: port, .tunnel(.tls13)))")
    case .tunnelOverTLS:
      let tunnel = try relay(to: port, .tunnel(.tls13))
      proxy = .server("https://127.0.0.1:\(try relay(to: tunnel, .server(.tls13)))")
    }
    let transport = directTransport {
      $0.certificateAuthorityFile = lab.path("ca.pem")
      $0.proxy = proxy
      $0.maximumConnectionsPerOrigin = 4
    }
    let scheme = carrier == .plain ? "http" : "https"
    try await body(origin, transport, URL(string: "\(scheme)://127.0.0.1:\(port)")!)
  }

  @Test("Bytes after a response never become a part of another one, and fail no request", arguments: Carrier.allCases)
  func surplus(_ carrier: Carrier) async throws {
    for kind in Self.kinds("/first") {
      let handler: LoopbackOrigin.Handler = { request in
        request.number == 0 ? .raw(kind.response + kind.surplus, closes: false) : Reply(200, [], request.target)
      }
      try await withOrigin(over: carrier, handler) { origin, transport, url in
        let first = await transport.outcome(url.appending(path: "first"), method: kind.method)
        #expect(first == kind.outcome, "\(kind.name)")
        for path in ["a", "b", "c"] {
          let outcome = await transport.outcome(url.appending(path: path))
          #expect(outcome == .complete(200, "/\(path)"), "\(kind.name)")
        }
        let connections = carrier == .tunnelOverTLS ? [0, 1, 2, 3] : [0, 1, 1, 1]
        #expect(origin.requests.map(\.connection) == connections, "\(kind.name)")
      }
    }
  }

  @Test("Concurrent callers of an origin that sends surplus bytes get their own responses", arguments: Carrier.allCases)
  func concurrentCallers(_ carrier: Carrier) async throws {
    // The number at the end of a target is the kind of its response.
    let handler: LoopbackOrigin.Handler = { request in
      let kinds = Self.kinds(request.target)
      guard let number = request.target.split(separator: "-").last.flatMap({ Int($0) }), number < kinds.count else {
        return Reply(200, [], request.target)
      }
      return .raw(kinds[number].response + kinds[number].surplus, closes: false)
    }
    try await withOrigin(over: carrier, handler) { _, transport, url in
      await withTaskGroup(of: Void.self) { group in
        for caller in 0..<8 {
          group.addTask {
            for number in 0..<7 {
              let kind = caller + number * 8
              let target = "/\(caller)-\(number)-\(kind)"
              let kinds = Self.kinds(target)
              let (method, expected) =
                kind < kinds.count ? (kinds[kind].method, kinds[kind].outcome) : ("GET", .complete(200, target))
              let outcome = await transport.outcome(url.appending(path: target), method: method)
              #expect(outcome == expected)
            }
          }
        }
      }
    }
  }

  @Test(
    "Responses without surplus bytes share a connection, also over TLS",
    arguments: [Carrier.plain, .tls12, .tls13, .tunnel])
  func reuse(_ carrier: Carrier) async throws {
    let handler: LoopbackOrigin.Handler = { request in
      switch request.number % 4 {
      case 0: Reply(200, [], Self.content("/"))
      case 1: Reply(200, [], Self.content("/")).chunked()
      case 2: Reply(304, [("Content-Length", "44")])
      default: Reply(204)
      }
    }
    try await withOrigin(over: carrier, handler) { origin, transport, url in
      for number in 0..<40 {
        let response = try await transport.get(url, method: number % 5 == 0 ? "HEAD" : "GET")
        _ = try await response.data()
      }
      #expect(origin.connectionCount == 1)
    }
  }

  @Test("TLS within TLS is recognized by the URL of the proxy, which may be in the environment")
  func secureProxies() async {
    #expect(CurlTransport.Configuration.Proxy.server("HTTPS://proxy.test:3128").mayUseTLS)
    #expect(!CurlTransport.Configuration.Proxy.server("http://proxy.test:3128").mayUseTLS)
    await #expect(processExitsWith: .success) {
      let proxy = CurlTransport.Configuration.Proxy.environment
      let names = ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"]
      for name in names { unsetenv(name) }
      #expect(!proxy.mayUseTLS)
      for name in names {
        setenv(name, "https://proxy.test:3128", 1)
        #expect(proxy.mayUseTLS)
        setenv(name, "http://proxy.test:3128", 1)
        #expect(!proxy.mayUseTLS)
      }
    }
  }

  @Test("A request succeeds on a connection on which a message of TLS has arrived since the last response")
  func lateTickets() async throws {
    let origin = try LoopbackOrigin { Reply(200, [], $0.target) }
    let relay = try TLSRelay(to: origin.port, lab, .server(.tls13, lateTickets: true))
    defer {
      origin.stop()
      relay.stop()
    }
    let transport = directTransport { $0.certificateAuthorityFile = lab.path("ca.pem") }
    for number in 0..<10 {
      let url = URL(string: "https://127.0.0.1:\(relay.port)/\(number)")!
      #expect(await transport.outcome(url) == .complete(200, "/\(number)"))
    }
  }
}

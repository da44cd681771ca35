import CurlTransport
import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Synchronization
import Testing

/// Responses with which an origin ends, confuses or poisons a process that uses sessions without this library.
@Suite("Hostile origins, over sessions", .timeLimit(.minutes(1)))
struct HostileOriginTests {
  enum Way: CaseIterable {
    case task, delegate, loadFromSession, data, bytes

    func load(_ request: URLRequest, _ fixture: CacheFixture) async throws -> Data {
      try await Loader(self, fixture).load(request)
    }

    func code(_ request: URLRequest, _ fixture: CacheFixture) async -> URLError.Code? {
      do {
        _ = try await load(request, fixture)
        return nil
      } catch {
        return (error as? URLError)?.code
      }
    }
  }

  /// Loads requests in one way, over one session, so that they can share connections.
  struct Loader {
    private let way: Way
    private let cache: LMDBURLCache
    private let delegate = RecordingDelegate()
    private let session: URLSession

    init(_ way: Way, _ fixture: CacheFixture) {
      self.way = way
      cache = fixture.cache
      session = fixture.session(delegate: way == .delegate ? delegate : nil)
    }

    func load(_ request: URLRequest) async throws -> Data {
      switch way {
      case .task: return try await session.data(for: request).0
      case .delegate:
        let before = delegate.body.count
        await delegate.run(session.dataTask(with: request))
        if let code = delegate.events.completions.last ?? nil { throw URLError(code) }
        return Data(delegate.body.dropFirst(before))
      case .loadFromSession: return try await cache.data(for: request, from: session).0
      case .data: return try await cache.data(for: request).0
      case .bytes: return try await cache.bytes(for: request).0.collect(upTo: .max)
      }
    }
  }

  private static func raw(_ lines: String..., body: String = "hello") -> Reply {
    .raw("HTTP/1.1 200 OK\r\n" + lines.map { $0 + "\r\n" }.joined() + "\r\n" + body)
  }

  @Test("Lines of one field in two spellings count as one field", arguments: Way.allCases)
  func spellings(_ way: Way) async throws {
    try await withCache { request in
      switch request.path {
      case "/no-store":
        Self.raw("Content-Length: 5", "Cache-Control: max-age=600", "cache-control: no-store")
      case "/private":
        Self.raw("Content-Length: 5", "cache-control: no-store", "Cache-Control: max-age=600")
      default:
        Reply(
          200, [("Cache-Control", "max-age=600"), ("vary", "Cookie"), ("Vary", "X-A")],
          "\(request["Cookie"] ?? "") \(request["X-A"] ?? "")")
      }
    } _: { (fixture, origin) async throws in
      for path in ["/no-store", "/private"] {
        for _ in 0..<2 { #expect(try await way.load(URLRequest(url: origin.url(path)), fixture).text == "hello") }
        #expect(!fixture.cache.isCached(origin.url(path)))
      }
      #expect(origin.requestCount == 4)
      for fields in [["Cookie": "a", "X-A": "1"], ["Cookie": "b", "X-A": "1"], ["Cookie": "a", "X-A": "2"]] {
        let text = try await way.load(URLRequest(origin.url("/vary"), fields), fixture).text
        #expect(text == "\(fields["Cookie"]!) \(fields["X-A"]!)")
      }
    }
  }

  static let malformed: [(name: String, reply: Reply, code: URLError.Code)] = [
    ("a cut head", Reply(200, [("X-A", "1")], "body").cut(.inHead(after: 20)), .badServerResponse),
    ("a status line alone", .raw("HTTP/1.1 200 OK\r\n"), .badServerResponse),
    ("the largest length", raw("Content-Length: 9223372036854775807"), .networkConnectionLost),
    (
      "gzip that ends early",
      Reply(200, [("Content-Encoding", "gzip")], body: TransportDifferencesTests.gzipped.dropLast(4)),
      .cannotDecodeContentData
    ),
    ("no byte", .nothing, .badServerResponse),
    ("garbage", .raw("\u{0}\u{1}garbage\r\n\r\n"), .badServerResponse),
  ]

  @Test("A malformed response is an error of its request and ends nothing else", arguments: malformed.indices)
  func malformedAnswers(_ index: Int) async throws {
    let test = Self.malformed[index]
    try await withCache { request in
      request.path == "/good" ? Reply(200, [], "good") : test.reply
    } _: { (fixture, origin) async throws in
      for way in Way.allCases {
        #expect(await way.code(URLRequest(url: origin.url("/bad")), fixture) == test.code, "\(way), \(test.name)")
        #expect(!fixture.cache.isCached(origin.url("/bad")))
        var post = URLRequest(origin.url("/bad"), method: "POST")
        post.httpBody = Data("x".utf8)
        #expect(await way.code(post, fixture) == test.code, "POST, \(way), \(test.name)")
        #expect(try await way.load(URLRequest(url: origin.url("/good")), fixture).text == "good")
      }
    }
  }

  @Test("Trailers end no process, and change nothing that is stored", arguments: Way.allCases)
  func trailers(_ way: Way) async throws {
    try await withCache { _ in
      Reply(200, [("Cache-Control", "max-age=600")], "body").chunked(trailers: [("Cache-Control", "no-store")])
    } _: { (fixture, origin) async throws in
      for _ in 0..<2 { #expect(try await way.load(URLRequest(url: origin.url("/a")), fixture).text == "body") }
      #expect(origin.requestCount == 1)
    }
  }

  /// A response with content that is longer than what libcurl reads at once, and a response that follows it unasked.
  private static let first = String(repeating: "f", count: 20_000)
  private static let withStrayBytes = Reply.raw(
    "HTTP/1.1 200 OK\r\nContent-Length: \(first.utf8.count)\r\n\r\n" + first
      + "HTTP/1.1 200 OK\r\nCache-Control: max-age=600\r\nContent-Length: 6\r\n\r\npoison", closes: false)

  @Test(
    "Stray bytes after a response never become the response to another request, also over TLS",
    arguments: Way.allCases, [nil, TLSRelay.Version.tls12, .tls13])
  func strayBytes(_ way: Way, _ version: TLSRelay.Version?) async throws {
    let lab = try version.map { _ in try CertificateLab() }
    var settings = CurlTransport.Configuration()
    settings.certificateAuthorityFile = lab?.path("ca.pem")
    settings.proxy = .none
    try await withCache(configure: { [settings] in $0.transport = .curl(settings) }) { request in
      guard request.path == "/first" else { return Reply(200, [("Cache-Control", "max-age=600")], request.path) }
      return Self.withStrayBytes
    } _: { (fixture, origin) async throws in
      var relay: TLSRelay?
      if let version, let lab { relay = try TLSRelay(to: origin.port, lab, .server(version)) }
      defer { relay?.stop() }
      func request(_ path: String) throws -> URLRequest {
        guard let relay else { return URLRequest(url: origin.url(path)) }
        return URLRequest(url: try #require(URL(string: "https://127.0.0.1:\(relay.port)\(path)")))
      }
      let loader = Loader(way, fixture)
      for number in 0..<8 {
        #expect(try await loader.load(request("/first")).text == Self.first)
        for _ in 0..<2 { #expect(try await loader.load(request("/\(number)")).text == "/\(number)") }
      }
      // The other requests share connections.
      #expect(origin.connectionCount < 16)
    }
  }

  @Test(
    "A challenge that no credentials answer is the response, also for a delegate that would answer each challenge",
    arguments: ["Digest realm=\"a\", nonce=\"b\"", "Bearer", "Negotiate", "Basic", "Basic realm=\"unterminated"])
  func challenges(_ challenge: String) async throws {
    try await withCache { _ in
      Reply(401, [("WWW-Authenticate", challenge)], "who?")
    } _: { (fixture, origin) async throws in
      let delegate = LoginDelegate(.login("mallory"))
      let session = fixture.session(delegate: delegate)
      let (data, response) = try await session.data(from: origin.url("/a"))
      #expect(data.text == "who?")
      #expect(response.status == 401)
      #expect(response.url == origin.url("/a"))
      #expect(response.field("WWW-Authenticate") == challenge)
      // The delegate is asked until it declines, and not again by Foundation.
      #expect(delegate.failureCounts == (challenge.hasPrefix("Basic") ? [0, 1, 2] : []))
    }
  }
}

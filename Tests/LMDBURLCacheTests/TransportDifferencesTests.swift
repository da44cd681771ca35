import CurlTransport
import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Testing

/// Responses that the two transports treat differently. The article "Transports" has a row for each.
@Suite("Differences between the transports", .timeLimit(.minutes(1)))
struct TransportDifferencesTests {
  enum Outcome: Equatable {
    /// The body reached the caller and is in the cache.
    case stored(String)
    /// The body reached only the caller.
    case passedOn(String)
    case error(URLError.Code)
  }

  struct Case: CustomTestStringConvertible {
    let name: String
    let reply: Reply
    /// Nil if Foundation ends the process.
    let session: Outcome?
    let curl: Outcome

    init(_ name: String, _ reply: Reply, session: Outcome?, curl: Outcome) {
      self.name = name
      self.reply = reply
      self.session = session
      self.curl = curl
    }

    var testDescription: String { name }
  }

  static func head(_ fields: String...) -> String {
    "HTTP/1.1 200 OK\r\nCache-Control: max-age=600\r\n" + fields.map { $0 + "\r\n" }.joined() + "\r\n"
  }

  static let gzipped = Data(base64Encoded: "H4sIAAAAAAACA8tIzcnJBwCGphA2BQAAAA==")!
  static let gzippedTwice = Data(base64Encoded: "H4sIAAAAAAACA5Pv5mAAASbm0x5nT55kZ2hbJmDGChQAAKdvtEUZAAAA")!
  static let kept = [("Cache-Control", "max-age=600")]

  static let cases: [Case] = [
    Case(
      "Transfer-Encoding: gzip, chunked",
      .raw([
        .text(head("Transfer-Encoding: gzip, chunked")), .text("19\r\n"), .bytes(gzipped), .text("\r\n0\r\n\r\n"),
      ]),
      // libcurl 7.88 decodes the transfer coding, 8.14 reports it.
      session: LoadedLibcurl.version < 0x08_0000 ? .stored("hello") : .error(.unknown),
      curl: .error(.badServerResponse)),
    Case(
      "1,500 interim responses",
      .raw(String(repeating: "HTTP/1.1 103 Early Hints\r\n\r\n", count: 1500) + head("Content-Length: 5") + "hello"),
      session: .stored("hello"), curl: .error(.badServerResponse)),
    Case(
      "Two lengths", .raw(head("Content-Length: 4", "Content-Length: 5") + "hello"),
      session: .passedOn("hello"), curl: .error(.badServerResponse)),
    Case(
      "A length that is no number", .raw(head("Content-Length: 5x") + "hello"),
      session: .passedOn("hello"), curl: .error(.badServerResponse)),
    Case(
      "A bare CR in a field", .raw(head("X-A: a\rb", "Content-Length: 5") + "hello"),
      session: .passedOn("hello"), curl: .error(.badServerResponse)),
    Case(
      "A blank before the colon", .raw(head("X-A : b", "Content-Length: 5") + "hello"),
      session: .error(.unknown), curl: .error(.badServerResponse)),
    Case(
      "A field of 200 KB", Reply(200, kept + [("X-A", String(repeating: "a", count: 200_000))], "hello"),
      session: .error(.unknown), curl: .error(.badServerResponse)),
    Case(
      "gzip that is cut", Reply(200, kept + [("Content-Encoding", "gzip")], body: gzipped.dropLast(4)),
      session: .stored("hello"), curl: .error(.cannotDecodeContentData)),
    Case(
      "gzip that is none", Reply(200, kept + [("Content-Encoding", "gzip")], "hello"),
      session: .error(.unknown), curl: .error(.cannotDecodeContentData)),
    Case(
      "gzip, gzip", Reply(200, kept + [("Content-Encoding", "gzip, gzip")], body: gzippedTwice),
      session: .stored("hello"), curl: .stored(gzippedTwice.text)),
    Case(
      "An unknown coding", Reply(200, kept + [("Content-Encoding", "made-up")], "hello"),
      session: .error(.unknown), curl: .stored("hello")),
    Case(
      "An unasked part in gzip",
      Reply(206, kept + [("Content-Encoding", "gzip"), ("Content-Range", "bytes 0-24/25")], body: gzipped),
      session: .passedOn("hello"), curl: .passedOn(gzipped.text)),
    Case(
      "A body that ends with the connection", Reply(200, kept, "hello").untilClose(),
      session: .stored("hello"), curl: .passedOn("hello")),
    Case("No byte", .nothing, session: .error(.badServerResponse), curl: .error(.badServerResponse)),
    Case("No HTTP", .raw("no HTTP\r\n\r\n"), session: .error(.unsupportedURL), curl: .error(.badServerResponse)),
    Case(
      "A head that is cut", .raw("HTTP/1.1 200 OK\r\nCache-Control: max-age=600\r\n"),
      session: nil, curl: .error(.badServerResponse)),
    Case(
      "A body that is cut", Reply(200, kept, "hello").cut(.inBody(after: 2)),
      session: .error(.unknown), curl: .error(.networkConnectionLost)),
    Case(
      "A chunk that is cut", Reply(200, kept, "hello").chunked(byteCount: 4).cut(.inBody(after: 2)),
      session: .error(.unknown), curl: .error(.networkConnectionLost)),
    Case(
      "A chunk without a size", Reply(200, kept, "hello").brokenChunk(after: 2),
      session: .error(.unknown), curl: .error(.networkConnectionLost)),
    Case(
      "Length and chunks", .raw(head("Content-Length: 3", "Transfer-Encoding: chunked") + "5\r\nhello\r\n0\r\n\r\n"),
      session: .stored("hello"), curl: .passedOn("hello")),
    Case(
      "Chunks in HTTP/1.0",
      .raw(
        "HTTP/1.0 200 OK\r\nCache-Control: max-age=600\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
      session: .stored("hello"), curl: .passedOn("hello")),
    Case(
      "A length beyond 64 bits", .raw(head("Content-Length: 99999999999999999999999") + "hello"),
      session: .passedOn("hello"), curl: .passedOn("hello")),
  ]

  private func outcome(_ transport: LMDBURLCache.Options.Transport, _ reply: Reply) async throws -> Outcome {
    var result: Outcome?
    try await withCache(configure: { $0.transport = transport }, origin: { _ in reply }) { fixture, origin in
      let url = origin.url("/a")
      do {
        let body = try await fixture.cache.data(from: url).0.text
        result = fixture.cache.isCached(url) ? .stored(body) : .passedOn(body)
      } catch {
        result = .error((error as? URLError)?.code ?? .unknown)
        #expect(!fixture.cache.isCached(url))
      }
    }
    return try #require(result)
  }

  @Test("Both transports treat each response as the article says", arguments: cases)
  func outcomes(_ test: Case) async throws {
    if let expected = test.session {
      let session = try await outcome(.urlSession(.ephemeral), test.reply)
      #expect(session == expected)
    }
    let curl = try await outcome(.curl(CurlTransport.Configuration()), test.reply)
    #expect(curl == test.curl)
  }

  @Test("All ways send the same Accept-Language if a request has none, which the Vary key contains")
  func defaultLanguage() async throws {
    try await withCache { request in
      let language = request["Accept-Language"] ?? "absent"
      return Reply(200, [("Cache-Control", "max-age=600"), ("Vary", "Accept-Language")], language)
    } _: { (fixture, origin) async throws in
      let cache = fixture.cache
      let sessions = [fixture.session(), URLSession(configuration: .ephemeral)]
      // Each way fetches one URL first, and reads what the others have fetched.
      for first in 0..<3 {
        let url = origin.url("/\(first)")
        for way in [first, 0, 1, 2] {
          let body =
            switch way {
            case 0: try await cache.data(from: url).0.text
            case 1: try await sessions[0].data(from: url).0.text
            default: try await cache.data(for: URLRequest(url: url), from: sessions[1]).0.text
            }
          #expect(body == "en", "\(first) \(way)")
        }
      }
      #expect(origin.requestCount == 3)
      let german = URLRequest(origin.url("/0"), ["Accept-Language": "de"])
      #expect(try await cache.data(for: german).0.text == "de")
    }
  }
}

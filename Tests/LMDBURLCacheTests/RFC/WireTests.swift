import CachingClient
import CurlTransport
import Foundation
import FoundationNetworking
import HTTPCaching
import LMDBURLCache
import LoopbackOrigin
import Testing

/// Cases that the tables cannot express: bytes that are not text, encoded content, and calls other than requests.
@Suite("HTTP conformance on the wire", .endsFixtures)
struct WireTests {
  private func get(_ url: URL, _ session: URLSession, _ fields: FieldLines = []) async throws -> ConformanceOutcome {
    var request = URLRequest(url: url)
    for (name, value) in fields { request.setValue(value, forHTTPHeaderField: name) }
    let (data, response) = try await session.data(for: request)
    let http = try #require(response as? HTTPURLResponse)
    var fields: [String: String] = [:]
    for (name, value) in http.allHeaderFields { fields["\(name)"] = "\(value)" }
    return ConformanceOutcome(status: http.statusCode, fields: fields, body: data)
  }

  /// "hello hello hello hello", gzip-encoded.
  private static let coded = Data([
    0x1F, 0x8B, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x03, 0xCB, 0x48, 0xCD, 0xC9, 0xC9, 0x57, 0xC8, 0x40, 0x27,
    0x01, 0xE3, 0x51, 0x3D, 0x8D, 0x17, 0x00, 0x00, 0x00,
  ])

  /// Rows 9, 16 and 72: content that the transport has decoded is stored and validated as such, and serves no ranges.
  @Test("Encoded content is stored as the transport has decoded it")
  func codedContent() async throws {
    let fixture = try CacheFixture()
    fixture.cache.minCacheInterval = 0
    let origin = try LoopbackOrigin { request in
      let fields = [
        ("Cache-Control", "max-age=60"), ("ETag", "\"a\""), ("Vary", "Accept-Encoding"), ("Content-Encoding", "gzip"),
      ]
      return request["If-None-Match"] == "\"a\"" ? Reply(304, fields) : Reply(200, fields, body: Self.coded)
    }
    defer { origin.stop() }
    let session = fixture.session()
    let plain = try await get(origin.url("/a"), URLSession(configuration: .ephemeral))
    for step in 0..<4 {
      let outcome = try await get(origin.url("/a"), session, step == 3 ? [("Range", "bytes=0-4")] : [])
      #expect(String(decoding: outcome.body, as: UTF8.self) == "hello hello hello hello")
      #expect(outcome.value("Content-Encoding") == plain.value("Content-Encoding"))
      #expect(outcome.value("Content-Length") == plain.value("Content-Length"))
      fixture.clock.advance(by: step == 1 ? 61 : 1)
    }
    #expect(origin.requests.map { $0["If-None-Match"] } == [nil, nil, "\"a\""])
  }

  /// Malformed heads. The transport may accept or reject them; the store must return an accepted head unchanged.
  private static let heads: [(String, [UInt8])] = [
    ("a byte that is no UTF-8", Array("X-A: a".utf8) + [0xFC]),
    ("no colon", Array("X-A a".utf8)),
    ("a space before the colon", Array("X-A : a".utf8)),
    ("a folded line", Array("X-A: a\r\n b".utf8)),
    ("an empty name", Array(": a".utf8)),
    ("a second length, the same", Array("Content-Length: 4".utf8)),
    ("a tab", Array("X-A:\ta\t".utf8)),
    ("a control character", Array("X-A: a\u{1}b".utf8)),
    ("no space after the colon", Array("X-A:a".utf8)),
    ("a name with strange letters", Array("X(A): a".utf8)),
  ]

  /// Rows 9 and 91: a malformed line changes neither the response nor the stored one.
  @Test("A malformed head gives the response of the transport alone, also from the store", arguments: heads.indices)
  func malformedHeads(_ index: Int) async throws {
    let (name, line) = Self.heads[index]
    let fixture = try CacheFixture()
    fixture.cache.minCacheInterval = 0
    let before = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 4\r\n"
    let origin = try LoopbackOrigin { _ in
      .raw([.text(before), .bytes(Data(line)), .text("\r\n\r\nbody")])
    }
    defer { origin.stop() }
    let session = fixture.session()
    let request = OutgoingRequest(head: RequestHead(url: origin.url("/a")))
    guard let expected = try? await CurlTransport().send(request) else {
      // A head that the transport rejects stays rejected.
      await #expect(throws: URLError.self, "\(name)") { try await get(origin.url("/a"), session) }
      #expect(!fixture.cache.isCached(origin.url("/a")))
      return
    }
    for _ in 0..<2 {
      let outcome = try await get(origin.url("/a"), session)
      #expect(try await outcome.body == expected.body.collect(upTo: 100), "\(name)")
      #expect(outcome.value("X-A") == expected.head.fields["X-A"].map { FieldText.displayed($0) }, "\(name)")
    }
    // A response with a malformed field is not stored.
    #expect(origin.requestCount == (expected.head.fields.isWellFormed ? 2 : 3), "\(name)")
  }

  /// Rows 107 and 109: the cache's own method removes groups, too, of one origin only.
  @Test("Groups of an origin are removed through the API")
  func groupPurge() async throws {
    let fixture = try CacheFixture()
    fixture.cache.minCacheInterval = 0
    let reply = Reply(200, [("Cache-Control", "max-age=60"), ("Cache-Groups", "\"news\", \"front\"")], "a")
    let origin = try LoopbackOrigin { request in
      request.path == "/other"
        ? Reply(200, [("Cache-Control", "max-age=60"), ("Cache-Groups", "\"other\"")], "b") : reply
    }
    let neighbor = try LoopbackOrigin { _ in reply }
    defer {
      origin.stop()
      neighbor.stop()
    }
    let session = fixture.session()
    for url in [origin.url("/1"), origin.url("/2"), origin.url("/other"), neighbor.url("/1")] {
      _ = try await get(url, session)
    }
    fixture.cache.removeCachedResponses(inGroup: "news", origin: origin.url("/anything"))
    #expect(!fixture.cache.isCached(origin.url("/1")))
    #expect(!fixture.cache.isCached(origin.url("/2")))
    #expect(fixture.cache.isCached(origin.url("/other")))
    #expect(fixture.cache.isCached(neighbor.url("/1")))
  }
}

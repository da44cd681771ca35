import CachingClient
import Foundation
import FoundationNetworking
import HTTPCaching
import LMDBURLCache
import LoopbackOrigin
import Testing

/// Fields whose values are not UTF-8, from the origin over both tiers back to the origin (RFC 9110, section 8.8.3).
@Suite("Field values in other encodings than UTF-8")
struct FieldBytesTests {
  /// A tag with a byte in ISO 8859-1, as the origin of the tests reads it.
  private static let tagAtOrigin = "\"\u{FFFD}\""

  private static func reply(to request: RecordedRequest) -> Reply {
    let isCurrent = request["If-None-Match"] == tagAtOrigin
    let start = isCurrent ? "HTTP/1.1 304 Not Modified\r\n" : "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n"
    let lines = "Cache-Control: max-age=60\r\nX-UTF-8: ä\r\nX-Latin: caf"
    return .raw([
      .bytes(Data(start.utf8) + Data("ETag: \"".utf8) + [0xE4] + Data("\"\r\n".utf8)),
      .bytes(Data(lines.utf8) + [0xE9] + Data("\r\n\r\n".utf8) + Data((isCurrent ? "" : "body").utf8)),
    ])
  }

  private func checkFields(_ response: URLResponse) {
    let response = response as? HTTPURLResponse
    #expect(response?.value(forHTTPHeaderField: "ETag") == "\"ä\"")
    #expect(response?.value(forHTTPHeaderField: "X-UTF-8") == "ä")
    #expect(response?.value(forHTTPHeaderField: "X-Latin") == "café")
  }

  @Test("An entity tag is sent back byte by byte, and shown as before", arguments: [true, false])
  func entityTag(inMemory: Bool) async throws {
    try await withCache(memory: inMemory ? 4 << 20 : 0, disk: inMemory ? 0 : 16 << 20) {
      Self.reply(to: $0)
    } _: { fixture, origin in
      let request = URLRequest(url: origin.url("/a"))
      for source: ResponseSource in [.miss, .hit, .revalidated, .hit, .revalidated] {
        if source == .revalidated { fixture.clock.advance(by: 61) }
        let result = try await fixture.cache.load(request)
        #expect(result.source == source && result.data.text == "body")
        checkFields(result.response)
      }
      checkFields(try #require(fixture.cache.cachedResponse(for: request)).response)
      #expect(origin.requests.map { $0["If-None-Match"] } == [nil, Self.tagAtOrigin, Self.tagAtOrigin])
    }
  }

  @Test("A caching session shows the fields and validates with the same bytes")
  func session() async throws {
    try await withCache {
      Self.reply(to: $0)
    } _: { fixture, origin in
      let session = URLSession(configuration: .default.caching(with: fixture.cache))
      for step in 0..<3 {
        if step == 2 { fixture.clock.advance(by: 61) }
        let (data, response) = try await session.data(from: origin.url("/a"))
        #expect(data.text == "body")
        checkFields(response)
      }
      #expect(origin.requests.map { $0["If-None-Match"] } == [nil, Self.tagAtOrigin])
    }
  }

  @Test("Over URLSession, Foundation refuses such a response, and a tag in UTF-8 is sent back")
  func urlSession() async throws {
    try await withCache(configure: { $0.transport = .urlSession(.ephemeral) }) {
      let fields = [("Cache-Control", "max-age=60"), ("ETag", "\"ä\"")]
      if $0.path == "/latin" { return Self.reply(to: $0) }
      return $0["If-None-Match"] == "\"ä\"" ? Reply(304, fields) : Reply(200, fields, "body")
    } _: { fixture, origin in
      let error = await #expect(throws: URLError.self) {
        try await fixture.cache.load(URLRequest(url: origin.url("/latin")))
      }
      #expect(error?.code == .unknown)
      let request = URLRequest(url: origin.url("/utf-8"))
      for source: ResponseSource in [.miss, .hit, .revalidated] {
        if source == .revalidated { fixture.clock.advance(by: 61) }
        let found = try await fixture.cache.load(request).source
        #expect(found == source)
      }
    }
  }

  @Test("A redirect to a location in ISO 8859-1 is followed as before")
  func redirect() async throws {
    try await withCache { request in
      guard request.path == "/a" else { return Reply(200, [("Cache-Control", "max-age=60")], request.path) }
      let start = Data("HTTP/1.1 301 Moved\r\nContent-Length: 0\r\nCache-Control: max-age=60\r\nLocation: /caf".utf8)
      return .raw([.bytes(start + [0xE9] + Data("\r\n\r\n".utf8))])
    } _: { fixture, origin in
      for _ in 0..<2 {
        let result = try await fixture.cache.load(URLRequest(url: origin.url("/a")))
        #expect(result.data.text == "/caf%C3%A9")
      }
      #expect(origin.requestCount == 2)
    }
  }
}

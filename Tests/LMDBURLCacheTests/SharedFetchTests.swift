import CachingClient
import CurlTransport
import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Testing

/// How requests of all ways to load share fetches, and what they get from responses that are cut.
@Suite("Shared fetches", .timeLimit(.minutes(1)))
struct SharedFetchTests {
  private static let kept = [("Cache-Control", "max-age=600"), ("ETag", "\"1\"")]

  @Test("bytes(for:) delivers a stored part at once, and the rest as it arrives", arguments: [100, 4 << 20])
  func completion(byteCount: Int) async throws {
    let body = Data((0..<byteCount).map { UInt8(truncatingIfNeeded: $0 &* 31 ^ $0 >> 8) })
    let half = byteCount / 2
    let gate = Gate()
    try await withCache(memory: 0, disk: 256 << 20) { request in
      let isFirst = request["Range"] == "bytes=0-\(half - 1)"
      let range = isFirst ? 0..<half : half..<byteCount
      let fields = Self.kept + [("Content-Range", "bytes \(range.lowerBound)-\(range.upperBound - 1)/\(byteCount)")]
      let reply = Reply(206, fields, body: body[range])
      return isFirst ? reply : reply.held(at: gate, afterBodyBytes: 0)
    } _: { fixture, origin in
      let cache = fixture.cache
      _ = try await cache.data(for: URLRequest(origin.url("/a"), ["Range": "bytes=0-\(half - 1)"]))
      cache.flush()
      let (chunks, response) = try await cache.bytes(for: URLRequest(url: origin.url("/a")))
      #expect(response.status == 200)
      #expect(response.field("Content-Length") == "\(byteCount)")
      var received = Data()
      for try await chunk in chunks {
        received.append(chunk)
        if received.count == half { gate.open() }
      }
      #expect(received == body)
      #expect(try await cache.data(from: origin.url("/a")).0 == body)
      #expect(origin.requestCount == 2)
    }
  }

  @Test("A part that is cut ends bytes(for:) with an error, and the next request is for what is then missing")
  func cutCompletion() async throws {
    try await withCache { request in
      switch request["Range"] {
      case "bytes=0-4": Reply(206, Self.kept + [("Content-Range", "bytes 0-4/10")], "01234")
      case "bytes=7-": Reply(206, Self.kept + [("Content-Range", "bytes 7-9/10")], "789")
      case nil: Reply(200, Self.kept, "0123456789")
      default: Reply(206, Self.kept + [("Content-Range", "bytes 5-9/10")], "56789").cut(.inBody(after: 2))
      }
    } _: { fixture, origin in
      let cache = fixture.cache
      _ = try await cache.data(for: URLRequest(origin.url("/a"), ["Range": "bytes=0-4"]))
      // The stored part is not the response to a request for the whole.
      #expect(cache.cachedResponse(for: URLRequest(url: origin.url("/a"))) == nil)
      #expect(!cache.isCached(origin.url("/a")))
      let (chunks, _) = try await cache.bytes(for: URLRequest(url: origin.url("/a")))
      var received = Data()
      do {
        for try await chunk in chunks { received.append(chunk) }
        Issue.record("The body is not complete")
      } catch {
        #expect(error is URLError)
      }
      #expect(received.text.hasPrefix("01234"))
      #expect(try await cache.data(from: origin.url("/a")).0.text == "0123456789")
      #expect(origin.requestCount == 3)
    }
  }

  @Test("If the body is cut, a stale response is served where that is permitted, and nothing is removed")
  func staleOnCut() async throws {
    let clock = ManualClock()
    let fields = [("Cache-Control", "max-age=10, stale-if-error=600")]
    try await withCache(
      configure: {
        $0.clock = { clock.now }
        $0.caching.holdOff = nil
      },
      origin: { request in
        let reply = Reply(200, fields, "stored")
        return request.number == 0 ? reply : reply.cut(.inBody(after: request.number == 3 ? 0 : 2))
      }
    ) { fixture, origin in
      let cache = fixture.cache
      let request = URLRequest(url: origin.url("/a"))
      let stored = try await cache.data(for: request).0.text
      clock.advance(by: 60)
      let data = try await cache.data(for: request)
      let sessionData = try await fixture.session().data(for: request)
      let (chunks, response) = try await cache.bytes(for: request)
      let bytes = try await chunks.collect(upTo: 100)
      #expect([stored, data.0.text, sessionData.0.text, bytes.text] == Array(repeating: "stored", count: 4))
      #expect([data.1, sessionData.1, response].map { $0.field("Age") } == ["60", "60", "60"])
      #expect(cache.isCached(origin.url("/a")))
      #expect(origin.requestCount == 4)
    }
  }
}

import CurlTransport
import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Testing

/// Each way to load gets the form of the content that it would get from the origin alone, whichever way was first.
@Suite("Forms of encoded content", .timeLimit(.minutes(1)))
struct RepresentationTests {
  enum Way: CaseIterable {
    case data, bytes, session, sessionOfFoundation, undecoded

    /// Loads a request in this way, with caches on one directory.
    func load(_ request: URLRequest, _ caches: Caches) async throws -> (Data, URLResponse) {
      switch self {
      case .data: return try await caches.decoding.data(for: request)
      case .bytes:
        let (chunks, response) = try await caches.decoding.bytes(for: request)
        return (try await chunks.collect(upTo: .max), response)
      case .session: return try await caches.session.data(for: request)
      case .sessionOfFoundation: return try await caches.foundation.data(for: request)
      case .undecoded: return try await caches.undecoded.data(for: request)
      }
    }
  }

  /// Caches with different transports on one directory.
  struct Caches {
    let decoding: LMDBURLCache
    let undecoded: LMDBURLCache
    let foundation: LMDBURLCache
    let session: URLSession

    init(_ directory: URL) throws {
      func cache(_ transport: LMDBURLCache.Options.Transport) throws -> LMDBURLCache {
        var options = LMDBURLCache.Options()
        options.transport = transport
        return try LMDBURLCache(
          directory: directory, memoryCapacity: 1 << 20, diskCapacity: 16 << 20, options: options)
      }
      decoding = try cache(.curl(CurlTransport.Configuration()))
      var settings = CurlTransport.Configuration()
      settings.decodesContent = false
      undecoded = try cache(.curl(settings))
      foundation = try cache(.urlSession(.ephemeral))
      session = URLSession(configuration: .ephemeral.caching(with: decoding))
    }
  }

  static let gzipped = TransportDifferencesTests.gzipped
  static let gzippedTwice = TransportDifferencesTests.gzippedTwice
  /// "hello", which only Foundation decodes.
  static let brotli = Data([0x0b, 0x02, 0x80] + Array("hello".utf8) + [0x03])

  /// Content with its codings. An origin can send it to each client, with and without a `Vary`.
  static let contents: [(coding: String, body: Data)] = [
    ("gzip", gzipped), ("gzip, gzip", gzippedTwice), ("br", brotli),
  ]

  @Test(
    "Each way gets its own form of encoded content, whichever way was first",
    arguments: zip(Way.allCases + [.data], [true, false, true, false, true, false]))
  func forms(_ first: Way, varies: Bool) async throws {
    for (number, content) in Self.contents.enumerated() {
      let fields =
        [("Cache-Control", "max-age=600"), ("Content-Encoding", content.coding)]
        + (varies ? [("Vary", "Accept-Encoding")] : [])
      try await withCache { _ in
        Reply(200, fields, body: content.body)
      } _: { (fixture, origin) async throws in
        let caches = try Caches(fixture.directory.appendingPathComponent("forms"))
        // What each way gets alone.
        var alone: [Way: Data] = [:]
        for way in Way.allCases {
          alone[way] = try await way.load(URLRequest(url: origin.url("/alone/\(way)")), caches).0
        }
        let request = URLRequest(url: origin.url("/shared"))
        #expect(try await first.load(request, caches).0 == alone[first])
        for _ in 0..<2 {
          for way in Way.allCases {
            let (data, response) = try await way.load(request, caches)
            #expect(data == alone[way], "\(content.coding), \(first) then \(way)")
            #expect(response.field("Content-Encoding") == content.coding)
          }
        }
        // Each form was fetched once. The way that asks for no coding has a variant of its own if the origin says so.
        #expect(origin.requests.filter { $0.path == "/shared" }.count == (varies && number > 0 ? 3 : 2))
        #expect(alone[.data] == (number == 0 ? Data("hello".utf8) : content.body))
        #expect(alone[.undecoded] == content.body)
        for cache in [caches.decoding, caches.undecoded, caches.foundation] { #expect(cache.flush()) }
        #expect(caches.decoding.core.store?.checkInvariants() == [])
      }
    }
  }

  @Test(
    "A request that accepts only Brotli gets the form that its way delivers, whichever way was first",
    arguments: Way.allCases)
  func ownCoding(_ first: Way) async throws {
    try await withCache { request in
      let fields = [("Cache-Control", "max-age=600"), ("Vary", "Accept-Encoding")]
      guard request["Accept-Encoding"]?.contains("br") == true else { return Reply(200, fields, "hello") }
      return Reply(200, fields + [("Content-Encoding", "br")], body: Self.brotli)
    } _: { (fixture, origin) async throws in
      let caches = try Caches(fixture.directory.appendingPathComponent("forms"))
      func load(_ way: Way, _ path: String) async throws -> (body: Data, coding: String?) {
        let request = URLRequest(origin.url(path), ["Accept-Encoding": "br"])
        let (body, response) = try await way.load(request, caches)
        return (body, response.field("Content-Encoding"))
      }
      var alone: [Way: Data] = [:]
      for way in Way.allCases { alone[way] = try await load(way, "/alone/\(way)").body }
      #expect(alone[.data] == Self.brotli)
      for way in [first] + Way.allCases + Way.allCases {
        let (body, coding) = try await load(way, "/shared")
        #expect(body == alone[way], "\(first) then \(way)")
        #expect(coding == "br")
      }
      for cache in [caches.decoding, caches.undecoded, caches.foundation] { #expect(cache.flush()) }
    }
  }

  @Test("A request for a range of encoded content gets the form of its own transport, in each order")
  func ranges() async throws {
    let fields = [("Cache-Control", "max-age=600"), ("ETag", "\"1\""), ("Content-Encoding", "gzip")]
    try await withCache { request in
      guard request["Range"] != nil else { return Reply(200, fields, body: Self.gzipped) }
      return Reply(
        206, fields + [("Content-Range", "bytes 0-9/\(Self.gzipped.count)")], body: Data(Self.gzipped.prefix(10)))
    } _: { (fixture, origin) async throws in
      let caches = try Caches(fixture.directory.appendingPathComponent("forms"))
      for (number, ways) in [[Way.undecoded, .data], [.data, .undecoded], [.undecoded, .data, .undecoded]].enumerated()
      {
        let url = origin.url("/\(number)")
        for way in ways { _ = try await way.load(URLRequest(url: url), caches) }
        let range = URLRequest(url, ["Range": "bytes=0-9"])
        // Ranges count the bytes that the origin sends. A decoded response has others, and is returned whole.
        let decoded = try await Way.data.load(range, caches)
        #expect(decoded.0 == Data("hello".utf8))
        #expect(decoded.1.status == 200)
        #expect(decoded.1.cacheProvenance?.reason == .fresh)
        let encoded = try await Way.undecoded.load(range, caches)
        #expect(encoded.0 == Self.gzipped.prefix(10))
        #expect(encoded.1.status == 206)
      }
      for cache in [caches.decoding, caches.undecoded, caches.foundation] { #expect(cache.flush()) }
    }
  }

  @Test("A part of encoded content does not become the whole of a way that decodes it")
  func parts() async throws {
    let fields = [("Cache-Control", "max-age=600"), ("ETag", "\"1\""), ("Content-Encoding", "gzip")]
    let count = Self.gzipped.count
    try await withCache(configure: { $0.caching.storesPartialContent = true }) { request in
      guard let range = request["Range"] else { return Reply(200, fields, body: Self.gzipped) }
      let first = range.hasPrefix("bytes=0-") ? 0 : 10
      let part = Self.gzipped[first..<(first == 0 ? 10 : count)]
      return Reply(206, fields + [("Content-Range", "bytes \(first)-\(part.endIndex - 1)/\(count)")], body: Data(part))
    } _: { (fixture, origin) async throws in
      let request = URLRequest(origin.url("/a"), ["Range": "bytes=0-9", "Accept-Encoding": "gzip"])
      #expect(try await fixture.cache.data(for: request).0 == Self.gzipped.prefix(10))
      var whole = request
      whole.setValue(nil, forHTTPHeaderField: "Range")
      for _ in 0..<2 { #expect(try await fixture.cache.data(for: whole).0.text == "hello") }
    }
  }
}

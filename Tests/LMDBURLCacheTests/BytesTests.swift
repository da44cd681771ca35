import CachingClient
import CurlTransport
import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Testing

/// Bodies in chunks, with either transport.
@Suite("bytes(for:)", .timeLimit(.minutes(1)))
struct BytesTests {
  enum TransportKind: CaseIterable {
    case urlSession
    case curl
  }

  /// Runs `body` with a cache without a memory tier, so that hits come from the disk.
  private func withBytes(
    _ transport: TransportKind, memory: Int = 0, _ configure: (inout LMDBURLCache.Options) -> Void = { _ in },
    origin: @escaping LoopbackOrigin.Handler, _ body: (LMDBURLCache, LoopbackOrigin) async throws -> Void
  ) async throws {
    try await withCache(
      memory: memory, disk: 256 << 20,
      configure: { options in
        switch transport {
        case .urlSession: options.transport = .urlSession(.ephemeral)
        case .curl: options.transport = .curl(CurlTransport.Configuration())
        }
        configure(&options)
      }, origin: origin
    ) { fixture, origin in try await body(fixture.cache, origin) }
  }

  static let kept = [("Cache-Control", "max-age=600"), ("ETag", "\"1\"")]
  /// A body above the copying limit whose size is not a multiple of a chunk.
  static let large = Data((0..<(3 << 20) + 77).map { UInt8(truncatingIfNeeded: $0 &* 31 ^ $0 >> 8) })

  private func code(_ body: () async throws -> Void) async -> URLError.Code? {
    do {
      try await body()
      return nil
    } catch {
      return (error as? URLError)?.code
    }
  }

  @Test("The response is returned before its body arrives", arguments: TransportKind.allCases)
  func headFirst(_ transport: TransportKind) async throws {
    let gate = Gate()
    try await withBytes(
      transport, origin: { _ in Reply(200, Self.kept, "hello, world").held(at: gate, afterBodyBytes: 5) }
    ) {
      cache, origin in
      let (chunks, response) = try await cache.bytes(for: URLRequest(url: origin.url("/a")))
      #expect(response.status == 200)
      #expect(!gate.isOpen)
      gate.open()
      #expect(try await chunks.collect(upTo: 100).text == "hello, world")
      #expect(cache.isCached(origin.url("/a")))
    }
  }

  @Test(
    "A large body is stored as it arrives, and a hit reads it from the disk in chunks",
    arguments: TransportKind.allCases)
  func missAndHit(_ transport: TransportKind) async throws {
    try await withBytes(transport, origin: { _ in Reply(200, Self.kept, body: Self.large) }) { cache, origin in
      let request = URLRequest(url: origin.url("/a"))
      let (missed, _) = try await cache.bytes(for: request)
      #expect(try await missed.collect(upTo: .max) == Self.large)
      cache.flush()
      for _ in 0..<2 {
        let (chunks, response) = try await cache.bytes(for: request)
        #expect(chunks.bytes == nil)
        #expect(response.field("Age") != nil)
        var sizes: [Int] = []
        var body = Data()
        for try await chunk in chunks {
          sizes.append(chunk.count)
          body.append(chunk)
        }
        #expect(body == Self.large)
        #expect(sizes.allSatisfy { $0 <= 256 << 10 })
        #expect(sizes.count > 10)
      }
      #expect(origin.requestCount == 1)
      #expect(try await cache.data(for: request).0 == Self.large)
    }
  }

  @Test(
    "Small bodies are in memory, and larger ones once cachedResponse(for:) has copied them there",
    arguments: TransportKind.allCases
  )
  func inMemory(_ transport: TransportKind) async throws {
    try await withBytes(
      transport, memory: 64 << 20,
      origin: { Reply(200, Self.kept, body: $0.path == "/a" ? Self.large : Data("b".utf8)) }
    ) {
      cache, origin in
      for path in ["/a", "/b"] {
        let request = URLRequest(url: origin.url(path))
        let missed = try await cache.data(for: request).0
        cache.flush()
        #expect(try await cache.data(for: request).0 == missed)
        #expect(try await cache.bytes(for: request).0.bytes == (path == "/a" ? nil : missed))
        #expect(cache.cachedResponse(for: request)?.data == missed)
        #expect(try await cache.bytes(for: request).0.bytes == missed)
      }
    }
  }

  @Test("A range of a large stored body is read from the disk without the rest")
  func range() async throws {
    try await withBytes(.curl, origin: { _ in Reply(200, Self.kept, body: Self.large) }) { cache, origin in
      _ = try await cache.data(from: origin.url("/a"))
      cache.flush()
      let (chunks, response) = try await cache.bytes(
        for: URLRequest(origin.url("/a"), ["Range": "bytes=1000-2000999"]))
      #expect(response.status == 206)
      #expect(chunks.bytes == nil)
      #expect(try await chunks.collect(upTo: .max) == Self.large[1000..<2_001_000])
      #expect(origin.requestCount == 1)
    }
  }

  @Test("After a validation leader and followers read a large stored body from the disk")
  func confirmed() async throws {
    // The first followers wait for the leader's validation; later requests find the update before or after its commit.
    let gate = Gate()
    let handler: LoopbackOrigin.Handler = { request in
      let fields = [("Cache-Control", "max-age=1"), ("ETag", "\"1\"")]
      return request["If-None-Match"] == nil
        ? Reply(200, fields, body: Self.large) : Reply(304, fields).held(at: gate)
    }
    let clock = ManualClock()
    try await withBytes(.curl, { $0.clock = { clock.now } }, origin: handler) { cache, origin in
      let request = URLRequest(url: origin.url("/a"))
      _ = try await cache.data(for: request)
      cache.flush()
      clock.advance(by: 10)
      try await withThrowingTaskGroup(of: Data.self) { group in
        for _ in 0..<3 { group.addTask { try await cache.bytes(for: request).0.collect(upTo: .max) } }
        await gate.waitForArrivals()
        while cache.statistics.requests.waiting < 2 { await Task.yield() }
        gate.open()
        for try await body in group { #expect(body == Self.large) }
      }
      #expect(origin.requestCount == 2)
      for _ in 0..<2 {
        let (chunks, _) = try await cache.bytes(for: request)
        #expect(chunks.bytes == nil)
        #expect(try await chunks.collect(upTo: .max) == Self.large)
        #expect(try await cache.data(for: request).0 == Self.large)
        cache.flush()
      }
      #expect(origin.requestCount == 2)
    }
  }

  @Test(
    "A fetch ends if its caller releases the chunks or is cancelled", arguments: TransportKind.allCases, [true, false])
  func abandoned(_ transport: TransportKind, isCancelled: Bool) async throws {
    try await withBytes(transport, origin: { _ in .endless(200, [("Cache-Control", "max-age=600")]) }) {
      cache, origin in
      let request = URLRequest(url: origin.url("/a"))
      let task = Task {
        for try await _ in try await cache.bytes(for: request).0 where !isCancelled { return }
      }
      if isCancelled {
        await origin.waitForRequests(count: 1)
        task.cancel()
        #expect(await code { try await task.value } == .cancelled)
      } else {
        try await task.value
      }
      await origin.waitForAbandonedReplies()
      #expect(!cache.isCached(origin.url("/a")))
    }
  }

  @Test("A fetch continues for a follower after its leader has released the body", arguments: TransportKind.allCases)
  func sharedAfterAbandoning(_ transport: TransportKind) async throws {
    let gate = Gate()
    let reply = Reply(200, Self.kept, body: Self.large).held(at: gate, afterBodyBytes: 10)
    try await withBytes(transport, origin: { _ in reply }) { cache, origin in
      let request = URLRequest(url: origin.url("/a"))
      var first: ResponseBodyStream? = try await cache.bytes(for: request).0
      #expect(first?.bytes == nil)
      let second = Task { try await cache.bytes(for: request).0.collect(upTo: .max) }
      while cache.statistics.requests.coalesced < 1 { await Task.yield() }
      first = nil
      gate.open()
      #expect(try await second.value == Self.large)
      #expect(origin.requestCount == 1)
    }
  }

  @Test("A caller that does not read does not delay the followers", arguments: TransportKind.allCases)
  func followers(_ transport: TransportKind) async throws {
    let gate = Gate()
    let reply = Reply(200, Self.kept, body: Self.large).held(at: gate, afterBodyBytes: 10)
    try await withBytes(transport, origin: { _ in reply }) { cache, origin in
      let request = URLRequest(url: origin.url("/a"))
      let (unread, _) = try await cache.bytes(for: request)
      let others = [
        Task { try await cache.data(for: request).0 },
        Task { try await cache.bytes(for: request).0.collect(upTo: .max) },
      ]
      while cache.statistics.requests.coalesced < 2 { await Task.yield() }
      gate.open()
      for other in others { #expect(try await other.value == Self.large) }
      #expect(try await unread.collect(upTo: .max) == Self.large)
      #expect(origin.requestCount == 1)
    }
  }

  @Test("A body that is not stored is not fetched faster than its reader reads")
  func slowReader() async throws {
    // The origin reaches the gate after the first half was received, which is more than socket buffers hold.
    let gate = Gate()
    let half = Data(repeating: 0x78, count: 32 << 20)
    let reply = Reply(200, [("Cache-Control", "no-store")], parts: [.bytes(half), .hold(gate), .bytes(half)])
    try await withBytes(.curl, origin: { $0.path == "/large" ? reply : Reply(200, [], "small") }) { cache, origin in
      let (chunks, _) = try await cache.bytes(for: URLRequest(url: origin.url("/large")))
      for _ in 0..<200 {
        #expect(try await cache.data(from: origin.url("/small")).0.text == "small")
      }
      #expect(gate.arrivals == 0)
      gate.open()
      var byteCount = 0
      for try await chunk in chunks { byteCount += chunk.count }
      #expect(byteCount == 64 << 20)
      #expect(gate.arrivals == 1)
    }
  }

  @Test(
    "A truncated body throws after its last received bytes, and is not stored", arguments: TransportKind.allCases,
    [true, false])
  func broken(_ transport: TransportKind, isChunked: Bool) async throws {
    let gate = Gate()
    let reply = Reply(200, [("Cache-Control", "max-age=600")], body: Self.large).held(at: gate, afterBodyBytes: 400_000)
      .cut(
        .inBody(after: 400_001))
    try await withBytes(transport, origin: { _ in isChunked ? reply.chunked(byteCount: 1000) : reply }) {
      cache, origin in
      let (chunks, _) = try await cache.bytes(for: URLRequest(url: origin.url("/a")))
      gate.open()
      var received = Data()
      let code = await code { for try await chunk in chunks { received.append(chunk) } }
      // A session's error does not say that the transfer was truncated.
      #expect(transport == .curl ? code == .networkConnectionLost : code != nil)
      #expect(received == Self.large.prefix(received.count))
      #expect(!cache.isCached(origin.url("/a")))
    }
  }

  @Test("Reading a stored body throws after the body is removed")
  func removed() async throws {
    try await withBytes(.curl, origin: { _ in Reply(200, Self.kept, body: Self.large) }) { cache, origin in
      let request = URLRequest(url: origin.url("/a"))
      _ = try await cache.data(for: request)
      cache.flush()
      let (chunks, _) = try await cache.bytes(for: request)
      var iterator = chunks.makeAsyncIterator()
      #expect(try await iterator.next()?.count == 256 << 10)
      cache.removeAllCachedResponses()
      let code = await code {
        // The pages are reused only after the removal is applied, so that a first pass may still find them.
        while true {
          var iterator = chunks.makeAsyncIterator()
          while try await iterator.next() != nil {}
        }
      }
      #expect(code == .networkConnectionLost)
    }
  }

  @Test("Errors before the response head are thrown at once", arguments: TransportKind.allCases)
  func errors(_ transport: TransportKind) async throws {
    try await withBytes(transport, origin: { _ in .nothing }) { cache, origin in
      #expect(await code { _ = try await cache.bytes(for: URLRequest(url: origin.url("/a"))) } == .badServerResponse)
      let request = URLRequest(origin.url("/a"), policy: .returnCacheDataDontLoad)
      #expect(await code { _ = try await cache.bytes(for: request) } == .resourceUnavailable)
    }
  }
}

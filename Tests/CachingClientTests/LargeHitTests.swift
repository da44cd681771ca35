import CacheModel
import CachingClient
import CachingStorage
import FoundationEssentials
import HTTPCaching
import Testing

/// Hits of stored bodies that stay on disk until they are read.
@Suite("Large hits", .timeLimit(.minutes(1)))
struct LargeHitTests {
  private static let url = "http://example.com/large"
  private static let pieceByteCount = 1 << 20
  private static let pieceCount = 32
  private static let byteCount = pieceCount * pieceByteCount

  private static func piece(_ number: Int) -> Data { Data(repeating: UInt8(number), count: pieceByteCount) }

  private static func response(
    _ control: String = "max-age=600", pieceCount: Int = pieceCount
  ) -> IncomingResponse {
    IncomingResponse(
      head: ResponseHead(
        status: 200,
        fields: ["Cache-Control": control, "ETag": "\"1\"", "Content-Length": "\(pieceCount * pieceByteCount)"]),
      body: ResponseBodyStream(
        AsyncStream { pieces in
          for number in 0..<pieceCount { pieces.yield(piece(number)) }
          pieces.finish()
        }))
  }

  /// Runs a test with a cache that has stored a response. The memory tier could keep its body.
  private func withStored(
    _ stored: IncomingResponse = response(), clock: ManualClock = ManualClock(), mode: CachingOptions.Mode = .private,
    _ body: (ResponseCache, CachingClient<ResponseCache>) async throws -> Void
  ) async throws {
    var caching = CachingOptions.patient
    caching.mode = mode
    try await withDiskCache(
      memoryCapacity: 128 << 20, diskCapacity: 160 << 20, clock: clock, caching: caching
    ) { cache in
      let client = CachingClient(cache)
      let first = try await client.respond(to: get(Self.url), over: ScriptedTransport { _, _ in stored })
      for try await _ in first.body {}
      #expect(first.storage == .stored)
      #expect(cache.flush())
      try await body(cache, client)
    }
  }

  private func check(_ body: ResponseBodyStream, pieceCount: Int = pieceCount) async throws {
    var byteCount = 0
    for try await chunk in body {
      #expect(chunk.count <= Self.pieceByteCount)
      #expect(chunk.first == UInt8(byteCount / Self.pieceByteCount))
      byteCount += chunk.count
    }
    #expect(byteCount == pieceCount * Self.pieceByteCount)
  }

  /// The memory of this process that is not of files, in bytes.
  private func anonymousByteCount() throws -> Int {
    let status = String(
      decoding: try #require(FileManager.default.contents(atPath: "/proc/self/status")), as: UTF8.self)
    let line = try #require(status.split(separator: "\n").first { $0.hasPrefix("RssAnon:") })
    return try #require(Int(line.filter(\.isNumber))) * 1024
  }

  @Test("Responses from a large stored body hold nothing of it in memory")
  func memory() async throws {
    try await withStored { _, client in
      let range: HeaderFields = ["Range": "bytes=1048570-1048579"]
      let requests = [
        get(Self.url), get(Self.url, range), get(Self.url, method: "HEAD"), get(Self.url, ["If-None-Match": "\"1\""]),
      ]
      let before = try anonymousByteCount()
      // With copies of the body, they would hold 512 MiB.
      var responses: [CachingClientResponse<CacheEntry>] = []
      for _ in 0..<4 {
        for request in requests { responses.append(try #require(client.storedResponse(to: request))) }
      }
      #expect(try anonymousByteCount() < before + 64 << 20)
      #expect(responses.map(\.status).prefix(4) == [200, 206, 200, 304])
      #expect(responses[0].body.bytes == nil)
      try await check(responses[0].body)
      #expect(try await responses[1].body.collect(upTo: 10) == Data([0, 0, 0, 0, 0, 0, 1, 1, 1, 1]))
      #expect(responses[2].body.bytes == Data())
      #expect(responses[2].head.fields["Content-Length"] == "\(Self.byteCount)")
      #expect(responses[3].body.bytes == Data())
    }
  }

  @Test("Only the delivered bytes of a range count")
  func statistics() async throws {
    try await withStored { cache, client in
      let before = try #require(cache.statistics.directory).hitByteCount
      _ = try #require(client.storedResponse(to: get(Self.url, ["Range": "bytes=0-9"])))
      #expect(cache.statistics.directory?.hitByteCount == before + 10)
    }
  }

  @Test(
    "A body, or a range of it, that is removed after the lookup throws",
    arguments: [HeaderFields(), ["Range": "bytes=5-9"]])
  func removed(fields: HeaderFields) async throws {
    try await withStored { cache, client in
      let hit = try #require(client.storedResponse(to: get(Self.url, fields)))
      try await cache.purge(.all)
      await #expect(throws: CachingClientError.storedBodyLost) {
        // The pages are freed a little later, so that a first pass may still find them.
        while true { _ = try await hit.body.collect(upTo: .max) }
      }
    }
  }

  private struct Wrapper: WrappedCache {
    let base: ResponseCache
  }

  @Test("A storage over a cache delivers large bodies, too")
  func wrapped() async throws {
    let clock = ManualClock()
    try await withStored(clock: clock) { cache, _ in
      let client = CachingClient(storage: Wrapper(base: cache), clock: { clock.now })
      try await check(try #require(client.storedResponse(to: get(Self.url))).body)
      let range = try #require(client.storedResponse(to: get(Self.url, ["Range": "bytes=1048575-1048576"])))
      #expect(try await range.body.collect(upTo: 2) == Data([0, 1]))
    }
  }

  @Test("Followers share the validation of a large response, and read its body from disk")
  func validation() async throws {
    let clock = ManualClock()
    try await withStored(Self.response("max-age=60"), clock: clock) { _, client in
      clock.advance(by: 100)
      let gate = Gate()
      let transport = ScriptedTransport { _, _ in
        try await gate.pass()
        return IncomingResponse(
          head: ResponseHead(status: 304, fields: ["Cache-Control": "max-age=60", "ETag": "\"1\""]), body: .empty)
      }
      try await withThrowingTaskGroup(of: ResponseSource.self) { group in
        for number in 0..<4 {
          group.addTask {
            let response = try await client.respond(to: get(Self.url), over: transport)
            try await check(response.body)
            return response.source
          }
          if number == 0 { await until { transport.count == 1 } }
        }
        await until { client.statistics.waiting == 3 }
        gate.open()
        let sources = try await group.reduce(into: []) { $0.append($1) }
        #expect(sources.count { $0 == .coalesced } == 3)
      }
      #expect(transport.count == 1)
    }
  }

  @Test("A large response that its validation forbids to store is requested as a whole", arguments: [false, true])
  func forbidden(isShared: Bool) async throws {
    try await withStored(Self.response("no-cache"), mode: isShared ? .shared : .private) { _, client in
      let transport = ScriptedTransport { request, _ in
        guard request.head.fields.contains("If-None-Match") else { return Self.response("no-store", pieceCount: 2) }
        return IncomingResponse(
          head: ResponseHead(status: 304, fields: ["Cache-Control": "no-store", "ETag": "\"1\""]), body: .empty)
      }
      let response = try await client.respond(to: get(Self.url), over: transport)
      try await check(response.body, pieceCount: 2)
      #expect(transport.count == 2)
      #expect(client.storedResponse(to: get(Self.url)) == nil)
    }
  }
}

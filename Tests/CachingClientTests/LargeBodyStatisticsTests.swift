import CachingClient
import CachingStorage
import FoundationEssentials
import HTTPCaching
import Testing

/// The counts of bodies that arrive, and of parts.
@Suite("Statistics of large bodies", .timeLimit(.minutes(1)))
struct LargeBodyStatisticsTests {
  @Test("A body that arrives is counted with its bytes on disk, for all processes, and then as a part if it was cut")
  func counts() async throws {
    let directory = FileManager.default.temporaryDirectory.appending(path: "large-\(UUID().uuidString)")
    defer {
      // A leftover directory does no harm.
      try? FileManager.default.removeItem(at: directory)
    }
    let cache = try ResponseCache(directory: directory.path(), memoryCapacity: 1 << 20, diskCapacity: 64 << 20)
    // As another process sees it.
    let inspected = try CacheDirectory(existingAt: directory)
    let gate = Gate()
    let content = LargeBodyTests.content
    let transport = ScriptedTransport { _, _ in
      let body = content.stream {
        guard $0 > 3 << 20 else { return }
        try await gate.pass()
        throw Unreachable()
      }
      let fields: HeaderFields = [
        "Cache-Control": "max-age=600", "ETag": "\"1\"", "Content-Length": "\(content.byteCount)",
      ]
      return IncomingResponse(head: ResponseHead(status: 200, fields: fields), body: body)
    }
    #expect(inspected.unfinishedBodyCount == 0 && inspected.arrivingByteCount == 0)
    var request = get("http://example.com/large")
    request.readsBodyInPieces = true
    let response = try await CachingClient(cache).respond(to: request, over: transport)
    await until { inspected.arrivingByteCount >= 2_000_000 }
    #expect(inspected.unfinishedBodyCount == 1)
    #expect(inspected.arrivingByteCount <= 4 << 20)
    #expect(cache.statistics.disk?.unfinishedBodyCount == 1)
    #expect(cache.statistics.disk?.arrivingByteCount ?? 0 >= 2_000_000)
    #expect(cache.prometheusText().contains(/urlcache_unfinished_bodies\{[^}]*\} 1\n/))
    #expect(inspected.prometheusText().contains(/urlcache_unfinished_body_bytes\{[^}]*\} [1-9]\d{6}\n/))
    gate.open()
    await #expect(throws: Unreachable.self) { _ = try await content.check(response.body) }
    #expect(cache.flush())
    await until { inspected.unfinishedBodyCount == 0 }
    #expect(cache.statistics.directory?.storedParts == 1)
    #expect(cache.prometheusText().contains(/urlcache_stored_parts_total\{[^}]*\} 1\n/))
    #expect(inspected.entryCount == 1)
  }
}

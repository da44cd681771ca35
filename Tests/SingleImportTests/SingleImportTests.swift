import LMDBURLCache
import LoopbackOrigin
import Testing

@Suite("A single import")
struct SingleImportTests {
  @Test("A file that imports LMDBURLCache alone loads, streams, inspects and purges")
  func suffices() async throws {
    let directory = FileManager.default.temporaryDirectory.appendingPathComponent("import-\(UUID().uuidString)")
    defer { try? FileManager.default.removeItem(at: directory) }  // A leftover directory does no harm.
    let origin = try LoopbackOrigin { _ in Reply(200, [("Cache-Control", "max-age=600")], "hello") }
    defer { origin.stop() }
    let url = origin.url("/a")
    let cache = try LMDBURLCache(directory: directory, memoryCapacity: 1 << 20, diskCapacity: 16 << 20)
    let session = URLSession(configuration: .default.caching(with: cache))
    #expect(String(decoding: try await load(url, through: cache, and: session), as: UTF8.self) == "hello")
    #expect(origin.requestCount == 1)
    #expect(inspect(cache) == 3)
    try await remove(url, since: Date(timeIntervalSinceNow: -600), from: cache)
    #expect(!cache.isCached(url))
  }
}

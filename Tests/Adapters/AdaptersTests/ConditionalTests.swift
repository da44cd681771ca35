import Foundation
import FoundationNetworking
import Origin
import Testing

@Suite("The article on developing on a Mac")
struct ConditionalTests {
  @Test("On Linux the session of the example caches with this package")
  func caches() async throws {
    let directory = FileManager.default.temporaryDirectory.appendingPathComponent("conditional-\(UUID().uuidString)")
    defer { try? FileManager.default.removeItem(at: directory) }  // A leftover directory does no harm.
    let origin = try LoopbackOrigin { _ in Reply(200, [("Cache-Control", "max-age=600")], "hello") }
    let session = try makeCachingSession(in: directory)
    for _ in 0..<2 {
      let (data, _) = try await session.data(for: URLRequest(url: origin.url("/page")))
      #expect(String(decoding: data, as: UTF8.self) == "hello")
    }
    #expect(origin.requestCount == 1)
    session.invalidateAndCancel()
    origin.stop()
  }
}

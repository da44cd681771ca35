import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Testing

/// Queries in the walks over a directory: each response has its method and content, and records of key spaces are left
/// out.
@Suite("Inspection of queries", .timeLimit(.minutes(1)))
struct QueryInspectionTests {
  @Test("Entries are responses alone, with the method and the size of the content, and purges count these")
  func entries() async throws {
    try await withCache {
      $0.overrides = { _ in RequestOverrides(treatsAsQuery: true) }
    } origin: { _ in
      Reply(200, [("Cache-Control", "max-age=600")], "body")
    } _: { fixture, origin in
      let cache = fixture.cache
      for (method, content) in [("QUERY", "1"), ("QUERY", "22"), ("POST", "333"), ("GET", nil)] {
        var request = URLRequest(url: origin.url("/a"))
        request.httpMethod = method
        request.httpBody = content.map { Data($0.utf8) }
        _ = try await cache.data(for: request)
      }
      #expect(cache.flush())
      let expected = ["GET -", "POST 3", "QUERY 1", "QUERY 2"]
      func text(_ entry: CacheDirectory.Entry) -> String {
        #expect(entry.url == origin.url("/a").absoluteString && entry.bodyByteCount == 4)
        return "\(entry.method) \(entry.queryContent.map { "\($0.byteCount)" } ?? "-")"
      }
      #expect(cache.entries().map(text).sorted() == expected)
      #expect(Set(cache.entries().compactMap { $0.queryContent?.digest }).count == 3)
      var found: [String] = []
      let directory = try CacheDirectory(existingAt: fixture.directory)
      directory.forEachEntry(in: .stored) {
        found.append(text($0))
        return true
      }
      #expect(found.sorted() == expected)
      #expect(try directory.remove(.url(origin.url("/a")))?.entryCount == 4)
    }
  }
}

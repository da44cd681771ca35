import Foundation
import FoundationNetworking
import Glibc
import Testing

@testable import LMDBURLCache

@Suite("What a recovery leaves behind")
struct RecoveryLeakTests {
  /// How many descriptors this process has open, and how many parts of its memory are mapped from the directory's
  /// files.
  private static func held(of directory: URL) throws -> [Int] {
    let maps = try String(contentsOfFile: "/proc/self/maps", encoding: .utf8)
    let descriptors = try FileManager.default.contentsOfDirectory(atPath: "/proc/self/fd").filter {
      // One that was closed meanwhile is none of ours.
      (try? FileManager.default.destinationOfSymbolicLink(atPath: "/proc/self/fd/\($0)"))?.hasPrefix(directory.path)
        == true
    }
    return [descriptors.count, maps.split(separator: "\n").count { $0.contains(directory.path) }]
  }

  // Issue 14, item 15.
  @Test("Once ten recoveries are over, no more descriptors and mappings are held than before, and no older store")
  func recoveries() async throws {
    let fixture = try CacheFixture()
    let cache = fixture.cache
    let url = URL(string: "http://example.com/a")!
    let patience = ContinuousClock.now + .seconds(60)
    weak let first = cache.core.store
    let before = try Self.held(of: fixture.directory)
    for _ in 0..<10 {
      try FileManager.default.removeItem(at: fixture.directory)
      cache.storeCachedResponse(cached(url), for: URLRequest(url: url))
      cache.flush()
      // Without the pause that follows a recovery.
      cache.core.recovery.withLock { $0 = Recovery() }
      while cache.core.store?.isGivenUp != false, ContinuousClock.now < patience {
        _ = cache.isCached(url)
        try await Task.sleep(for: .milliseconds(1))
      }
      cache.storeCachedResponse(cached(url), for: URLRequest(url: url))
      #expect(cache.isCached(url))
    }
    cache.flush()
    // The thread of the last recovery may still be at it.
    while try first != nil || Self.held(of: fixture.directory) != before, ContinuousClock.now < patience {
      try await Task.sleep(for: .milliseconds(10))
    }
    #expect(first == nil)
    #expect(try Self.held(of: fixture.directory) == before)
    await fixture.finish()
  }
}

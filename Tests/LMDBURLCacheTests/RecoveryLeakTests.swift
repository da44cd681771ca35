import Foundation
import FoundationNetworking
import Glibc
import LMDBURLCache
import Testing

@Suite("Resources after recovery", .endsFixtures)
struct RecoveryLeakTests {
  /// Returns the number of mappings of the directory's counters, or of its other files.
  private static func mappingCount(of directory: URL, ofCounters: Bool) throws -> Int {
    // Not String(contentsOfFile:), which reads only the first page of this file.
    let file = try FileHandle(forReadingFrom: URL(fileURLWithPath: "/proc/self/maps"))
    let maps = String(decoding: try file.readToEnd() ?? Data(), as: UTF8.self)
    return maps.split(separator: "\n").count {
      $0.contains(directory.path) && $0.contains("LMDBURLCache.counters") == ofCounters
    }
  }

  /// Returns the number of the process's descriptors and mappings of the directory's files, without the counters.
  private static func held(of directory: URL) throws -> [Int] {
    let descriptors = try FileManager.default.contentsOfDirectory(atPath: "/proc/self/fd").filter {
      // A descriptor that was closed meanwhile is not counted.
      (try? FileManager.default.destinationOfSymbolicLink(atPath: "/proc/self/fd/\($0)"))?.hasPrefix(directory.path)
        == true
    }
    return [descriptors.count, try mappingCount(of: directory, ofCounters: false)]
  }

  @Test("After ten recoveries no additional descriptors and mappings are open, and no older store")
  func recoveries() async throws {
    let fixture = try CacheFixture()
    let cache = fixture.cache
    let url = URL(string: "http://example.com/a")!
    let deadline = ContinuousClock.now + .seconds(60)
    weak let first = cache.core.store
    let before = try Self.held(of: fixture.directory)
    for _ in 0..<10 {
      try FileManager.default.removeItem(at: fixture.directory)
      cache.storeCachedResponse(cached(url), for: URLRequest(url: url))
      cache.flush()
      // Skips the pause after a recovery.
      cache.core.connection.state.withLock { $0.attempts = ConnectionState.Backoff() }
      while cache.core.store?.hasFailed != false, ContinuousClock.now < deadline {
        _ = cache.isCached(url)
        try await Task.sleep(for: .milliseconds(1))
      }
      cache.storeCachedResponse(cached(url), for: URLRequest(url: url))
      #expect(cache.isCached(url))
    }
    cache.flush()
    // The thread of the last recovery may still be running.
    while try first != nil || Self.held(of: fixture.directory) != before, ContinuousClock.now < deadline {
      try await Task.sleep(for: .milliseconds(10))
    }
    #expect(first == nil)
    #expect(try Self.held(of: fixture.directory) == before)
    // The counters of eight earlier stores stay mapped, as threads may be counting there.
    #expect(try Self.mappingCount(of: fixture.directory, ofCounters: true) <= 9)
  }
}

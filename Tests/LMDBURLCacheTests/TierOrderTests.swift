import Foundation
import FoundationNetworking
import LMDB
import LMDBURLCache
import LoopbackOrigin
import ResponseStore
import Synchronization
import Testing

/// Which of several responses a lookup finds during writes.
@Suite("Order of the tiers", .endsFixtures, .timeLimit(.minutes(1)))
struct TierOrderTests {
  private func response(_ url: URL, _ version: UInt8, byteCount: Int, _ fields: [String: String] = [:])
    -> CachedURLResponse
  {
    CachedURLResponse(
      response: httpResponse(url, fields.merging(["Cache-Control": "max-age=600"]) { $1 }),
      data: Data(repeating: version, count: byteCount))
  }

  @Test("After a write has returned, no lookup finds an older response", arguments: [3 << 20, 5 << 20])
  func newestVersion(memory: Int) async throws {
    let fixture = try CacheFixture(memory: memory, disk: 64 << 20)
    let cache = fixture.cache
    let url = URL(string: "http://example.com/a")!
    let isOver = Atomic(false)
    let stored = Atomic<UInt8>(0)
    let violationCount = Atomic(0)
    let readers = DispatchGroup()
    for _ in 0..<2 {
      DispatchQueue(label: "reader").async(group: readers) {
        while !isOver.load(ordering: .relaxed) {
          let minimum = stored.load(ordering: .acquiring)
          let version = cache.cachedResponse(for: URLRequest(url: url))?.data.first
          if let version, version < minimum { violationCount.add(1, ordering: .relaxed) }
        }
      }
    }
    for version in UInt8(1)...24 {
      // Every second response exceeds the memory tier or evicts everything else from it.
      let byteCount = version % 2 == 0 ? 4 << 20 : 1 << 20
      cache.storeCachedResponse(response(url, version, byteCount: byteCount), for: URLRequest(url: url))
      stored.store(version, ordering: .releasing)
      let found = cache.cachedResponse(for: URLRequest(url: url))?.data.first
      #expect(found == nil || found == version)
      if version % 8 == 0 { cache.flush() }
    }
    isOver.store(true, ordering: .relaxed)
    await withCheckedContinuation { continuation in readers.notify(queue: .global()) { continuation.resume() } }
    #expect(violationCount.load(ordering: .relaxed) == 0)
  }

  @Test("A newer variant too large for memory is preferred to an older one in memory")
  func tooLargeVariant() async throws {
    let fixture = try CacheFixture(memory: 1 << 20, disk: 64 << 20)
    let cache = fixture.cache
    let url = URL(string: "http://example.com/a")!
    let request = URLRequest(url, ["Accept": "text/html", "Accept-Language": "de"])
    cache.storeCachedResponse(
      response(url, 1, byteCount: 10, ["Vary": "Accept", "Date": "Fri, 15 Jan 2027 08:00:00 GMT"]), for: request)
    #expect(cache.cachedResponse(for: request)?.data.first == 1)
    cache.storeCachedResponse(
      response(url, 2, byteCount: 2 << 20, ["Vary": "Accept-Language", "Date": "Fri, 15 Jan 2027 08:00:10 GMT"]),
      for: request)
    #expect(cache.cachedResponse(for: request)?.data.first == 2)
    // A request that only the older variant matches still finds it.
    let other = URLRequest(url, ["Accept": "text/html", "Accept-Language": "fr"])
    #expect(cache.cachedResponse(for: other)?.data.first == 1)
    #expect(cache.cachedResponse(for: request)?.data.first == 2)
  }

  @Test("A response that is not stored on disk removes the older one", arguments: [true, false])
  func notOnDisk(isMemoryOnly: Bool) async throws {
    let fixture = try CacheFixture(memory: 20_000, disk: 4 << 20)
    let cache = fixture.cache
    let url = URL(string: "http://example.com/a")!
    cache.storeCachedResponse(response(url, 1, byteCount: 10_000), for: URLRequest(url: url))
    #expect(cache.flush())
    // For memory only, or larger than the maximum record.
    let newer = CachedURLResponse(
      response: httpResponse(url, ["Cache-Control": "max-age=600"]),
      data: Data(repeating: 2, count: isMemoryOnly ? 10_000 : 3 << 20), userInfo: nil,
      storagePolicy: isMemoryOnly ? .allowedInMemoryOnly : .allowed)
    cache.storeCachedResponse(newer, for: URLRequest(url: url))
    let found = cache.cachedResponse(for: URLRequest(url: url))?.data.first
    #expect(found == (isMemoryOnly ? 2 : nil))
    // This evicts the response from memory.
    cache.memoryCapacity = 0
    #expect(!cache.isCached(url))
    cache.flush()
    #expect(!cache.isCached(url))
    #expect(cache.core.store?.entryCount == 0)
  }
}

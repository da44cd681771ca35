import Foundation
import FoundationNetworking
import Glibc
import LMDBURLCache
import ResponseStore
import Testing

@Suite("A disk tier that cannot be opened because of other processes")
struct WaitingForDiskTests {
  private func url(_ name: String) -> URL { URL(string: "http://example.com/\(name)")! }

  private func store(_ name: String, in cache: LMDBURLCache) {
    cache.storeCachedResponse(cached(url(name)), for: URLRequest(url: url(name)))
  }

  @Test("Nothing is kept until the directory can be opened, and removals in the meantime take effect")
  func waiting() async throws {
    let directory = FileManager.default.temporaryDirectory.appendingPathComponent("waiting-\(UUID().uuidString)")
    // A leftover directory does no harm.
    defer { try? FileManager.default.removeItem(at: directory) }
    do {
      let cache = try LMDBURLCache(directory: directory, memoryCapacity: 0, diskCapacity: 4 << 20)
      store("old", in: cache)
      #expect(cache.flush())
    }
    // Simulates a process of another PID namespace that has the directory open.
    let others = open(directory.path + "/users.lock", O_RDWR | O_CLOEXEC)
    // The exclusive lock first: the first cache may still be closing its store.
    waitUntil { flock(others, LOCK_EX | LOCK_NB) == 0 }
    waitUntil { flock(others, LOCK_SH | LOCK_NB) == 0 }
    var namespace: UInt64 = 1
    #expect(pwrite(others, &namespace, 8, 192) == 8)

    let cache = LMDBURLCache(memoryCapacity: 1 << 20, diskCapacity: 4 << 20, diskPath: directory.path)
    #expect(cache.core.store == nil)
    store("new", in: cache)
    #expect(!cache.isCached(url("new")))
    // A process with the directory open and this cache could not inform each other of removals.
    cache.removeCachedResponse(for: URLRequest(url: url("old")))

    close(others)
    try await waitInTask {
      // A lookup triggers the next attempt.
      _ = cache.isCached(url("old"))
      return cache.core.store != nil
    }
    #expect(!cache.isCached(url("old")))
    store("new", in: cache)
    #expect(cache.isCached(url("new")))
    #expect(cache.flush())
    #expect(cache.core.store?.checkInvariants() == [])
    let second = try LMDBURLCache(directory: directory, memoryCapacity: 0, diskCapacity: 4 << 20)
    second.removeAllCachedResponses()
    #expect(!cache.isCached(url("new")))
  }
}

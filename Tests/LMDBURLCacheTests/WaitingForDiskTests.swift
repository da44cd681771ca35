import Foundation
import FoundationNetworking
import Glibc
import ResponseStore
import Testing

@testable import LMDBURLCache

@Suite("A disk tier that others keep from being opened")
struct WaitingForDiskTests {
  private func url(_ name: String) -> URL { URL(string: "http://example.com/\(name)")! }

  private func store(_ name: String, in cache: LMDBURLCache) {
    cache.storeCachedResponse(cached(url(name)), for: URLRequest(url: url(name)))
  }

  // Issue 14, item 18.
  @Test("Nothing is kept until the directory can be opened, and what is removed meanwhile stays so")
  func waiting() async throws {
    let directory = FileManager.default.temporaryDirectory.appendingPathComponent("waiting-\(UUID().uuidString)")
    // What is left in the temporary directory fails no test.
    defer { try? FileManager.default.removeItem(at: directory) }
    do {
      let cache = try LMDBURLCache(directory: directory, memoryCapacity: 0, diskCapacity: 4 << 20)
      store("old", in: cache)
      #expect(cache.flush())
    }
    // As a process of another PID namespace has it open.
    let others = open(directory.path + "/users.lock", O_RDWR | O_CLOEXEC)
    // Alone first: the first cache may still be about to close its store.
    while flock(others, LOCK_EX | LOCK_NB) != 0 { usleep(1000) }
    while flock(others, LOCK_SH | LOCK_NB) != 0 { usleep(1000) }
    var namespace: UInt64 = 1
    #expect(pwrite(others, &namespace, 8, 192) == 8)

    let cache = LMDBURLCache(memoryCapacity: 1 << 20, diskCapacity: 4 << 20, diskPath: directory.path)
    #expect(cache.core.store == nil)
    store("new", in: cache)
    #expect(!cache.isCached(url("new")))
    // Whoever had it open could not have told this cache, nor it them.
    cache.removeCachedResponse(for: URLRequest(url: url("old")))

    close(others)
    let patience = ContinuousClock.now + .seconds(60)
    while cache.core.store == nil, ContinuousClock.now < patience {
      // A lookup is what sets it off.
      _ = cache.isCached(url("old"))
      try await Task.sleep(for: .milliseconds(5))
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

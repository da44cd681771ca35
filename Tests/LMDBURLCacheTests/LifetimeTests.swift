import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Testing

/// No object lives longer than it is needed.
@Suite("Object lifetimes")
struct LifetimeTests {
  @Test("Releasing the last reference to a cache closes its store and keeps the stored responses")
  func cache() async throws {
    let origin = try LoopbackOrigin { _ in Reply(200, [("Cache-Control", "max-age=600")], "a") }
    defer { origin.stop() }
    weak var weakCache: LMDBURLCache?
    weak var weakStore: AnyObject?
    let directory = FileManager.default.temporaryDirectory.appendingPathComponent("cache-\(UUID().uuidString)")
    defer { try? FileManager.default.removeItem(at: directory) }
    do {
      let cache = try LMDBURLCache(directory: directory, memoryCapacity: 1 << 20, diskCapacity: 8 << 20)
      weakCache = cache
      weakStore = cache.core.store
      _ = try await cache.data(from: origin.url("/a"))
      _ = try await cache.data(from: origin.url("/a"))
      let session = URLSession(configuration: .ephemeral.caching(with: cache))
      _ = try await session.data(from: origin.url("/b"))
      _ = try await session.data(from: origin.url("/b"))
      let delegate = RecordingDelegate()
      let delegated = URLSession(configuration: .ephemeral.caching(with: cache), delegate: delegate, delegateQueue: nil)
      await delegate.run(delegated.dataTask(with: origin.url("/c")))
      session.finishTasksAndInvalidate()
      delegated.finishTasksAndInvalidate()
    }
    // Foundation releases a finished task on its own queues.
    let deadline = ContinuousClock.now + .seconds(5)
    while weakCache != nil, ContinuousClock.now < deadline { await Task.yield() }
    #expect(weakCache == nil)
    while weakStore != nil, ContinuousClock.now < deadline { await Task.yield() }
    #expect(weakStore == nil)
    let again = try LMDBURLCache(directory: directory, memoryCapacity: 0, diskCapacity: 8 << 20)
    for path in ["/a", "/b", "/c"] { #expect(again.isCached(origin.url(path)), "\(path)") }
    #expect(again.core.store?.checkInvariants() == [])
  }

  @Test("Opening and releasing caches of one directory loses no response")
  func reopening() async throws {
    let directory = FileManager.default.temporaryDirectory.appendingPathComponent("cache-\(UUID().uuidString)")
    defer { try? FileManager.default.removeItem(at: directory) }
    for number in 0..<20 {
      let cache = try LMDBURLCache(directory: directory, memoryCapacity: 0, diskCapacity: 8 << 20)
      let url = URL(string: "http://example.com/\(number)")!
      cache.storeCachedResponse(cached(url), for: URLRequest(url: url))
      for earlier in 0...number { #expect(cache.isCached(URL(string: "http://example.com/\(earlier)")!)) }
    }
  }
}

import CachingClient
import Foundation
import FoundationNetworking
import LMDBURLCache
import Logging
import Metrics
import Origin
import ServiceLifecycle
import Synchronization
import Testing

@Suite("The hooks for logging, metrics and the lifecycle")
struct HookTests {
  private let directory = TemporaryDirectory()

  private func openCache(log: @escaping @Sendable (String) -> Void = { _ in }) throws -> LMDBURLCache {
    var options = LMDBURLCache.Options()
    options.log(to: Logger(label: "cache", handler: log))
    return try LMDBURLCache(
      directory: directory.url, memoryCapacity: 1 << 20, diskCapacity: 16 << 20, options: options)
  }

  @Test("A logger gets the line that says that the directory was deleted")
  func forwardsLines() async throws {
    let lines = Mutex<[String]>([])
    let gate = Gate()
    let cache = try openCache { line in
      lines.withLock { $0.append(line) }
      gate.open()
    }
    try FileManager.default.removeItem(at: directory.url)
    _ = cache.flush()
    #expect(await gate.waitUntilOpen())
    let logged = lines.withLock { $0 }
    #expect(logged.contains { $0.hasPrefix("warning: ") && $0.contains(directory.url.lastPathComponent) }, "\(logged)")
  }

  @Test("Counters grow by what the cache did since the last publication, and gauges show what it holds")
  func publishesStatistics() async throws {
    let origin = try LoopbackOrigin { request in
      Reply(200, [("Cache-Control", request.path == "/a" ? "max-age=600" : "no-store")], "hello")
    }
    let cache = try openCache()
    let metrics = CacheMetrics()
    for path in ["/a", "/a", "/b"] {
      _ = try await cache.data(for: URLRequest(url: origin.url(path)))
      metrics.publish(cache.statistics)
    }
    cache.flush()
    metrics.publish(cache.statistics)
    let values = publishedMetrics.withLock { $0 }
    #expect(values["lmdburlcache_hits"] == 1)
    #expect(values["lmdburlcache_misses"] == 2)
    #expect(values["lmdburlcache_stored"] == 1)
    #expect(values["lmdburlcache_disk_entries"] == 1)
    #expect(values.filter { $0.key.hasPrefix("lmdburlcache_refused{rule=") }.map(\.value) == [1])

    let publishing = Task { try await metrics.publish(cache, every: .seconds(3600)) }
    publishing.cancel()
    await #expect(throws: CancellationError.self) { try await publishing.value }
  }

  private static func storeResponses(in cache: LMDBURLCache) {
    for number in 0..<100 {
      guard let url = URL(string: "http://example.com/\(number)"),
        let response = HTTPURLResponse(
          url: url, statusCode: 200, httpVersion: nil, headerFields: ["Cache-Control": "max-age=3600"])
      else { continue }
      let stored = CachedURLResponse(response: response, data: Data(repeating: 1, count: 32 << 10))
      cache.storeCachedResponse(stored, for: URLRequest(url: url))
    }
  }

  /// A server that stores responses when it shuts down.
  private struct Server: Service {
    let cache: LMDBURLCache
    let started = Gate()

    func run() async throws {
      started.open()
      try await gracefulShutdown()
      HookTests.storeResponses(in: cache)
    }
  }

  @Test("A graceful shutdown ends the server first, and then makes its responses durable")
  func flushesOnShutdown() async throws {
    let cache = try openCache()
    let server = Server(cache: cache)
    let group = ServiceGroup(services: [CacheService(cache: cache), server], logger: Logger(label: "group") { _ in })
    let running = Task { try await group.run() }
    #expect(await server.started.waitUntilOpen())
    await group.triggerGracefulShutdown()
    try await running.value
    let disk = try #require(cache.statistics.disk)
    #expect(disk.queuedByteCount == 0)
    #expect(disk.entryCount == 100)
  }

  @Test("Cancelling the service makes the responses durable, too")
  func flushesOnCancellation() async throws {
    let cache = try openCache()
    let gate = Gate()
    let running = Task {
      // The task is cancelled before the service begins.
      _ = await gate.waitUntilOpen()
      Self.storeResponses(in: cache)
      try await CacheService(cache: cache).run()
    }
    running.cancel()
    gate.open()
    try await running.value
    let disk = try #require(cache.statistics.disk)
    #expect(disk.queuedByteCount == 0)
    #expect(disk.entryCount == 100)
  }

  @Test("The example server ends, with its cache, when its task is cancelled")
  func endsTogether() async throws {
    let cache = try openCache()
    let server = Server(cache: cache)
    let running = Task { try await AdaptersTests.run(server, with: cache, logger: Logger(label: "group") { _ in }) }
    #expect(await server.started.waitUntilOpen())
    running.cancel()
    await #expect(throws: CancellationError.self) { try await running.value }
  }
}

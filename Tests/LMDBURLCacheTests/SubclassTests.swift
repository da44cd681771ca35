import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Synchronization
import Testing

/// Subclasses see every lookup and every write.
@Suite("Subclasses")
struct SubclassTests {
  /// Records its calls and stores nothing itself.
  class Watching: LMDBURLCache, @unchecked Sendable {
    // Sendable like its superclass: the mutable state is protected by locks.
    let lookups = Mutex<[String]>([])
    let stores = Mutex<[String]>([])

    override func cachedResponse(for request: URLRequest) -> CachedURLResponse? {
      lookups.withLock { $0.append(request.url?.path ?? "") }
      return super.cachedResponse(for: request)
    }

    override func storeCachedResponse(_ cachedResponse: CachedURLResponse, for request: URLRequest) {
      stores.withLock { $0.append("\(request.url?.path ?? "") \(cachedResponse.data.text)") }
      super.storeCachedResponse(cachedResponse, for: request)
    }
  }

  /// Stores everything in its own dictionary, using only the task methods.
  final class ByTask: LMDBURLCache, @unchecked Sendable {
    // Sendable like its superclass: the mutable state is protected by locks.
    let kept = Mutex<[URL: CachedURLResponse]>([:])

    override func getCachedResponse(
      for dataTask: URLSessionDataTask, completionHandler: @escaping (CachedURLResponse?) -> Void
    ) {
      let found = dataTask.currentRequest?.url.flatMap { url in kept.withLock { Box($0[url]) } }
      completionHandler(found?.value)
    }

    override func storeCachedResponse(_ cachedResponse: CachedURLResponse, for dataTask: URLSessionDataTask) {
      guard let url = dataTask.currentRequest?.url else { return }
      // A copy, as a subclass's own storage would create.
      let copy = CachedURLResponse(response: cachedResponse.response, data: cachedResponse.data)
      kept.withLock { $0[url] = copy }
    }
  }

  /// Keeps what it is to store, until it is told to store it.
  final class Deferring: LMDBURLCache, @unchecked Sendable {
    // Sendable like its superclass: the mutable state is protected by a lock.
    private let kept = Mutex<(response: Box, request: URLRequest)?>(nil)

    override func storeCachedResponse(_ cachedResponse: CachedURLResponse, for request: URLRequest) {
      kept.withLock { $0 = (Box(cachedResponse), request) }
    }

    func storeKept() throws {
      let (response, request) = try #require(kept.withLock { $0 })
      super.storeCachedResponse(try #require(response.value), for: request)
    }
  }

  struct Box: @unchecked Sendable {
    // Sendable because a cached response does not change.
    let value: CachedURLResponse?
    init(_ value: CachedURLResponse?) { self.value = value }
  }

  func directory() -> URL {
    FileManager.default.temporaryDirectory.appendingPathComponent("cache-\(UUID().uuidString)")
  }

  @Test("A subclass sees each lookup and write of sessions and direct loads, including updates by a 304")
  func watching() async throws {
    let origin = try LoopbackOrigin { request in
      request["If-None-Match"] == nil
        ? Reply(200, [("Cache-Control", "max-age=0"), ("ETag", "\"1\"")], "body")
        : Reply(304, [("ETag", "\"1\""), ("Cache-Control", "max-age=600")])
    }
    defer { origin.stop() }
    let directory = directory()
    defer { try? FileManager.default.removeItem(at: directory) }
    let cache = try Watching(directory: directory, memoryCapacity: 1 << 20, diskCapacity: 4 << 20)
    let session = URLSession(configuration: .ephemeral.caching(with: cache))
    for path in ["/session", "/direct"] {
      for step in 0..<3 {
        let before = cache.lookups.withLock { $0.count }
        let url = origin.url(path)
        let data = try await path == "/session" ? session.data(from: url).0 : cache.data(from: url).0
        #expect(data.text == "body")
        #expect(cache.lookups.withLock { $0.dropFirst(before).contains(path) }, "\(step)")
      }
    }
    #expect(origin.requestCount == 4)
    let stores = cache.stores.withLock { $0 }
    #expect(stores == ["/session body", "/session body", "/direct body", "/direct body"])
  }

  @Test("A fetched response that a subclass stores later stays removed, but can be stored again as the caller's own")
  func deferring() async throws {
    let origin = try LoopbackOrigin { _ in Reply(200, [("Cache-Control", "max-age=600")], "body") }
    defer { origin.stop() }
    let cache = try Deferring(directory: directory(), memoryCapacity: 1 << 20, diskCapacity: 4 << 20)
    let url = origin.url("/a")
    _ = try await cache.data(from: url)
    #expect(!cache.isCached(url))
    try await cache.purge(.all)
    try cache.storeKept()
    #expect(!cache.isCached(url))
    try cache.storeKept()
    #expect(cache.isCached(url))
  }

  @Test("Responses that a subclass stores elsewhere are served while fresh, and revalidated")
  func elsewhere() async throws {
    let origin = try LoopbackOrigin { request in
      request["If-None-Match"] == nil
        ? Reply(
          200, [("Cache-Control", request.path == "/stale" ? "max-age=0" : "max-age=600"), ("ETag", "\"1\"")], "body")
        : Reply(304, [("ETag", "\"1\""), ("Cache-Control", "max-age=600")])
    }
    defer { origin.stop() }
    let cache = ByTask(memoryCapacity: 1 << 20, diskCapacity: 0, diskPath: "/nonexistent")
    let session = URLSession(configuration: .ephemeral.caching(with: cache))
    for _ in 0..<3 { #expect(try await session.data(from: origin.url("/fresh")).0.text == "body") }
    #expect(origin.requestCount == 1)
    for _ in 0..<4 { #expect(try await session.data(from: origin.url("/stale")).0.text == "body") }
    #expect(origin.requestCount == 3)
    #expect(cache.currentMemoryUsage == 0)
  }

  @Test("A subclass can return responses that it creates")
  func madeUp() async throws {
    final class MadeUp: LMDBURLCache, @unchecked Sendable {
      override func cachedResponse(for request: URLRequest) -> CachedURLResponse? {
        guard let url = request.url, url.host == "made.up" else { return nil }
        return CachedURLResponse(response: httpResponse(url, ["Cache-Control": "max-age=60"]), data: Data("mine".utf8))
      }
    }
    let cache = MadeUp(memoryCapacity: 1 << 20, diskCapacity: 0, diskPath: "/nonexistent")
    let session = URLSession(configuration: .ephemeral.caching(with: cache))
    let url = URL(string: "http://made.up/x")!
    #expect(try await session.data(from: url).0.text == "mine")
    let (data, response) = try await cache.data(from: url)
    #expect(data.text == "mine")
    #expect(response.field("Age") == "0")
    // Nothing is stored for a user of the URL.
    let ofUser = URLRequest(url, ["Authorization": "Basic YTph"])
    #expect(try await session.data(for: ofUser).0.text == "mine")
    #expect(try await cache.data(for: ofUser).0.text == "mine")
  }
}

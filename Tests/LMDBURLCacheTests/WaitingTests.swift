import Foundation
import FoundationNetworking
import Glibc
import LMDB
import LoopbackOrigin
import Synchronization
import Testing

// LMDB's write lock, and the step of a store that waits for the full queue.
@testable import LMDBURLCache
@testable import ResponseStore

/// Holds LMDB's write lock until it is released, like a writer whose disk hangs. No queued write is committed.
final class HeldWriteLock: Sendable {
  private let isHeld = DispatchSemaphore(value: 0)
  private let mayEnd = DispatchSemaphore(value: 0)
  private let hasEnded = DispatchSemaphore(value: 0)

  init(_ store: ResponseStore) {
    Thread.detachNewThread { [isHeld, mayEnd, hasEnded] in
      do {
        try store.context.database.environment.write { (_) throws(LMDBError) in
          isHeld.signal()
          mayEnd.wait()
        }
      } catch {
        Issue.record(error)
        isHeld.signal()
      }
      hasEnded.signal()
    }
    isHeld.wait()
  }

  func release() {
    mayEnd.signal()
    hasEnded.wait()
  }
}

/// Releases a resource at the end of a test, or after 20 seconds, so that a test fails instead of blocking forever.
final class Deadline: Sendable {
  private let isDone = DispatchSemaphore(value: 0)
  private let hasReleased = DispatchSemaphore(value: 0)
  private let hasPassed = Atomic(false)

  init(release: @escaping @Sendable () -> Void) {
    Thread.detachNewThread { [self] in
      if isDone.wait(timeout: .now() + 20) == .timedOut { hasPassed.store(true, ordering: .relaxed) }
      release()
      hasReleased.signal()
    }
  }

  /// Releases the resource. Returns false if the time limit has released it before.
  func end() async -> Bool {
    isDone.signal()
    await withCheckedContinuation { continuation in
      Thread.detachNewThread { [self] in
        hasReleased.wait()
        continuation.resume()
      }
    }
    return !hasPassed.load(ordering: .relaxed)
  }
}

/// Which operations wait for a full queue, and which do not.
@Suite("Waiting for the write queue", .endsFixtures, .timeLimit(.minutes(2)))
struct WaitingTests {
  /// Runs `body` with a store that has a small queue and waits for space for longer than any test takes.
  private func withSmallQueue(_ body: (CacheFixture) async throws -> Void) async throws {
    let fixture = try CacheFixture(memory: 1 << 20, disk: 0)
    var options = fixture.cache.core.options.storeOptions(diskCapacity: 16 << 20)
    options.queueByteCount = 1 << 20
    options.fullQueueTimeout = .seconds(1000)
    options.stallTimeout = .seconds(1000)
    let store = try ResponseStore.open(directory: fixture.directory.path, options: options)
    fixture.cache.diskCapacity = 16 << 20
    #expect(fixture.cache.core.store === store)
    do {
      try await body(fixture)
    } catch {
      Issue.record(error)
    }
    store.close()
  }

  private func url(_ number: Int) -> URL { URL(string: "http://example.com/\(number)")! }

  private func large(_ number: Int) -> CachedURLResponse {
    CachedURLResponse(
      response: httpResponse(url(number), ["Cache-Control": "max-age=600"]), data: Data(count: 600_000))
  }

  /// Returns whether `body`, on its own thread, completes within 20 seconds.
  private func returns(_ body: @escaping @Sendable () -> Void) async -> Bool {
    let isDone = DispatchSemaphore(value: 0)
    Thread.detachNewThread {
      body()
      isDone.signal()
    }
    return await withCheckedContinuation { continuation in
      Thread.detachNewThread { continuation.resume(returning: isDone.wait(timeout: .now() + 20) == .success) }
    }
  }

  @Test("Neither a removal nor another write waits for a write that blocks on the full queue")
  func fullQueue() async throws {
    try await withSmallQueue { fixture in
      let cache = fixture.cache
      cache.storeCachedResponse(cached(url(0)), for: URLRequest(url: url(0)))
      #expect(cache.flush())
      let lock = HeldWriteLock(try #require(cache.core.store))
      cache.storeCachedResponse(large(1), for: URLRequest(url: url(1)))
      let isStoring = DispatchSemaphore(value: 0)
      let isStored = DispatchSemaphore(value: 0)
      Thread.detachNewThread { [self] in
        let key = RequestKey(url: url(2))!
        let response = cache.makeEntry(from: large(2), for: URLRequest(url: url(2)), key).response
        isStoring.signal()
        cache.core.insert(response, reachesDisk: true)
        isStored.signal()
      }
      await withCheckedContinuation { continuation in
        Thread.detachNewThread {
          isStoring.wait()
          continuation.resume()
        }
      }
      let removed = URLRequest(url: url(0))
      let removesOne = await returns { cache.removeCachedResponse(for: removed) }
      let removesHost = await returns { cache.removeCachedResponses(forHost: "example.org") }
      let inMemory = CachedURLResponse(
        response: httpResponse(url(3)), data: Data(count: 10), userInfo: nil, storagePolicy: .allowedInMemoryOnly)
      let kept = URLRequest(url: url(3))
      let stores = await returns { cache.storeCachedResponse(inMemory, for: kept) }
      #expect(removesOne && removesHost && stores)
      #expect(!cache.isCached(url(0)))
      #expect(cache.isCached(url(3)))
      lock.release()
      await withCheckedContinuation { continuation in
        Thread.detachNewThread {
          isStored.wait()
          continuation.resume()
        }
      }
      #expect(cache.isCached(url(2)))
    }
  }

  @Test(
    "If the queue is full, a task continues without storing its response, and no older one is found")
  func fullQueueInTasks() async throws {
    let origin = try LoopbackOrigin { request in
      Reply(200, [("Cache-Control", "max-age=600")], body: Data(repeating: 2, count: 600_000))
    }
    try await withSmallQueue { fixture in
      let cache = fixture.cache
      cache.memoryCapacity = 0
      let urls = (0..<16).map { origin.url("/\($0)") }
      // An older response is on disk.
      let stale = CachedURLResponse(
        response: httpResponse(urls[0], ["Cache-Control": "max-age=0", "ETag": "\"1\""]), data: Data("old".utf8))
      cache.storeCachedResponse(stale, for: URLRequest(url: urls[0]))
      #expect(cache.flush())
      let lock = HeldWriteLock(try #require(cache.core.store))
      let deadline = Deadline { lock.release() }
      cache.storeCachedResponse(large(1), for: URLRequest(url: url(1)))
      let dropped = try #require(cache.statistics.disk?.droppedWrites)
      try await withThrowingTaskGroup(of: Int.self) { group in
        for url in urls { group.addTask { try await cache.data(from: url).0.count } }
        for try await count in group { #expect(count == 600_000) }
      }
      #expect(cache.statistics.disk?.droppedWrites == dropped + urls.count)
      #expect(!cache.isCached(urls[0]))
      #expect(await deadline.end())
      #expect(cache.flush())
      #expect(!cache.isCached(urls[0]))
    }
    origin.stop()
  }

  @Test("While removals wait for the removal log, other tasks run; the removals have taken effect when they return")
  func removalsInTasks() async throws {
    let origin = try LoopbackOrigin { request in
      Reply(200, request.method == "POST" ? [] : [("Cache-Control", "max-age=600")], "body")
    }
    try await withSmallQueue { fixture in
      let cache = fixture.cache
      let urls = (0..<16).map { origin.url("/\($0)") }
      for url in urls { _ = try await cache.data(from: url) }
      let hit = origin.url("/hit")
      _ = try await cache.data(from: hit)
      // Simulates a process that is suspended while it writes to the removal log.
      let descriptor = open(fixture.directory.path + "/data-1/LMDBURLCache.removals", O_RDWR)
      #expect(flock(descriptor, LOCK_EX) == 0)
      let deadline = Deadline { _ = close(descriptor) }
      let finished = LogLines()
      try await withThrowingTaskGroup(of: Bool.self) { group in
        for url in urls {
          group.addTask {
            _ = try await cache.data(for: URLRequest(url, method: "POST"))
            finished.append(url.path)
            return !cache.isCached(url)
          }
        }
        // Gives the responses time to arrive.
        for number in 0..<20 {
          _ = try await cache.data(from: origin.url("/other\(number)"))
          for _ in 0..<10 {
            let task = Task { try await cache.data(from: hit).0.text }
            #expect(try await task.value == "body")
          }
        }
        #expect(finished.all.isEmpty)
        #expect(await deadline.end())
        for try await isRemoved in group { #expect(isRemoved) }
      }
    }
    origin.stop()
  }
}

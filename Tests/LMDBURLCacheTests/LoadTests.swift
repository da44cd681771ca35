import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Synchronization
import Testing

/// Many concurrent loads, and cancellation at any time.
@Suite("Concurrent loads")
struct LoadTests {
  enum Moment: CaseIterable { case beforeStart, beforeHead, inBody, hit }

  @Test("A data task can be cancelled at any time", arguments: Moment.allCases)
  func cancellation(_ moment: Moment) async throws {
    let gate = Gate()
    try await withCache { request in
      let reply = Reply(200, [("Cache-Control", "max-age=600")], "0123456789")
      if request.path == "/free" { return reply }
      return moment == .inBody ? reply.held(at: gate, afterBodyBytes: 5) : reply.held(at: gate)
    } _: { (fixture, origin) async throws in
      let delegate = RecordingDelegate()
      let session = fixture.session(delegate: delegate)
      let url = origin.url(moment == .hit ? "/free" : "/held")
      if moment == .hit { _ = try await fixture.cache.data(from: url) }
      let task = session.dataTask(with: url)
      if moment != .beforeStart { task.resume() }
      switch moment {
      case .beforeStart, .hit: break
      case .beforeHead: await gate.waitForArrivals()
      case .inBody: await delegate.wait { !$0.chunks.isEmpty }
      }
      task.cancel()
      await delegate.wait { !$0.completions.isEmpty }
      #expect(delegate.events.completions.count == 1)
      if moment != .hit { #expect(delegate.events.completions == [.cancelled]) }
      if moment == .beforeHead || moment == .inBody { await origin.waitForAbandonedReplies() }

      // The same with Swift tasks.
      if moment == .beforeHead || moment == .inBody {
        let cache = fixture.cache
        let loads = [Task { try await session.data(from: url) }, Task { try await cache.data(from: url) }]
        await gate.waitForArrivals(count: 2)
        for load in loads { load.cancel() }
        for load in loads { await #expect { try await load.value } throws: { ($0 as? URLError)?.code == .cancelled } }
      }
      gate.open()
      #expect(!fixture.cache.isCached(origin.url("/held")))
    }
  }

  @Test("Each of many loads completes once if 500 of them are cancelled")
  func manyCancellations() async throws {
    try await withCache { request in
      Reply(200, [("Cache-Control", request.number % 3 == 0 ? "max-age=600" : "no-store")], "body")
    } _: { (fixture, origin) async throws in
      let session = fixture.session()
      let handled = session.configuration.httpMaximumConnectionsPerHost
      #expect(handled > 0)
      let ends = try await withThrowingTaskGroup(of: Bool.self) { group in
        for number in 0..<1500 {
          let url = origin.url("/\(number % 40)")
          guard number % 5 == 0 else {
            group.addTask { try await Self.load(url, session, isCancelled: number % 3 == 0) }
            continue
          }
          let load = Task { [cache = fixture.cache] in try await cache.data(from: url).0 }
          group.addTask {
            if number % 3 == 0 { load.cancel() }
            do {
              let data = try await load.value
              return data.text == "body"
            } catch let error as URLError where error.code == .cancelled {
              return true
            }
          }
        }
        return try await group.reduce(into: 0) { $0 += $1 ? 1 : 0 }
      }
      #expect(ends == 1500)
      #expect(try await session.data(from: origin.url("/after")).0.text == "body")
    }
  }

  /// Loads a URL with a completion handler. Returns whether it completed as expected.
  ///
  /// Cancelling a task in Foundation's `data(from:)` can deadlock: the cancellation waits for the session's queue with
  /// the lock of the task's status, for which the queue waits when it resumes the task.
  private static func load(_ url: URL, _ session: URLSession, isCancelled: Bool) async throws -> Bool {
    try await withCheckedThrowingContinuation { continuation in
      let task = session.dataTask(with: url) { (data, _, error) in
        if let error, (error as? URLError)?.code != .cancelled { return continuation.resume(throwing: error) }
        continuation.resume(returning: error != nil || data?.text == "body")
      }
      task.resume()
      if isCancelled { task.cancel() }
    }
  }

  @Test("Concurrent identical requests share one fetch")
  func coalescing() async throws {
    let gate = Gate()
    try await withCache { _ in
      Reply(200, [("Cache-Control", "max-age=600")], "body").held(at: gate)
    } _: {
      (fixture, origin) async throws in
      let session = fixture.session()
      let url = origin.url("/")
      try await withThrowingTaskGroup(of: String.self) { group in
        for number in 0..<50 {
          group.addTask { [cache = fixture.cache] in
            number % 2 == 0 ? try await session.data(from: url).0.text : try await cache.data(from: url).0.text
          }
        }
        await gate.waitForArrivals()
        while fixture.cache.statistics.requests.waiting < 49 { await Task.yield() }
        gate.open()
        for try await text in group { #expect(text == "body") }
      }
      #expect(origin.requestCount == 1)
    }
  }

  @Test("Concurrent readers, writers and purges never cause a wrong response")
  func purgesAmongReaders() async throws {
    try await withCache(memory: 200_000, disk: 4 << 20) { request in
      let body = request.path + " " + String(repeating: "x", count: 100 + 37 * (request.number % 50))
      return Reply(
        200, [("Cache-Control", "max-age=\(request.number % 2 == 0 ? 600 : 0)"), ("ETag", "\"\(request.number)\"")],
        body)
    } _: { (fixture, origin) async throws in
      let session = fixture.session()
      let cache = fixture.cache
      let clock = fixture.clock
      await withTaskGroup(of: Void.self) { group in
        for worker in 0..<8 {
          group.addTask {
            for step in 0..<60 {
              let path = "/\((worker * 7 + step * 13) % 25)"
              let url = origin.url(path)
              do {
                let data = try await step % 2 == 0 ? session.data(from: url).0 : cache.data(from: url).0
                #expect(data.text.hasPrefix(path + " "))
              } catch { Issue.record(error) }
              if let found = cache.cachedResponse(for: URLRequest(url: url)) {
                #expect(found.data.text.hasPrefix(path + " "))
                #expect(found.response.url == url)
              }
            }
          }
        }
        group.addTask {
          for step in 0..<40 {
            let url = origin.url("/\(step % 25)")
            switch step % 6 {
            case 0: cache.removeAllCachedResponses()
            case 1: cache.removeCachedResponse(for: URLRequest(url: url))
            case 2: cache.removeCachedResponses(since: clock.now)
            case 3: cache.removeCachedResponses(forHost: "127.0.0.1")
            case 4: cache.memoryCapacity = 50_000 * (1 + step % 5)
            default:
              cache.removeCachedResponses(withPrefix: url)
              clock.advance(by: 100)
            }
            await Task.yield()
          }
        }
      }
      cache.removeAllCachedResponses()
      #expect(cache.currentMemoryUsage == 0)
    }
  }
}

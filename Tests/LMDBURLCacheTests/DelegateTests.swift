import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Synchronization
import Testing

/// Delegate callbacks of caching sessions.
@Suite("Delegates", .timeLimit(.minutes(1)))
struct DelegateTests {
  /// Simulates an endless stream by a body that pauses after 2 MiB.
  ///
  /// A body that never pauses would block every session of the process in Foundation, including its cancellation.
  @Test("A delegate receives an endless body in chunks and can cancel it")
  func endless() async throws {
    let gate = Gate()
    try await withCache { _ in
      Reply(200, [("Cache-Control", "max-age=600")], parts: [.bytes(Data(count: 2 << 20)), .hold(gate)]).chunked()
    } _: { (fixture, origin) async throws in
      let delegate = RecordingDelegate()
      let task = fixture.session(delegate: delegate).dataTask(with: origin.url("/"))
      task.resume()
      // More bytes than are buffered for storing.
      await delegate.wait { $0.chunks.reduce(0) { $0 + $1.count } == 2 << 20 }
      task.cancel()
      await delegate.wait { !$0.completions.isEmpty }
      #expect(delegate.events.responses == [200])
      #expect(delegate.events.completions == [.cancelled])
      await origin.waitForAbandonedReplies()
      #expect(!fixture.cache.isCached(origin.url("/")))
      gate.open()
    }
  }

  @Test("A delegate receives the head before the body, and each part of the body as it arrives")
  func streaming() async throws {
    try await withHeldBody { (fixture, origin, gate) async throws in
      let delegate = RecordingDelegate()
      let session = fixture.session(delegate: delegate)
      let task = session.dataTask(with: origin.url("/"))
      task.resume()
      await delegate.wait { $0.chunks.map(\.text) == ["first"] }
      #expect(delegate.events.responses == [200])
      #expect((task.response as? HTTPURLResponse)?.statusCode == 200)
      gate.open()
      await delegate.wait { !$0.completions.isEmpty }
      #expect(delegate.body.text == "firstsecond")
      #expect(delegate.events.completions == [nil])
      await delegate.run(session.dataTask(with: origin.url("/")))
      #expect(delegate.body.text == "firstsecondfirstsecond")
      #expect(origin.requestCount == 1)
      #expect(delegate.events.questions.map(\.text) == ["firstsecond"])
    }
  }

  @Test("A delegate decides once whether to store the response: proposed, changed, in memory only, or not at all")
  func willCache() async throws {
    try await withCache { _ in
      Reply(200, [("Cache-Control", "max-age=600")], "body")
    } _: { (fixture, origin) async throws in
      func get(
        _ path: String, _ willCache: @escaping @Sendable (CachedURLResponse) -> CachedURLResponse?
      ) async throws -> CachedURLResponse? {
        let delegate = RecordingDelegate(willCache: willCache)
        await delegate.run(fixture.session(delegate: delegate).dataTask(with: origin.url(path)))
        #expect(delegate.body.text == "body")
        #expect(delegate.events.questions.map(\.text) == ["body"])
        return fixture.cache.cachedResponse(for: URLRequest(url: origin.url(path)))
      }
      #expect(try await get("/same") { $0 }?.data.text == "body")
      #expect(try await get("/none") { _ in nil } == nil)
      let refused = try await get("/refused") {
        CachedURLResponse(response: $0.response, data: $0.data, userInfo: nil, storagePolicy: .notAllowed)
      }
      #expect(refused == nil)
      let memory = try await get("/memory") {
        CachedURLResponse(
          response: $0.response, data: $0.data, userInfo: ["k": "v"], storagePolicy: .allowedInMemoryOnly)
      }
      #expect(memory?.storagePolicy == .allowedInMemoryOnly)
      #expect(memory?.userInfo?["k"] as? String == "v")
      let changed = try await get("/changed") { proposed in
        CachedURLResponse(
          response: httpResponse(proposed.response.url!, ["Cache-Control": "max-age=9000", "X-Mine": "1"]),
          data: Data("other".utf8), userInfo: ["k": "v"], storagePolicy: .allowed)
      }
      #expect(changed?.data.text == "other")

      try fixture.reopen()
      #expect(!fixture.cache.isCached(origin.url("/memory")))
      // The changed lifetime applies.
      fixture.clock.advance(by: 8000)
      let count = origin.requestCount
      let (data, response) = try await fixture.cache.data(from: origin.url("/changed"))
      #expect(data.text == "other")
      #expect(response.field("X-Mine") == "1")
      #expect(origin.requestCount == count)
      let found = fixture.cache.cachedResponse(for: URLRequest(url: origin.url("/changed")))
      #expect(found?.userInfo?["k"] as? String == "v")
    }
  }

  @Test("A delegate learns that the content of its request was sent")
  func contentSent() async throws {
    final class Delegate: NSObject, URLSessionDataDelegate {
      let sent = AsyncStream<[Int64]>.makeStream()
      func urlSession(
        _ session: URLSession, task: URLSessionTask, didSendBodyData bytesSent: Int64, totalBytesSent: Int64,
        totalBytesExpectedToSend: Int64
      ) { sent.continuation.yield([bytesSent, totalBytesSent, totalBytesExpectedToSend]) }
      func urlSession(_ session: URLSession, task: URLSessionTask, didCompleteWithError error: (any Error)?) {
        sent.continuation.finish()
      }
    }
    try await withCache {
      Reply(200, [], body: $0.body)
    } _: { (fixture, origin) async throws in
      for (content, expected) in [("content", [[7, 7, 7]]), ("", [])] as [(String, [[Int64]])] {
        let delegate = Delegate()
        var request = URLRequest(origin.url("/"), method: "POST")
        request.httpBody = Data(content.utf8)
        fixture.session(delegate: delegate).dataTask(with: request).resume()
        var seen: [[Int64]] = []
        for await counts in delegate.sent.stream { seen.append(counts) }
        #expect(seen == expected)
      }
    }
  }

  @Test("A delegate can reject or change a redirect before it is followed")
  func redirects() async throws {
    try await withCache { request in
      switch request.path {
      case "/from": Reply(301, [("Location", "/to#there"), ("Cache-Control", "max-age=600")], "moved")
      default: Reply(200, [("Cache-Control", "max-age=600")], request.path)
      }
    } _: { (fixture, origin) async throws in
      for round in 0..<2 {
        let following = RecordingDelegate()
        await following.run(fixture.session(delegate: following).dataTask(with: origin.url("/from")))
        #expect(following.events.redirects == [origin.url("/to#there")])
        #expect(following.body.text == "/to")
        #expect(following.events.responses == [200])
        // Each hop was stored under its own URL.
        #expect(origin.requestCount == 2, "round \(round)")
      }
      let refusing = RecordingDelegate(follow: { _ in nil })
      await refusing.run(fixture.session(delegate: refusing).dataTask(with: origin.url("/from")))
      #expect(refusing.events.responses == [301])
      #expect(refusing.body.text == "moved")
      let other = origin.url("/other")
      let changing = RecordingDelegate(follow: { _ in URLRequest(url: other) })
      await changing.run(fixture.session(delegate: changing).dataTask(with: origin.url("/from")))
      #expect(changing.body.text == "/other")
      #expect(origin.requestCount == 3)
    }
  }

  @Test("More than 20 redirects fail, as without the cache", arguments: [20, 21])
  func manyRedirects(_ count: Int) async throws {
    try await withCache { request in
      let number = Int(request.path.dropFirst()) ?? 0
      return number < count ? Reply(302, [("Location", "/\(number + 1)")]) : Reply(200, [], "end")
    } _: { (fixture, origin) async throws in
      let plain = URLSession(configuration: .ephemeral)
      var outcomes: [URLError.Code?] = []
      for session in [plain, fixture.session()] {
        do {
          _ = try await session.data(from: origin.url("/0"))
          outcomes.append(nil)
        } catch { outcomes.append((error as? URLError)?.code) }
      }
      #expect(outcomes == (count == 20 ? [nil, nil] : [.httpTooManyRedirects, .httpTooManyRedirects]))
    }
  }

  @Test("A suspended task delivers nothing until it is resumed, and a task resumed twice loads once")
  func suspension() async throws {
    try await withHeldBody { (fixture, origin, gate) async throws in
      let delegate = RecordingDelegate()
      let session = fixture.session(delegate: delegate)
      let task = session.dataTask(with: origin.url("/"))
      task.resume()
      task.resume()
      await delegate.wait { $0.chunks.count == 1 }
      task.suspend()
      gate.open()
      // A complete load of another task shows that time has passed.
      #expect(try await fixture.cache.data(from: origin.url("/other")).0.text == "firstsecond")
      #expect(delegate.events.completions.isEmpty)
      task.resume()
      await delegate.wait { !$0.completions.isEmpty }
      #expect(delegate.body.text == "firstsecond")

      // The same with a hit. A second resume() would race with Foundation's completion: see DifferencesFromURLCache.md.
      let hit = session.dataTask(with: origin.url("/"))
      hit.resume()
      await delegate.wait { $0.completions.count == 2 }
      let cancelled = session.dataTask(with: origin.url("/"))
      cancelled.suspend()
      cancelled.cancel()
      await delegate.wait { $0.completions.count == 3 }
      #expect(delegate.events.completions == [nil, nil, .cancelled])
      #expect(origin.requestCount == 2)
    }
  }

  @Test("A task that one thread suspends while another resumes it completes once, with its body")
  func suspendedByThreads() async throws {
    try await withHeldBody { (fixture, origin, gate) async throws in
      let delegate = RecordingDelegate()
      let session = fixture.session(delegate: delegate)
      let tasks = (0..<4).map { session.dataTask(with: origin.url("/\($0)")) }
      for task in tasks { task.resume() }
      await delegate.wait { $0.chunks.count == tasks.count }
      for task in tasks {
        await onThreads({ task.suspend() }, { task.resume() })
        while task.state == .suspended { task.resume() }
      }
      #expect(delegate.events.completions.isEmpty)
      gate.open()
      await delegate.wait { $0.completions.count == tasks.count }
      #expect(delegate.events.completions == Array(repeating: nil, count: tasks.count))
      #expect(delegate.body.count == tasks.count * "firstsecond".utf8.count)
    }
  }

  /// Calls each function 500 times on a thread of its own, at the same time as the others.
  private func onThreads(_ calls: (@Sendable () -> Void)...) async {
    let (ends, end) = AsyncStream<Void>.makeStream()
    for call in calls {
      Thread.detachNewThread {
        for _ in 0..<500 { call() }
        end.yield()
      }
    }
    var iterator = ends.makeAsyncIterator()
    for _ in calls { await iterator.next() }
  }

  /// Runs `body` with an origin that holds the body of each response after its first five bytes, until the gate opens.
  private func withHeldBody(_ body: (CacheFixture, LoopbackOrigin, Gate) async throws -> Void) async throws {
    let gate = Gate()
    try await withCache { _ in
      Reply(200, [("Cache-Control", "max-age=600")], "firstsecond").held(at: gate, afterBodyBytes: 5)
    } _: { fixture, origin in
      try await body(fixture, origin, gate)
    }
  }

  @Test("A task that is cancelled while it is suspended completes")
  func cancelledSuspended() async throws {
    let gate = Gate()
    try await withCache { _ in
      Reply(200, [], "0123456789").held(at: gate, afterBodyBytes: 5)
    } _: {
      (fixture, origin) async throws in
      let delegate = RecordingDelegate()
      let task = fixture.session(delegate: delegate).dataTask(with: origin.url("/"))
      task.resume()
      await delegate.wait { $0.chunks.count == 1 }
      task.suspend()
      task.cancel()
      await delegate.wait { !$0.completions.isEmpty }
      #expect(delegate.events.completions == [.cancelled])
      await origin.waitForAbandonedReplies()
      gate.open()
    }
  }

  @Test("A delegate can cancel its task in each of its callbacks", arguments: CancellingDelegate.Moment.allCases)
  func cancelsItself(_ moment: CancellingDelegate.Moment) async throws {
    try await withCache { request in
      guard request.path == "/from" else { return Reply(200, [("Cache-Control", "max-age=600")], "body") }
      return Reply(302, [("Location", "/to?\(request.query ?? "")")], "moved")
    } _: { (fixture, origin) async throws in
      let delegate = CancellingDelegate(moment)
      let session = fixture.session(delegate: delegate)
      for number in 0..<20 {
        let end = try #require(await delegate.run(session.dataTask(with: origin.url("/from?\(number)"))))
        // The body may have arrived by then.
        #expect(end == .cancelled || moment != .redirect && end == nil)
      }
      #expect(try await fixture.cache.data(from: origin.url("/other"), by: session).text == "body")
      #expect(delegate.endCount.load(ordering: .relaxed) == 20)
    }
  }
}

/// Cancels each task in one of the callbacks.
final class CancellingDelegate: NSObject, URLSessionDataDelegate {
  enum Moment: CaseIterable { case redirect, response, data, question }

  private let moment: Moment
  private let ends = AsyncStream<URLError.Code?>.makeStream()
  let endCount = Atomic(0)

  init(_ moment: Moment) {
    self.moment = moment
  }

  /// Runs a task until it completes.
  func run(_ task: URLSessionTask) async -> URLError.Code?? {
    task.resume()
    var iterator = ends.stream.makeAsyncIterator()
    return await iterator.next()
  }

  func urlSession(
    _ session: URLSession, task: URLSessionTask, willPerformHTTPRedirection response: HTTPURLResponse,
    newRequest request: URLRequest, completionHandler: @escaping (URLRequest?) -> Void
  ) {
    if moment == .redirect { task.cancel() }
    completionHandler(request)
  }

  func urlSession(
    _ session: URLSession, dataTask: URLSessionDataTask, didReceive response: URLResponse,
    completionHandler: @escaping (URLSession.ResponseDisposition) -> Void
  ) {
    if moment == .response { dataTask.cancel() }
    completionHandler(.allow)
  }

  func urlSession(_ session: URLSession, dataTask: URLSessionDataTask, didReceive data: Data) {
    if moment == .data { dataTask.cancel() }
  }

  func urlSession(
    _ session: URLSession, dataTask: URLSessionDataTask, willCacheResponse proposedResponse: CachedURLResponse,
    completionHandler: @escaping (CachedURLResponse?) -> Void
  ) {
    if moment == .question { dataTask.cancel() }
    completionHandler(proposedResponse)
  }

  func urlSession(_ session: URLSession, task: URLSessionTask, didCompleteWithError error: (any Error)?) {
    endCount.add(1, ordering: .relaxed)
    ends.continuation.yield((error as? URLError)?.code)
  }
}

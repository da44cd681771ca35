import Foundation
import FoundationNetworking
import LoopbackOrigin
import Synchronization
import Testing

@testable import LMDBURLCache

/// What the module relies on in Foundation on Linux. A test that fails here says what to look at after an update.
@Suite("Facts about Foundation")
struct FoundationFactsTests {
  /// Answers everything itself, and notes what it can see.
  class Probe: URLProtocol {
    struct Seen: Sendable {
      var cached: ObjectIdentifier?
      var hasSession = false
      var hasQueue = false
      var isDelegateDriven = false
      var order: [String] = []
    }
    static let seen = Mutex<[String: Seen]>([:])

    static func note(_ request: URLRequest, _ change: (inout Seen) -> Void) {
      seen.withLock { change(&$0[request.url?.path ?? "", default: Seen()]) }
    }

    override class func canInit(with request: URLRequest) -> Bool {
      note(request) { $0.order.append("canInit") }
      return request.url?.host == "probe.test"
    }

    override class func canonicalRequest(for request: URLRequest) -> URLRequest { request }

    override func startLoading() {
      guard let task, let request = task.currentRequest else { return }
      let session = TaskReflection.session(of: task)
      let isDriven = session.map { TaskReflection.isDelegateDriven(task, in: $0) } ?? false
      let hasQueue = TaskReflection.queue(of: task) != nil
      let cached = cachedResponse.map { ObjectIdentifier($0) }
      Self.note(request) { seen in
        seen.cached = cached
        seen.hasSession = session != nil
        seen.hasQueue = hasQueue
        seen.isDelegateDriven = isDriven
        seen.order.append("start")
      }
      client?.urlProtocol(self, didReceive: httpResponse(request.url!), cacheStoragePolicy: .allowed)
      for chunk in ["one ", "two"] { client?.urlProtocol(self, didLoad: Data(chunk.utf8)) }
      client?.urlProtocolDidFinishLoading(self)
    }

    override func stopLoading() {}
  }

  /// Says whom it was asked by.
  final class AskedCache: URLCache, @unchecked Sendable {
    // Sendable, as its superclass is: what changes is under a lock.
    let answer: CachedURLResponse
    let lookups = Mutex(0)
    let stores = Mutex(0)

    init(_ answer: CachedURLResponse) {
      self.answer = answer
      super.init(memoryCapacity: 0, diskCapacity: 0, diskPath: NSTemporaryDirectory())
    }

    override func getCachedResponse(
      for dataTask: URLSessionDataTask, completionHandler: @escaping (CachedURLResponse?) -> Void
    ) {
      lookups.withLock { $0 += 1 }
      if let request = dataTask.currentRequest { Probe.note(request) { $0.order.append("cache") } }
      completionHandler(answer)
    }

    override func storeCachedResponse(_ cachedResponse: CachedURLResponse, for dataTask: URLSessionDataTask) {
      stores.withLock { $0 += 1 }
    }
  }

  final class MarkedResponse: CachedURLResponse, @unchecked Sendable {}

  func configuration(_ cache: URLCache?) -> URLSessionConfiguration {
    let configuration = URLSessionConfiguration.ephemeral
    configuration.protocolClasses = [Probe.self] + (configuration.protocolClasses ?? [])
    configuration.urlCache = cache
    return configuration
  }

  @Test(
    "a protocol class in front gets the request, its session's cache is asked for data tasks, and the answer is handed over"
  )
  func handover() async throws {
    let url = URL(string: "http://probe.test/handover")!
    let marked = MarkedResponse(response: httpResponse(url), data: Data())
    let cache = AskedCache(marked)
    let delegate = RecordingDelegate()
    let session = URLSession(configuration: configuration(cache), delegate: delegate, delegateQueue: nil)
    await delegate.run(session.dataTask(with: url))
    let seen = try #require(Probe.seen.withLock { $0["/handover"] })
    #expect(seen.cached == ObjectIdentifier(marked))
    #expect(cache.lookups.withLock { $0 } == 1)
    #expect(seen.order.contains("cache"))
    #expect(seen.order.last == "start")
    // Not even what is announced as allowed.
    #expect(cache.stores.withLock { $0 } == 0)
    #expect(delegate.events.questions.isEmpty)
    session.finishTasksAndInvalidate()
  }

  @Test("a task's session and queue are found, and whether a delegate gets the chunks")
  func reflection() async throws {
    let delegate = RecordingDelegate()
    let session = URLSession(configuration: configuration(nil), delegate: delegate, delegateQueue: nil)
    await delegate.run(session.dataTask(with: URL(string: "http://probe.test/delegate")!))
    _ = try await session.data(from: URL(string: "http://probe.test/async")!)
    await withCheckedContinuation { continuation in
      session.dataTask(with: URL(string: "http://probe.test/handler")!) { _, _, _ in continuation.resume() }.resume()
    }
    for (path, isDriven) in [("/delegate", true), ("/async", false), ("/handler", false)] {
      let seen = try #require(Probe.seen.withLock { $0[path] })
      #expect(seen.hasSession)
      #expect(seen.hasQueue)
      #expect(seen.isDelegateDriven == isDriven, "\(path)")
    }
    session.finishTasksAndInvalidate()
  }

  @Test("of several chunks a delegate gets each, a completion handler only the last")
  func chunks() async throws {
    let delegate = RecordingDelegate()
    let session = URLSession(configuration: configuration(nil), delegate: delegate, delegateQueue: nil)
    await delegate.run(session.dataTask(with: URL(string: "http://probe.test/chunks")!))
    #expect(delegate.body.text == "one two")
    #expect(try await session.data(from: URL(string: "http://probe.test/chunks")!).0.text == "two")
    session.finishTasksAndInvalidate()
  }

  @Test("a configuration keeps changes made before its session is made, and reads the shared cache")
  func configurations() {
    let cache = AskedCache(CachedURLResponse(response: httpResponse(URL(string: "http://probe.test/")!), data: Data()))
    let configuration = configuration(cache)
    configuration.httpAdditionalHeaders = ["X-A": "1"]
    let session = URLSession(configuration: configuration)
    configuration.httpAdditionalHeaders = ["X-A": "2"]
    #expect(session.configuration.httpAdditionalHeaders?["X-A"] as? String == "1")
    #expect(session.configuration.urlCache === cache)
    #expect(session.configuration.protocolClasses?.first == Probe.self)
  }

  @Test("a session's additional fields and policy are not in the task's request; its cookies are")
  func taskRequests() throws {
    let configuration = URLSessionConfiguration.ephemeral
    configuration.httpAdditionalHeaders = ["X-A": "1"]
    configuration.requestCachePolicy = .returnCacheDataElseLoad
    let url = URL(string: "http://probe.test/cookie")!
    let cookie = HTTPCookie(properties: [.domain: "probe.test", .path: "/", .name: "n", .value: "v"])
    configuration.httpCookieStorage?.setCookie(try #require(cookie))
    let task = URLSession(configuration: configuration).dataTask(with: url)
    #expect(task.currentRequest?.value(forHTTPHeaderField: "X-A") == nil)
    #expect(task.currentRequest?.cachePolicy == .useProtocolCachePolicy)
    #expect(task.currentRequest?.value(forHTTPHeaderField: "Cookie") == "n=v")
    #expect(TaskReflection.session(of: task) != nil)
    task.cancel()
  }

  @Test("A request tells whether a time limit was set for it.")
  func timeLimits() {
    var request = URLRequest(url: URL(string: "http://probe.test/")!, timeoutInterval: 2)
    // Foundation counts the initializer's for none.
    #expect(request.ownTimeLimit == nil)
    request.timeoutInterval = 60
    #expect(request.ownTimeLimit == 60)
  }

  @Test("a session that does not cache never stores")
  func neverStores() async throws {
    let origin = try LoopbackOrigin { _ in Reply(200, [("Cache-Control", "max-age=600")], "a") }
    defer { origin.stop() }
    let cache = URLCache(memoryCapacity: 1 << 20, diskCapacity: 0, diskPath: NSTemporaryDirectory())
    let configuration = URLSessionConfiguration.ephemeral
    configuration.urlCache = cache
    let session = URLSession(configuration: configuration)
    for _ in 0..<2 { _ = try await session.data(from: origin.url("/a")) }
    #expect(origin.requestCount == 2)
    #expect(cache.cachedResponse(for: URLRequest(url: origin.url("/a"))) == nil)
  }

  @Test("CachedURLResponse can be subclassed with a computed response and data")
  func computedResponses() throws {
    let url = URL(string: "http://example.com/")!
    let key = try #require(
      LMDBURLCache(memoryCapacity: 1 << 20, diskCapacity: 0, diskPath: "/nonexistent").key(for: URLRequest(url: url)))
    let record = CachedRecord(
      key: key, status: 200, fields: ["Content-Type": "text/plain"], body: Data("b".utf8),
      facts: .unknown(at: Date()), vary: .init(selectors: []), attachment: nil, storedAt: Date())
    let stored: CachedURLResponse = StoredURLResponse(record)
    #expect(stored.data.text == "b")
    #expect(stored.response.mimeType == "text/plain")
    #expect(stored == StoredURLResponse(record))
  }
}

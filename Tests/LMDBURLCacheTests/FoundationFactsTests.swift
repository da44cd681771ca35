import Foundation
import FoundationNetworking
import HTTPCaching
import LoopbackOrigin
import Synchronization
import Testing

// What the module takes from Foundation by reflection.
@testable import LMDBURLCache

/// Behavior of Foundation on Linux that the module relies on.
///
/// If a test fails after an update of Foundation, check the code that relies on the behavior.
@Suite("Behavior of Foundation")
struct FoundationFactsTests {
  /// Serves every request itself and records the visible state.
  class Probe: URLProtocol {
    struct Seen: Sendable {
      var cachedResponseID: ObjectIdentifier?
      var hasSession = false
      var hasQueue = false
      var isDelegateDriven = false
      var order: [String] = []
    }
    static let records = Mutex<[String: Seen]>([:])

    static func record(_ request: URLRequest, _ change: (inout Seen) -> Void) {
      records.withLock { change(&$0[request.url?.path ?? "", default: Seen()]) }
    }

    override class func canInit(with request: URLRequest) -> Bool {
      record(request) { $0.order.append("canInit") }
      return request.url?.host == "probe.test"
    }

    override class func canonicalRequest(for request: URLRequest) -> URLRequest { request }

    override func startLoading() {
      guard let task, let request = task.currentRequest else { return }
      let session = TaskReflection.session(of: task)
      let isDriven = session.map { TaskReflection.isDelegateDriven(task, in: $0) } ?? false
      let hasQueue = TaskReflection.queue(of: task) != nil
      let cachedResponseID = cachedResponse.map { ObjectIdentifier($0) }
      Self.record(request) { seen in
        seen.cachedResponseID = cachedResponseID
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

  /// A cache that records its lookups and writes, and returns one response.
  final class RecordingCache: URLCache, @unchecked Sendable {
    // Sendable like its superclass: the mutable state is protected by locks.
    let response: CachedURLResponse
    let lookups = Mutex(0)
    let stores = Mutex(0)

    init(_ response: CachedURLResponse) {
      self.response = response
      super.init(memoryCapacity: 0, diskCapacity: 0, diskPath: NSTemporaryDirectory())
    }

    override func getCachedResponse(
      for dataTask: URLSessionDataTask, completionHandler: @escaping (CachedURLResponse?) -> Void
    ) {
      lookups.withLock { $0 += 1 }
      if let request = dataTask.currentRequest { Probe.record(request) { $0.order.append("cache") } }
      completionHandler(response)
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
    "Foundation passes the response of the session's cache to the first protocol class"
  )
  func handover() async throws {
    let url = URL(string: "http://probe.test/handover")!
    let marked = MarkedResponse(response: httpResponse(url), data: Data())
    let cache = RecordingCache(marked)
    let delegate = RecordingDelegate()
    let session = URLSession(configuration: configuration(cache), delegate: delegate, delegateQueue: nil)
    await delegate.run(session.dataTask(with: url))
    let seen = try #require(Probe.records.withLock { $0["/handover"] })
    #expect(seen.cachedResponseID == ObjectIdentifier(marked))
    #expect(cache.lookups.withLock { $0 } == 1)
    #expect(seen.order.contains("cache"))
    #expect(seen.order.last == "start")
    // Foundation stores nothing, although the storage policy is `.allowed`.
    #expect(cache.stores.withLock { $0 } == 0)
    #expect(delegate.events.questions.isEmpty)
    session.finishTasksAndInvalidate()
  }

  @Test("A task's session, its queue, and the recipient of its chunks are found by reflection")
  func reflection() async throws {
    let delegate = RecordingDelegate()
    let session = URLSession(configuration: configuration(nil), delegate: delegate, delegateQueue: nil)
    await delegate.run(session.dataTask(with: URL(string: "http://probe.test/delegate")!))
    _ = try await session.data(from: URL(string: "http://probe.test/async")!)
    await withCheckedContinuation { continuation in
      session.dataTask(with: URL(string: "http://probe.test/handler")!) { _, _, _ in continuation.resume() }.resume()
    }
    for (path, isDriven) in [("/delegate", true), ("/async", false), ("/handler", false)] {
      let seen = try #require(Probe.records.withLock { $0[path] })
      #expect(seen.hasSession)
      #expect(seen.hasQueue)
      #expect(seen.isDelegateDriven == isDriven, "\(path)")
    }
    session.finishTasksAndInvalidate()
  }

  @Test("A delegate receives every chunk, and a completion handler only the last one")
  func chunks() async throws {
    let delegate = RecordingDelegate()
    let session = URLSession(configuration: configuration(nil), delegate: delegate, delegateQueue: nil)
    await delegate.run(session.dataTask(with: URL(string: "http://probe.test/chunks")!))
    #expect(delegate.body.text == "one two")
    #expect(try await session.data(from: URL(string: "http://probe.test/chunks")!).0.text == "two")
    session.finishTasksAndInvalidate()
  }

  @Test("A session copies its configuration and uses the cache in it")
  func configurations() {
    let cache = RecordingCache(
      CachedURLResponse(response: httpResponse(URL(string: "http://probe.test/")!), data: Data()))
    let configuration = configuration(cache)
    configuration.httpAdditionalHeaders = ["X-A": "1"]
    let session = URLSession(configuration: configuration)
    configuration.httpAdditionalHeaders = ["X-A": "2"]
    #expect(session.configuration.httpAdditionalHeaders?["X-A"] as? String == "1")
    #expect(session.configuration.urlCache === cache)
    #expect(session.configuration.protocolClasses?.first == Probe.self)
  }

  @Test("The task's request contains the session's cookies, but not its additional fields and policy")
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
    // They replace the caller's own.
    let own = URLSession(configuration: configuration).dataTask(with: URLRequest(url, ["Cookie": "own=1"]))
    for request in [own.originalRequest, own.currentRequest] {
      #expect(request?.value(forHTTPHeaderField: "Cookie") == "n=v")
    }
    own.cancel()
  }

  @Test("Foundation considers two objects for one protection space different")
  func protectionSpaces() throws {
    func space() -> URLProtectionSpace {
      URLProtectionSpace(host: "a.test", port: 80, protocol: "http", realm: "r", authenticationMethod: nil)
    }
    #expect(space() != space())
  }

  @Test("A session stores the credential that its delegate gives, on a queue that its name shows to be a session's")
  func storedCredentials() async throws {
    let origin = try LoopbackOrigin {
      ChallengeTests.user(of: $0) == nil ? ChallengeTests.whoAreYou : Reply(200, [], "in")
    }
    defer { origin.stop() }
    let storage = URLCredentialStorage()
    let areOnSessionQueue = Mutex<[Bool]>([])
    let observer = NotificationCenter.default.addObserver(
      forName: .NSURLCredentialStorageChanged, object: storage, queue: nil
    ) { _ in
      let isOnSessionQueue = ProgramCredentials.isOnSessionQueue
      areOnSessionQueue.withLock { $0.append(isOnSessionQueue) }
    }
    defer { NotificationCenter.default.removeObserver(observer) }
    let configuration = URLSessionConfiguration.ephemeral
    configuration.urlCredentialStorage = storage
    let delegate = CredentialDelegate()
    let session = URLSession(configuration: configuration, delegate: delegate, delegateQueue: nil)
    for count in 1...2 {
      #expect(try await session.data(from: origin.url("/a")).0.text == "in")
      // It is under another object each time, so that Foundation never finds it.
      #expect(storage.allCredentials.count == count)
    }
    #expect(areOnSessionQueue.withLock { $0 } == [true, true])
    #expect(!ProgramCredentials.isOnSessionQueue)
    session.finishTasksAndInvalidate()
  }

  private final class CredentialDelegate: NSObject, URLSessionTaskDelegate {
    func urlSession(
      _ session: URLSession, task: URLSessionTask, didReceive challenge: URLAuthenticationChallenge,
      completionHandler: @escaping @Sendable (URLSession.AuthChallengeDisposition, URLCredential?) -> Void
    ) {
      #expect(challenge.proposedCredential == nil)
      completionHandler(.useCredential, URLCredential(user: "alice", password: "pw", persistence: .forSession))
    }
  }

  @Test("A request shows whether its time limit was set")
  func timeLimits() {
    var request = URLRequest(url: URL(string: "http://probe.test/")!, timeoutInterval: 2)
    // Foundation ignores the initializer's time limit.
    #expect(request.ownTimeLimit == nil)
    request.timeoutInterval = 60
    #expect(request.ownTimeLimit == 60)
  }

  @Test("A session without this cache never stores a response")
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
    let key = try #require(RequestKey(url: url))
    let response = CacheableResponse(
      status: 200, fields: ["Content-Type": "text/plain"], body: Data("b".utf8), freshness: .unknown(at: Date()),
      vary: .init(fields: []))
    let stored: CachedURLResponse = LMDBCachedURLResponse(CacheEntry(response, for: key, storedAt: Date()))
    #expect(stored.data.text == "b")
    #expect(stored.response.mimeType == "text/plain")
    #expect(stored == LMDBCachedURLResponse(CacheEntry(response, for: key, storedAt: Date())))
  }

  @Test("Over URLSession, a body of which too much is unread is an error")
  func unreadOverSession() async throws {
    let gate = Gate()
    let origin = try LoopbackOrigin(recordsRequests: false) { _ in
      Reply(200, [], parts: [.bytes(Data(repeating: 0x78, count: 8 << 20)), .hold(gate), .text("x")])
    }
    let transport = FoundationTransport(configuration: .ephemeral, maximumUnreadByteCount: 1 << 20) { _ in nil }
    let response = try await transport.send(OutgoingRequest(head: RequestHead(url: origin.url("/"))))
    await origin.waitForAbandonedReplies()
    await #expect { _ = try await response.body.collect(upTo: .max) } throws: {
      ($0 as? URLError)?.code == .dataLengthExceedsMaximum
    }
    origin.stop()
  }

  @Test("WebSocket requests are not intercepted")
  func webSocket() throws {
    for (url, isIntercepted) in [("ws://a.test/", false), ("ftp://a.test/", false), ("HTTPS://a.test/", true)] {
      let request = URLRequest(url: try #require(URL(string: url)))
      #expect(CachingURLProtocol.canInit(with: request) == isIntercepted, "\(url)")
    }
  }
}

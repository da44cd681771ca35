import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Synchronization
import Testing

/// A cache in its own directory in memory. At the end of the test the suite's trait ``EndsFixtures`` checks its store
/// and removes the directory.
final class CacheFixture {
  let directory: URL
  let clock = ManualClock()
  let logged = LogLines()
  private(set) var cache: LMDBURLCache

  init(
    memory: Int = 4 << 20, disk: Int = 16 << 20, sourceLocation: SourceLocation = #_sourceLocation,
    configure: (inout LMDBURLCache.Options) -> Void = { _ in }
  ) throws {
    directory = URL(fileURLWithPath: memoryDirectory(for: 64 << 20))
    var options = LMDBURLCache.Options()
    options.clock = { [clock] in clock.now }
    options.log = { [logged] in logged.append($0) }
    configure(&options)
    self.options = options
    cache = try LMDBURLCache(directory: directory, memoryCapacity: memory, diskCapacity: disk, options: options)
    FixtureScope.atEnd(sourceLocation: sourceLocation) { [self] in
      await cache.finishBackgroundWork()
      cache.flush()
      if let store = cache.core.store { #expect(store.checkInvariants() == [], sourceLocation: sourceLocation) }
      // Some tests have removed the directory already.
      try? FileManager.default.removeItem(at: directory)
    }
  }

  private let options: LMDBURLCache.Options

  /// Opens another cache on the same directory. The old one stays valid for its owners.
  func reopen(memory: Int = 4 << 20, disk: Int = 16 << 20) throws {
    cache.flush()
    cache = try LMDBURLCache(directory: directory, memoryCapacity: memory, diskCapacity: disk, options: options)
  }

  /// Returns a session that caches.
  func session(
    delegate: (any URLSessionDelegate)? = nil, on delegateQueue: OperationQueue? = nil,
    _ configure: (URLSessionConfiguration) -> Void = { _ in }
  ) -> URLSession {
    let configuration = URLSessionConfiguration.ephemeral.caching(with: cache)
    configure(configuration)
    return URLSession(configuration: configuration, delegate: delegate, delegateQueue: delegateQueue)
  }
}

/// Runs a test with a fixture and an origin.
func withCache(
  memory: Int = 4 << 20, disk: Int = 16 << 20, configure: (inout LMDBURLCache.Options) -> Void = { _ in },
  sourceLocation: SourceLocation = #_sourceLocation, origin handler: @escaping LoopbackOrigin.Handler,
  _ body: (CacheFixture, LoopbackOrigin) async throws -> Void
) async throws {
  try await FixtureScope.run {
    let fixture = try CacheFixture(memory: memory, disk: disk, sourceLocation: sourceLocation, configure: configure)
    let origin = try LoopbackOrigin(handler: handler)
    defer { origin.stop() }
    do {
      try await body(fixture, origin)
    } catch {
      Issue.record(error, sourceLocation: sourceLocation)
    }
  }
}

/// Returns a response with the given fields.
func httpResponse(_ url: URL, status: Int = 200, _ fields: [String: String] = [:]) -> HTTPURLResponse {
  HTTPURLResponse(url: url, statusCode: status, httpVersion: "HTTP/1.1", headerFields: fields)!
}

func cached(_ url: URL, _ text: String = "body", _ fields: [String: String] = ["Cache-Control": "max-age=600"])
  -> CachedURLResponse
{
  CachedURLResponse(response: httpResponse(url, fields), data: Data(text.utf8))
}

extension URLRequest {
  init(
    _ url: URL, method: String = "GET", policy: CachePolicy = .useProtocolCachePolicy, _ fields: [String: String] = [:]
  ) {
    self.init(url: url, cachePolicy: policy)
    httpMethod = method
    for (name, value) in fields { setValue(value, forHTTPHeaderField: name) }
  }
}

extension Data {
  var text: String { String(decoding: self, as: UTF8.self) }
}

extension URLResponse {
  func field(_ name: String) -> String? { (self as? HTTPURLResponse)?.value(forHTTPHeaderField: name) }
  var status: Int? { (self as? HTTPURLResponse)?.statusCode }
}

/// A delegate that records events and replies as a test specifies.
final class RecordingDelegate: NSObject, URLSessionDataDelegate {
  struct Events: Sendable {
    var responses: [Int] = []
    var chunks: [Data] = []
    var redirects: [URL] = []
    var questions: [Data] = []
    var completions: [URLError.Code?] = []
  }

  private let state = Mutex(Events())
  private let willCache: @Sendable (CachedURLResponse) -> CachedURLResponse?
  private let follow: @Sendable (URLRequest) -> URLRequest?
  private let progress: AsyncStream<Void>.Continuation
  /// An element for each event.
  let changes: AsyncStream<Void>

  init(
    willCache: @escaping @Sendable (CachedURLResponse) -> CachedURLResponse? = { $0 },
    follow: @escaping @Sendable (URLRequest) -> URLRequest? = { $0 }
  ) {
    self.willCache = willCache
    self.follow = follow
    (changes, progress) = AsyncStream.makeStream()
  }

  var events: Events { state.withLock { $0 } }
  var body: Data { events.chunks.reduce(into: Data()) { $0.append($1) } }

  private func record(_ change: (inout Events) -> Void) {
    state.withLock { change(&$0) }
    progress.yield()
  }

  /// Waits until the events satisfy `condition`.
  func wait(until condition: (Events) -> Bool) async {
    if condition(events) { return }
    for await _ in changes where condition(events) { return }
  }

  /// Starts a task and waits for its completion.
  func run(_ task: URLSessionTask) async {
    let count = events.completions.count
    task.resume()
    await wait { $0.completions.count > count }
  }

  func urlSession(
    _ session: URLSession, dataTask: URLSessionDataTask, didReceive response: URLResponse,
    completionHandler: @escaping (URLSession.ResponseDisposition) -> Void
  ) {
    record { $0.responses.append(response.status ?? 0) }
    completionHandler(.allow)
  }

  func urlSession(_ session: URLSession, dataTask: URLSessionDataTask, didReceive data: Data) {
    record { $0.chunks.append(data) }
  }

  func urlSession(
    _ session: URLSession, dataTask: URLSessionDataTask, willCacheResponse proposedResponse: CachedURLResponse,
    completionHandler: @escaping (CachedURLResponse?) -> Void
  ) {
    record { $0.questions.append(proposedResponse.data) }
    completionHandler(willCache(proposedResponse))
  }

  func urlSession(
    _ session: URLSession, task: URLSessionTask, willPerformHTTPRedirection response: HTTPURLResponse,
    newRequest request: URLRequest, completionHandler: @escaping (URLRequest?) -> Void
  ) {
    record { $0.redirects.append(request.url!) }
    completionHandler(follow(request))
  }

  func urlSession(_ session: URLSession, task: URLSessionTask, didCompleteWithError error: (any Error)?) {
    record { $0.completions.append((error as? URLError)?.code) }
  }
}

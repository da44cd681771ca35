import CachingClient
import Foundation
import FoundationNetworking
import HTTPCaching
import Synchronization

/// Connects a `URLSession` to the caching client.
///
/// Data tasks use the caching client. Upload tasks are passed to the built-in protocol: the class that would handle
/// them without this library. Their responses then invalidate stored responses (RFC 9111, section 4.4).
///
/// Foundation's protocols are not `Sendable`, so the loading task refers to this object with an ``AnyThread``.
/// Foundation starts and stops the object on the task's queue. All events are delivered there, too: completing a task
/// twice, or after its cancellation, would stop the process.
final class CachingURLProtocol: URLProtocol {
  private enum Phase: Sendable {
    case idle
    case loading(Task<Void, Never>)
    case builtIn(AnyThread, PassthroughProtocolClient)
    /// All events are delivered, or Foundation has cancelled the task.
    case over
  }

  private struct State: Sendable {
    var phase = Phase.idle
    var isSuspended = false
    /// The continuation of the loading task while it waits for the end of a suspension.
    var sleeper: CheckedContinuation<Void, Never>?
  }

  /// A protocol object that is passed to another thread.
  private struct AnyThread: @unchecked Sendable {
    // Sendable: this class delivers events on the task's queue. A built-in protocol is only started and stopped there.
    let urlProtocol: URLProtocol
  }

  /// A reference to this object for the objects that it owns.
  private final class WeakReference: @unchecked Sendable {
    // Sendable like `AnyThread`; weak references are read atomically, and this one is never set again.
    weak var urlProtocol: CachingURLProtocol?
    init(_ urlProtocol: CachingURLProtocol) { self.urlProtocol = urlProtocol }
  }

  private let state = Mutex(State())
  /// The task's queue; set once, in `startLoading`, before the loading task exists.
  private var queue: DispatchQueue?

  // MARK: Accepted requests

  override class func canInit(with request: URLRequest) -> Bool {
    guard let scheme = request.url?.scheme?.lowercased() else { return false }
    return scheme == "http" || scheme == "https"
  }

  override class func canonicalRequest(for request: URLRequest) -> URLRequest { request }

  // MARK: Loading

  /// Starts loading, or ends a suspension. Foundation calls this at each `resume()` of the task, even if it is running.
  override func startLoading() {
    let (phase, sleeper) = state.withLock { state in
      state.isSuspended = false
      defer { state.sleeper = nil }
      return (state.phase, state.sleeper)
    }
    sleeper?.resume()
    switch phase {
    case .idle: start()
    case .builtIn(let builtIn, _): builtIn.urlProtocol.startLoading()
    case .loading, .over: break
    }
  }

  private func start() {
    guard let task, let request = task.currentRequest else { return fail(URLError.requestWithoutURL) }
    if task is URLSessionDownloadTask {
      // Foundation traps if a class other than its own finishes a download.
      return fail(
        URLError(
          .unsupportedURL,
          "A session that caches cannot run download tasks: use a data task, or a session without caching(with:)."))
    }
    let context = SessionContext.of(task)
    guard let cache = context.cache, let dataTask = task as? URLSessionDataTask, !(task is URLSessionUploadTask)
    else { return loadBuiltIn(request, task, context) }
    load(request, dataTask, context, cache)
  }

  /// Stops or pauses loading. Foundation calls this when the task is cancelled or suspended.
  override func stopLoading() {
    let taskState = task?.state
    // Another thread has resumed the task since it was suspended. Foundation calls `startLoading` for that, too.
    if taskState == .running { return }
    let isSuspension = taskState == .suspended
    let (phase, sleeper) = state.withLock { state in
      state.isSuspended = isSuspension
      let before = (state.phase, state.sleeper)
      if !isSuspension {
        state.phase = .over
        state.sleeper = nil
        return before
      }
      return (state.phase, nil)
    }
    sleeper?.resume()
    switch phase {
    case .loading(let task) where !isSuspension:
      // Cancel on another queue, because cancellation handlers may wait for the present one.
      SessionCalls.queue.async { task.cancel() }
    case .builtIn(let builtIn, let observer):
      if !isSuspension { observer.observeResponse(of: task) }
      builtIn.urlProtocol.stopLoading()
    case .idle, .loading, .over: break
    }
  }

  // MARK: Through the caching client

  private func load(
    _ request: URLRequest, _ task: URLSessionDataTask, _ context: SessionContext, _ cache: LMDBURLCache
  ) {
    let session = TaskReflection.session(of: task)
    var load = CachedLoad(context: context, cache: cache, task: task, session: session, prefetched: cachedResponse)
    var hop = load.firstHop(request)
    // Only a response that the session's own lookup found can be delivered at once. `load.run` looks up the others,
    // such as the stored GET for a HEAD.
    if cachedResponse != nil, var first = hop {
      if let stored = load.storedResponse(to: &first) {
        // Deliver a hit at once, on this queue.
        state.withLock { $0.phase = .over }
        return deliver(stored.response, body: stored.body)
      }
      hop = first
    }
    queue = TaskReflection.queue(of: task)
    let this = AnyThread(urlProtocol: self)
    load.deliversChunks = session.map { TaskReflection.isDelegateDriven(task, in: $0) } ?? false
    state.withLock { state in
      state.phase = .loading(
        Task { [load, hop] in await (this.urlProtocol as? CachingURLProtocol)?.run(load, hop) })
    }
  }

  private func run(_ load: CachedLoad, _ hop: CachedLoad.Hop?) async {
    do {
      guard let limit = load.context.resourceTimeLimit else { return try await finish(load, hop) }
      let this = AnyThread(urlProtocol: self)
      try await withTimeLimit(limit) { try await (this.urlProtocol as? CachingURLProtocol)?.finish(load, hop) }
    } catch {
      let error = FoundationResponse.error(for: error)
      await onTaskQueue(isLast: true) { $0.fail(error) }
    }
  }

  private func finish(_ load: CachedLoad, _ hop: CachedLoad.Hop?) async throws {
    let contentByteCount = load.contentByteCount(of: hop)
    guard load.deliversChunks else {
      let (result, body) = try await load.finish(hop)
      return try await deliver(result, body, contentByteCount: contentByteCount)
    }
    let result = try await load.run(hop)
    try await deliver(result, result.response.body.bytes, contentByteCount: contentByteCount)
  }

  /// The number of bytes after which a delivery waits until the delegate has received them.
  ///
  /// Foundation queues data for the delegate without a limit.
  private static let deliveryByteCount = 1 << 20

  /// - Parameters:
  ///   - body: The complete body; nil to deliver the result's in chunks.
  ///   - contentByteCount: The size of the request's content; 0 if it has none.
  private func deliver(_ result: CachedLoad.Result, _ body: Data?, contentByteCount: Int) async throws {
    let response = try result.urlResponse()
    if contentByteCount > 0 { await onTaskQueue { $0.noteContentSent(byteCount: Int64(contentByteCount)) } }
    if let body {
      await onTaskQueue(isLast: true) { this in
        this.noteProgress(Int64(body.count), of: Int64(body.count))
        this.deliver(response, body: body)
      }
      return
    }
    let final = FinalResponse.make(response)
    await onTaskQueue { this in
      this.client?.urlProtocol(this, didReceive: final, cacheStoragePolicy: .notAllowed)
    }
    let expected = response.expectedContentLength
    var total: Int64 = 0
    var byteCount = 0
    for try await chunk in result.response.body {
      total += Int64(chunk.count)
      let step = { @Sendable [total] (this: CachingURLProtocol) in
        this.noteProgress(total, of: expected)
        this.client?.urlProtocol(this, didLoad: chunk)
      }
      guard await onTaskQueue(step) else { return }
      byteCount += chunk.count
      guard byteCount >= Self.deliveryByteCount else { continue }
      byteCount = 0
      await waitForDelegate()
    }
    await onTaskQueue(isLast: true) { [total] this in
      this.noteProgress(total, of: total)
      final.whileEnding { this.client?.urlProtocolDidFinishLoading(this) }
    }
  }

  /// Shows in the task's progress how much of the body has arrived. Foundation does that for its own protocols alone.
  private func noteProgress(_ byteCount: Int64, of expected: Int64) {
    guard let progress = task?.progress else { return }
    progress.totalUnitCount = expected < byteCount ? -1 : expected
    progress.completedUnitCount = byteCount
  }

  /// Waits until the delegate's queue has run what was added to it, if it is serial as by default. Another queue starts
  /// this operation as soon as one of its threads is free.
  private func waitForDelegate() async {
    guard let queue = task.flatMap({ TaskReflection.session(of: $0) })?.delegateQueue else { return }
    // Foundation loses about one of a million barrier blocks until something else is added, but no operation.
    await withCheckedContinuation { continuation in queue.addOperation { continuation.resume() } }
  }

  /// Tells the delegate that the content of the request was sent.
  private func noteContentSent(byteCount: Int64) {
    guard let task, let delegate = task.delegate, let session = TaskReflection.session(of: task) else { return }
    session.delegateQueue.addOperation {
      delegate.urlSession(
        session, task: task, didSendBodyData: byteCount, totalBytesSent: byteCount, totalBytesExpectedToSend: byteCount)
    }
  }

  private func deliver(_ response: URLResponse, body: Data) {
    let response = FinalResponse.make(response)
    client?.urlProtocol(self, didReceive: response, cacheStoragePolicy: .notAllowed)
    if !body.isEmpty { client?.urlProtocol(self, didLoad: body) }
    response.whileEnding { client?.urlProtocolDidFinishLoading(self) }
  }

  private func fail(_ error: any Error) {
    state.withLock { $0.phase = .over }
    client?.urlProtocol(self, didFailWithError: error)
  }

  /// Runs a step on the task's queue, unless the task is over. While the task is suspended, the step waits.
  ///
  /// - Returns: False if the task is over.
  @discardableResult
  private func onTaskQueue(
    isLast: Bool = false, _ step: @escaping @Sendable (CachingURLProtocol) -> Void
  ) async -> Bool {
    await waitWhileSuspended()
    let this = AnyThread(urlProtocol: self)
    return await withCheckedContinuation { continuation in
      let work = { @Sendable in
        guard let this = this.urlProtocol as? CachingURLProtocol else { return continuation.resume(returning: false) }
        let isLoading = this.state.withLock { state in
          switch state.phase {
          case .loading, .builtIn: break
          case .idle, .over: return false
          }
          if isLast { state.phase = .over }
          return true
        }
        if isLoading { step(this) }
        continuation.resume(returning: isLoading)
      }
      if let queue { queue.async(execute: work) } else { work() }
    }
  }

  private func waitWhileSuspended() async {
    await withCheckedContinuation { continuation in
      let waits = state.withLock { state in
        if state.isSuspended { state.sleeper = continuation }
        return state.isSuspended
      }
      if !waits { continuation.resume() }
    }
  }

  // MARK: Requests that bypass the cache

  /// Returns the forwarded request that updates the cache; nil without a cache.
  private func forwarded(_ request: URLRequest, _ context: SessionContext) -> ForwardedRequest<ResponseCache>? {
    guard let cache = context.cache else { return nil }
    let completed = context.addingFields(to: request)
    return context.clientRequest(completed, context: RequestContext(request: completed), cache: cache).map {
      ForwardedRequest($0, past: cache.client)
    }
  }

  private func loadBuiltIn(_ request: URLRequest, _ task: URLSessionTask, _ context: SessionContext) {
    guard let client, let builtInClass = context.builtInClass(for: request) else {
      return fail(
        URLError(
          .unsupportedURL,
          "No protocol class of the session sends this request. Add one to protocolClasses of its configuration."))
    }
    queue = TaskReflection.queue(of: task)
    let this = WeakReference(self)
    let observer = PassthroughProtocolClient(
      client, forwarded: forwarded(request, context),
      afterRedirects: { this.urlProtocol?.forwarded($0, context) }
    ) { finish in await this.urlProtocol?.onTaskQueue(isLast: true) { _ in finish() } }
    let builtIn = AnyThread(urlProtocol: builtInClass.init(task: task, cachedResponse: nil, client: observer))
    state.withLock { $0.phase = .builtIn(builtIn, observer) }
    builtIn.urlProtocol.startLoading()
  }
}

/// The queue for calls of `resume()` and `cancel()`.
///
/// They wait for a queue that all sessions of the process share, and would deadlock if they were called on it.
enum SessionCalls {
  static let queue = DispatchQueue(label: "LMDBURLCache.session-calls")
}

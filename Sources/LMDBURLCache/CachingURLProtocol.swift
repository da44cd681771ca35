import CachingClient
import Foundation
import HTTPCaching
import Synchronization

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// Puts the engine between a `URLSession` and the origin.
///
/// GET and HEAD of data tasks go through the engine. Everything else is loaded by the class that would have had it without
/// us; the answer to an unsafe method then invalidates what it changed.
///
/// Foundation declares protocols not `Sendable`, so the loading task reaches this object by an ``AnyThread``. Foundation
/// starts and stops it on the task's queue, and there everything is delivered too: a task that is completed twice, or after
/// it was cancelled, would stop the process.
final class CachingURLProtocol: URLProtocol {
  private enum Phase: Sendable {
    case idle
    case loading(Task<Void, Never>)
    case builtIn(AnyThread, ForwardingClient)
    /// Everything is delivered, or Foundation has cancelled the task.
    case over
  }

  private struct State: Sendable {
    var phase = Phase.idle
    var isSuspended = false
    /// The loading task, waiting for the end of a suspension.
    var sleeper: CheckedContinuation<Void, Never>?
  }

  /// A protocol object handed to another thread.
  private struct AnyThread: @unchecked Sendable {
    // Sendable: ours, as the class says; a built-in one is only told to start and to stop, on the task's queue.
    let urlProtocol: URLProtocol
  }

  /// This object, for those whom it owns.
  private final class WeakReference: @unchecked Sendable {
    // Sendable: as `AnyThread`; weak references are loaded atomically, and this one is never set again.
    weak var urlProtocol: CachingURLProtocol?
    init(_ urlProtocol: CachingURLProtocol) { self.urlProtocol = urlProtocol }
  }

  private let state = Mutex(State())
  /// The task's queue; set once, in `startLoading`, before the loading task exists.
  private var queue: DispatchQueue?

  // MARK: Which requests

  override class func canInit(with request: URLRequest) -> Bool {
    guard let scheme = request.url?.scheme?.lowercased() else { return false }
    return scheme == "http" || scheme == "https"
  }

  override class func canonicalRequest(for request: URLRequest) -> URLRequest { request }

  // MARK: Loading

  /// Called by Foundation at each `resume()` of the task, so also to end a suspension, or once more for nothing.
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
    guard let task, let request = task.currentRequest else { return fail(URLError(.badURL)) }
    if task is URLSessionDownloadTask {
      // Foundation traps when another class than its own finishes a download.
      return fail(
        URLError(
          .unsupportedURL,
          userInfo: [
            NSLocalizedDescriptionKey:
              "A session that caches cannot run download tasks: use a data task, or a session without caching(with:)."
          ]))
    }
    let context = SessionContext.of(task)
    let method = request.httpMethod ?? "GET"
    let hasBody = request.httpBody != nil || request.httpBodyStream != nil
    guard let cache = context.cache, let dataTask = task as? URLSessionDataTask, !(task is URLSessionUploadTask),
      method == "GET" || method == "HEAD", !hasBody
    else { return loadBuiltIn(request, task, context) }
    load(request, dataTask, context, cache)
  }

  /// Called by Foundation when the task is cancelled, and when it is suspended.
  override func stopLoading() {
    let isSuspension = task?.state == .suspended
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
      // Cancelling runs handlers that may wait for the queue that this runs on.
      SessionCalls.queue.async { task.cancel() }
    case .builtIn(let builtIn, let observer):
      if !isSuspension { observer.look(at: task) }
      builtIn.urlProtocol.stopLoading()
    case .idle, .loading, .over: break
    }
  }

  // MARK: Through the engine

  private func load(
    _ request: URLRequest, _ task: URLSessionDataTask, _ context: SessionContext, _ cache: LMDBURLCache
  ) {
    let load = CachedLoad(
      context: context, cache: cache, task: task, session: TaskReflection.session(of: task),
      prefetched: cachedResponse)
    // Where the session's own lookup found nothing, another one would not either.
    if cachedResponse != nil, let answer = load.storedAnswer(to: request) {
      // On this queue and at once: a hit needs no other thread.
      state.withLock { $0.phase = .over }
      return deliver(answer.response, body: answer.body)
    }
    queue = TaskReflection.queue(of: task)
    let this = AnyThread(urlProtocol: self)
    let deliversChunks = load.deliversChunks
    state.withLock { state in
      state.phase = .loading(
        Task { await (this.urlProtocol as? CachingURLProtocol)?.run(load, request, inChunks: deliversChunks) })
    }
  }

  private func run(_ load: CachedLoad, _ request: URLRequest, inChunks: Bool) async {
    do {
      let (answer, url) = try await load.run(request)
      try await deliver(answer, url, inChunks: inChunks)
    } catch {
      let error = FoundationAnswer.error(for: error)
      await onTaskQueue(isLast: true) { $0.fail(error) }
    }
  }

  private func deliver(
    _ answer: CachingClient<CacheStorage>.Response, _ url: URL, inChunks: Bool
  ) async throws {
    let response = SendableResponse(try FoundationAnswer.response(for: answer, url: url))
    guard inChunks, answer.body.bytes == nil else {
      let body = try await answer.body.collect(upTo: .max)
      await onTaskQueue(isLast: true) { $0.deliver(response.response, body: body) }
      return
    }
    await onTaskQueue { this in
      this.client?.urlProtocol(this, didReceive: response.response, cacheStoragePolicy: .notAllowed)
    }
    for try await chunk in answer.body {
      guard await onTaskQueue({ $0.client?.urlProtocol($0, didLoad: chunk) }) else { return }
    }
    await onTaskQueue(isLast: true) { $0.client?.urlProtocolDidFinishLoading($0) }
  }

  private func deliver(_ response: URLResponse, body: Data) {
    client?.urlProtocol(self, didReceive: response, cacheStoragePolicy: .notAllowed)
    if !body.isEmpty { client?.urlProtocol(self, didLoad: body) }
    client?.urlProtocolDidFinishLoading(self)
  }

  private func fail(_ error: any Error) {
    state.withLock { $0.phase = .over }
    client?.urlProtocol(self, didFailWithError: error)
  }

  /// Runs a step on the queue on which the task is cancelled, unless it was; later, if the task is suspended.
  ///
  /// - Returns: False if there is nothing more to do.
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

  // MARK: As without us

  /// What becomes of the store by a request that goes past it.
  private func forwarded(
    _ request: URLRequest, _ task: URLSessionTask, _ context: SessionContext
  ) -> ForwardedRequest<CacheStorage>? {
    guard let cache = context.cache else { return nil }
    let completed = context.complete(request, addsCookies: false)
    guard
      var asked = context.clientRequest(completed, context: RequestContext(request: completed), cache: cache)
    else { return nil }
    if let task = task as? URLSessionDataTask {
      asked.willStore = StorageQuestion.willStore(asked.head, task, TaskReflection.session(of: task), cache)
    }
    return ForwardedRequest(asked, past: cache.engine)
  }

  private func loadBuiltIn(_ request: URLRequest, _ task: URLSessionTask, _ context: SessionContext) {
    guard let client, let builtInClass = context.builtInClass(for: request) else {
      return fail(URLError(.unsupportedURL))
    }
    queue = TaskReflection.queue(of: task)
    let this = WeakReference(self)
    let observer = ForwardingClient(
      client, forwarded: forwarded(request, task, context),
      afterRedirects: { this.urlProtocol?.forwarded($0, task, context) },
      bodyLimit: request.httpMethod == "POST" ? context.cache?.engine.maximumBodyByteCount ?? 0 : 0
    ) { finish in await this.urlProtocol?.onTaskQueue(isLast: true) { _ in finish() } }
    let builtIn = AnyThread(urlProtocol: builtInClass.init(task: task, cachedResponse: nil, client: observer))
    state.withLock { $0.phase = .builtIn(builtIn, observer) }
    builtIn.urlProtocol.startLoading()
  }
}

/// Where tasks are resumed and cancelled: `resume()` and `cancel()` wait for a queue that the sessions of the process share,
/// and called on it they would wait for themselves.
enum SessionCalls {
  static let queue = DispatchQueue(label: "LMDBURLCache.session-calls")
}

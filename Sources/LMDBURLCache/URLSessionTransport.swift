import CachingClient
import Foundation
import HTTPCaching
import Synchronization

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// Reaches the origin by a `URLSession` that does not cache. Redirects are not followed, errors are passed on as they are.
///
/// May be used from many tasks at once. A session of its own is invalidated with the transport, when its tasks have finished.
public final class URLSessionTransport: Transport {
  /// The session that carries the requests.
  public let session: URLSession
  /// Hands the session's calls to the exchange they belong to; nil for a session of someone else.
  private let switchboard: Switchboard?

  /// A transport over a session of someone else, which keeps its delegate. Bodies arrive in one piece.
  ///
  /// - Parameter session: A session without a cache.
  public init(session: URLSession) {
    self.session = session
    switchboard = nil
  }

  /// A transport over a session of its own; bodies are streamed.
  ///
  /// - Parameter configuration: What the session is made with. It should have no cache.
  public init(configuration: URLSessionConfiguration) {
    let switchboard = Switchboard()
    session = URLSession(configuration: configuration, delegate: switchboard, delegateQueue: nil)
    self.switchboard = switchboard
  }

  deinit {
    if switchboard != nil { session.finishTasksAndInvalidate() }
  }

  /// Sends a request and returns when its final head has arrived.
  ///
  /// - Throws: The session's error, unchanged; `CancellationError` when the calling task was cancelled.
  public func send(_ request: OutgoingRequest) async throws -> IncomingResponse {
    let context = request.context as? RequestContext
    var urlRequest = (context?.request ?? URLRequest(url: request.head.url)).replacing(request.head)
    urlRequest.cachePolicy = .useProtocolCachePolicy
    if case .bytes(let data) = request.body { urlRequest.httpBody = data }
    CachingURLProtocol.bypass(&urlRequest)
    guard let switchboard else { return try await sendInOnePiece(urlRequest) }
    let exchange = Exchange()
    let outgoing = urlRequest
    return try await withTaskCancellationHandler {
      try Task.checkCancellation()
      return try await exchange.start { [session] in
        let task = session.dataTask(with: outgoing)
        switchboard.connect(exchange, to: task)
        return task
      }
    } onCancel: {
      exchange.cancel()
    }
  }

  private func sendInOnePiece(_ request: URLRequest) async throws -> IncomingResponse {
    let (data, response) = try await session.data(for: request, delegate: RedirectRefuser())
    guard let response = response as? HTTPURLResponse else { throw URLError(.badServerResponse) }
    var incoming = IncomingResponse(
      head: response.head, body: ResponseBody(data),
      isContentDecoded: response.value(forHTTPHeaderField: "Content-Encoding") != nil)
    incoming.lacksContent = data.isEmpty && response.isRedirect
    return incoming
  }
}

/// Redirects are followed outside, one request to the engine for each hop.
private final class RedirectRefuser: NSObject, URLSessionTaskDelegate {
  func urlSession(
    _ session: URLSession, task: URLSessionTask, willPerformHTTPRedirection response: HTTPURLResponse,
    newRequest request: URLRequest, completionHandler: @escaping (URLRequest?) -> Void
  ) {
    completionHandler(nil)
  }
}

/// A session's delegate that knows which exchange each task belongs to. (A delegate of the task alone is not called on Linux
/// when the session has none.)
private final class Switchboard: NSObject, URLSessionDataDelegate {
  private let exchanges = Mutex<[Int: Exchange]>([:])

  func connect(_ exchange: Exchange, to task: URLSessionTask) {
    exchanges.withLock { $0[task.taskIdentifier] = exchange }
  }

  private func exchange(_ task: URLSessionTask) -> Exchange? {
    exchanges.withLock { $0[task.taskIdentifier] }
  }

  func urlSession(
    _ session: URLSession, dataTask: URLSessionDataTask, didReceive response: URLResponse,
    completionHandler: @escaping (URLSession.ResponseDisposition) -> Void
  ) {
    exchange(dataTask)?.receive(response)
    completionHandler(.allow)
  }

  func urlSession(_ session: URLSession, dataTask: URLSessionDataTask, didReceive data: Data) {
    exchange(dataTask)?.receive(data, of: dataTask)
  }

  func urlSession(_ session: URLSession, task: URLSessionTask, didCompleteWithError error: (any Error)?) {
    let exchange = exchanges.withLock { $0.removeValue(forKey: task.taskIdentifier) }
    exchange?.complete(task, error)
  }

  func urlSession(
    _ session: URLSession, task: URLSessionTask, willPerformHTTPRedirection response: HTTPURLResponse,
    newRequest request: URLRequest, completionHandler: @escaping (URLRequest?) -> Void
  ) {
    completionHandler(nil)
  }

  func urlSession(
    _ session: URLSession, task: URLSessionTask, didReceive challenge: URLAuthenticationChallenge,
    completionHandler: @escaping @Sendable (URLSession.AuthChallengeDisposition, URLCredential?) -> Void
  ) {
    // The 401 has come with all of its body, and is the answer: the session outside gets it, and may have credentials. Without
    // them Foundation would leave the task unfinished.
    exchanges.withLock { $0.removeValue(forKey: task.taskIdentifier) }?.complete(task, nil)
    completionHandler(.cancelAuthenticationChallenge, nil)
  }
}

/// One request and its answer: the delegate's calls in, a head and chunks out.
private final class Exchange: Sendable {
  private enum Head {
    case awaited(CheckedContinuation<IncomingResponse, any Error>?)
    case delivered
  }

  private struct State {
    var head = Head.awaited(nil)
    /// What has come and is not read yet.
    var unread = Data()
    var end: Result<Void, any Error>?
    var reader: CheckedContinuation<Data?, any Error>?
    var task: URLSessionDataTask?
  }

  private let state = Mutex(State())

  /// Makes a task, starts it, and waits for its head.
  ///
  /// - Parameter make: Called on a queue of ours: making a task waits for the sessions' queue as well, and whoever awaits this
  ///   must not block a thread that others' tasks need.
  func start(_ make: @escaping @Sendable () -> URLSessionDataTask) async throws -> IncomingResponse {
    var incoming = try await withCheckedThrowingContinuation { continuation in
      let end = state.withLock { state -> Result<Void, any Error>? in
        if state.end == nil { state.head = .awaited(continuation) }
        return state.end
      }
      if case .failure(let error)? = end { return continuation.resume(throwing: error) }
      SessionCalls.queue.async {
        guard self.state.withLock({ $0.end == nil }) else { return }
        let task = make()
        self.state.withLock { $0.task = task }
        task.resume()
      }
    }
    // Made by the one who reads it, not by the delegate's thread.
    incoming.body = ResponseBody(next: { [body = BodyReader(exchange: self)] in try await body.next() })
    return incoming
  }

  /// Ends it for whoever waits, and then the transfer.
  func cancel() {
    finish(.failure(CancellationError()))
    // On the queue on which the task is made, so that it is either there or never made.
    SessionCalls.queue.async { self.state.withLock { $0.task }?.cancel() }
  }

  func cancelUnlessOver() {
    if state.withLock({ $0.end == nil }) { cancel() }
  }

  // MARK: In

  /// - Parameter isOver: whether the task has ended, so that no content follows.
  func receive(_ response: URLResponse, isOver: Bool = false) {
    guard let response = response as? HTTPURLResponse, response.statusCode >= 200 else { return }
    let continuation = state.withLock { state -> CheckedContinuation<IncomingResponse, any Error>? in
      guard case .awaited(let continuation?) = state.head else { return nil }
      state.head = .delivered
      return continuation
    }
    guard let continuation else { return }
    var incoming = IncomingResponse(
      head: response.head, body: .empty,
      isContentDecoded: response.value(forHTTPHeaderField: "Content-Encoding") != nil)
    // Without a Location to follow, Foundation drops the content.
    incoming.lacksContent = isOver && response.isRedirect
    continuation.resume(returning: incoming)
  }

  func receive(_ data: Data, of task: URLSessionTask) {
    if let response = task.response { receive(response) }
    let reader = state.withLock { state -> CheckedContinuation<Data?, any Error>? in
      guard state.end == nil else { return nil }
      guard let reader = state.reader else {
        state.unread.append(data)
        return nil
      }
      state.reader = nil
      return reader
    }
    reader?.resume(returning: data)
  }

  func complete(_ task: URLSessionTask, _ error: (any Error)?) {
    // A redirect's head comes only with its end.
    if error == nil, let response = task.response { receive(response, isOver: true) }
    finish(error.map { .failure($0) } ?? .success(()))
  }

  private func finish(_ end: Result<Void, any Error>) {
    typealias Waiting = (
      head: CheckedContinuation<IncomingResponse, any Error>?, reader: CheckedContinuation<Data?, any Error>?
    )
    let waiting = state.withLock { state -> Waiting in
      guard state.end == nil else { return (nil, nil) }
      state.end = end
      var waiting: Waiting = (nil, state.reader)
      state.reader = nil
      if case .awaited(let head) = state.head {
        waiting.head = head
        state.head = .delivered
      }
      return waiting
    }
    switch end {
    case .success:
      // An answer without a head is none.
      waiting.head?.resume(throwing: URLError(.badServerResponse))
      waiting.reader?.resume(returning: nil)
    case .failure(let error):
      waiting.head?.resume(throwing: error)
      waiting.reader?.resume(throwing: error)
    }
  }

  // MARK: Out

  /// The next chunk, or nil at the end; throws if the transfer ended early.
  func nextChunk() async throws -> Data? {
    try await withCheckedThrowingContinuation { continuation in
      let now = state.withLock { state -> Result<Data?, any Error>? in
        if !state.unread.isEmpty {
          defer { state.unread = Data() }
          return .success(state.unread)
        }
        switch state.end {
        case .success?: return .success(nil)
        case .failure(let error)?: return .failure(error)
        case nil:
          state.reader = continuation
          return nil
        }
      }
      if let now { continuation.resume(with: now) }
    }
  }

  /// The end of a body that is read: when nobody reads it any more, the transfer is ended.
  private final class BodyReader: Sendable {
    let exchange: Exchange

    init(exchange: Exchange) {
      self.exchange = exchange
    }

    deinit {
      exchange.cancelUnlessOver()
    }

    func next() async throws -> Data? {
      try await withTaskCancellationHandler {
        try await exchange.nextChunk()
      } onCancel: {
        exchange.cancel()
      }
    }
  }
}

extension HTTPURLResponse {
  /// Whether Foundation takes it for a redirect, with a Location or without.
  fileprivate var isRedirect: Bool { (300..<400).contains(statusCode) && statusCode != 304 }
}

import CachingClient
import Foundation
import FoundationNetworking
import HTTPCaching
import Synchronization

/// Sends requests over its own `URLSession`, which does not cache.
///
/// The transport does not follow redirects, streams bodies, and throws the session's errors unchanged. Many tasks can
/// use it at once. When it is released, its session is invalidated after the session's tasks have finished.
///
/// Foundation cannot make an origin wait for a slow reader. A response of which more than 64 MiB are unread fails with
/// `URLError.dataLengthExceedsMaximum`. `CurlTransport` has no such limit.
public final class FoundationTransport: Transport {
  /// The session that sends the requests.
  public let session: URLSession
  private let router = TaskRouter()
  /// The responder to challenges; nil if a 401 is the response.
  private let challenges: ChallengeResponder?
  /// The time limit in seconds of requests that have none.
  private let sessionTimeLimit: TimeInterval
  private let maximumUnreadByteCount: Int

  /// Creates a transport with the configuration of a session, whose delegate responds to Basic challenges.
  ///
  /// The transport sends requests over its own session, because it must handle redirects and challenges itself.
  /// Invalidating `session` therefore does not end these requests.
  ///
  /// - Parameter session: Any session. It is not retained. After its release, its delegate gets no challenges.
  public convenience init(session: URLSession) {
    let configuration = session.configuration.copied
    configuration.leaveCachingOut()
    self.init(configuration: configuration) { [weak session] inner in
      ChallengeResponder(
        session: { [weak session] in session }, storage: inner.configuration.urlCredentialStorage,
        task: .idle { inner })
    }
  }

  /// Creates a transport with a configuration. It returns a 401 as the response.
  ///
  /// - Parameter configuration: The configuration of the session. It should have no cache.
  public convenience init(configuration: URLSessionConfiguration) {
    self.init(configuration: configuration) { _ in nil }
  }

  /// - Parameters:
  ///   - maximumUnreadByteCount: The number of unread bytes of a response above which it fails.
  ///   - makeChallenges: Returns the responder to challenges for the new session; nil if a 401 is the response.
  init(
    configuration: URLSessionConfiguration, maximumUnreadByteCount: Int = 64 << 20,
    _ makeChallenges: (URLSession) -> ChallengeResponder?
  ) {
    sessionTimeLimit = configuration.timeoutIntervalForRequest.asTimeLimit
    self.maximumUnreadByteCount = maximumUnreadByteCount
    session = URLSession(configuration: configuration, delegate: router, delegateQueue: ImmediateQueue())
    challenges = makeChallenges(session)
  }

  deinit {
    session.finishTasksAndInvalidate()
  }

  /// Sends a request and returns when the final head has arrived.
  ///
  /// - Throws: The session's error, unchanged; `CancellationError` if the calling task was cancelled or the session's
  ///   delegate cancelled a challenge.
  public func send(_ request: OutgoingRequest) async throws -> IncomingResponse {
    guard let challenges else { return try await carry(request) }
    return try await challenges.send(request, over: carry)
  }

  /// Sends a request once.
  private func carry(_ request: OutgoingRequest) async throws -> IncomingResponse {
    var outgoing = request.urlRequest
    outgoing.cachePolicy = .useProtocolCachePolicy
    if case .bytes(let data) = request.body { outgoing.httpBody = data }
    if let limit = outgoing.ownTimeLimit { outgoing.timeoutInterval = limit.asTimeLimit }
    let exchange = SessionExchange(
      timeLimit: outgoing.ownTimeLimit ?? sessionTimeLimit, maximumUnreadByteCount: maximumUnreadByteCount)
    return try await withTaskCancellationHandler {
      try Task.checkCancellation()
      return try await exchange.start { [session, router, outgoing] in
        let task = session.dataTask(with: outgoing)
        router.connect(exchange, to: task)
        return task
      }
    } onCancel: {
      exchange.cancel()
    }
  }
}

/// Runs the session's delegate calls directly on the queue on which Foundation changes the task.
///
/// A reply to a redirect then takes effect before anything else can happen to the task. A timeout in between would make
/// Foundation stop the process. No delegate call may wait for that queue.
private final class ImmediateQueue: OperationQueue, @unchecked Sendable {
  // Sendable like its superclass; it has no state.
  override func addOperation(_ block: @escaping @Sendable () -> Void) { block() }
}

/// The session delegate, which passes each call to the exchange of the task.
///
/// On Linux, a task's own delegate is not called if the session has none.
private final class TaskRouter: NSObject, URLSessionDataDelegate {
  private let exchanges = Mutex<[Int: SessionExchange]>([:])

  func connect(_ exchange: SessionExchange, to task: URLSessionTask) {
    exchanges.withLock { $0[task.taskIdentifier] = exchange }
  }

  private func exchange(_ task: URLSessionTask) -> SessionExchange? {
    exchanges.withLock { $0[task.taskIdentifier] }
  }

  private func takeExchange(_ task: URLSessionTask) -> SessionExchange? {
    exchanges.withLock { $0.removeValue(forKey: task.taskIdentifier) }
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
    takeExchange(task)?.complete(task, error)
  }

  // Callers follow redirects, with one request to the caching client for each hop.
  func urlSession(
    _ session: URLSession, task: URLSessionTask, willPerformHTTPRedirection response: HTTPURLResponse,
    newRequest request: URLRequest, completionHandler: @escaping (URLRequest?) -> Void
  ) {
    exchange(task)?.refuseRedirect(response) { completionHandler(nil) }
  }

  func urlSession(
    _ session: URLSession, task: URLSessionTask, didReceive challenge: URLAuthenticationChallenge,
    completionHandler: @escaping @Sendable (URLSession.AuthChallengeDisposition, URLCredential?) -> Void
  ) {
    // The 401 is complete and is the response. If Foundation handled the challenge, the task would never end without
    // credentials, and this transport would not know that credentials were used.
    takeExchange(task)?.complete(task, nil)
    // This cancels the task, which waits for the present queue.
    SessionCalls.queue.async { completionHandler(.cancelAuthenticationChallenge, nil) }
  }
}

extension URLSessionConfiguration {
  /// Changes the configuration so that its sessions never ask a cache. Call this on a copy.
  func leaveCachingOut() {
    urlCache = nil
    let isOther = { (candidate: AnyClass) in candidate != CachingURLProtocol.self }
    let others = (protocolClasses ?? []).filter(isOther)
    // Without any class, Foundation would ask all registered classes, including this library's.
    protocolClasses = others.isEmpty ? URLSessionConfiguration.ephemeral.protocolClasses?.filter(isOther) : others
    timeoutIntervalForRequest = timeoutIntervalForRequest.asTimeLimit
  }
}

extension URLRequest {
  /// The request's own time limit in seconds; nil if the session's time limit applies.
  ///
  /// Foundation on Linux records in the request's second, private stored property whether a limit was set. If a later
  /// Foundation records it elsewhere, every limit except the default counts as set. A test would then fail.
  var ownTimeLimit: TimeInterval? {
    let isSet = withUnsafeBytes(of: self) { bytes in
      bytes.count == MemoryLayout<UnsafeRawPointer>.size + 1 ? bytes.last != 0 : nil
    }
    return isSet ?? (timeoutInterval != 60) ? timeoutInterval : nil
  }
}

extension TimeInterval {
  /// The nearest time limit that Foundation supports.
  ///
  /// Foundation makes less than a second a millisecond, and stops the process if the milliseconds are not an integer.
  var asTimeLimit: TimeInterval { self < 1e9 ? Swift.max(1, self) : 1e9 }
}

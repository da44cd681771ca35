import CachingClient
import Foundation
import FoundationNetworking
import HTTPCaching
import Synchronization

/// Sends requests over its own `URLSession`, which does not cache.
///
/// The transport does not follow redirects, streams bodies, and throws the session's errors unchanged. Many tasks can
/// use it at once. When it is released, its session is invalidated after the session's tasks have finished.
public final class URLSessionTransport: Transport {
  /// The session that sends the requests.
  public let session: URLSession
  private let router = TaskRouter()
  /// The responder to challenges; nil if a 401 is the response.
  private let challenges: ChallengeResponder?
  /// The time limit in seconds of requests that have none.
  private let sessionTimeLimit: TimeInterval

  /// Creates a transport with the configuration of a session, whose delegate responds to challenges.
  ///
  /// The transport sends requests over its own session, because it must handle redirects and challenges itself.
  /// Invalidating `session` therefore does not end these requests.
  ///
  /// - Parameter session: Any session. It is not retained. After its release, its delegate gets no challenges.
  public convenience init(session: URLSession) {
    let configuration = session.configuration
    configuration.leaveCachingOut()
    self.init(configuration: configuration, challenges: ChallengeResponder(session: session))
  }

  /// Creates a transport with a configuration. It returns a 401 as the response.
  ///
  /// - Parameter configuration: The configuration of the session. It should have no cache.
  public convenience init(configuration: URLSessionConfiguration) {
    self.init(configuration: configuration, challenges: nil)
  }

  init(configuration: URLSessionConfiguration, challenges: ChallengeResponder?) {
    self.challenges = challenges
    sessionTimeLimit = configuration.timeoutIntervalForRequest.asTimeLimit
    session = URLSession(configuration: configuration, delegate: router, delegateQueue: ImmediateQueue())
  }

  deinit {
    session.finishTasksAndInvalidate()
  }

  /// The number of received body bytes that are not read yet.
  var unreadByteCount: Int { router.unreadByteCount }

  /// Whether there may be credentials for an origin that requests them.
  var hasCredentials: Bool { challenges?.hasCredentials(session.configuration.urlCredentialStorage) ?? false }

  /// Sends a request and returns when the final head has arrived.
  ///
  /// - Throws: The session's error, unchanged; `CancellationError` if the calling task was cancelled or the session's
  ///   delegate cancelled a challenge.
  public func send(_ request: OutgoingRequest) async throws -> IncomingResponse {
    let context = request.context as? RequestContext
    var outgoing = (context?.request ?? URLRequest(url: request.head.url)).replacing(request.head)
    outgoing.cachePolicy = .useProtocolCachePolicy
    if case .bytes(let data) = request.body { outgoing.httpBody = data }
    if let limit = outgoing.ownTimeLimit { outgoing.timeoutInterval = limit.asTimeLimit }
    guard let challenges else { return try await exchange(outgoing, holdsUnauthorized: false).response }

    var login = ChallengeResponder.Login()
    while true {
      var (response, challenge) = try await exchange(outgoing, holdsUnauthorized: true)
      // A body stream was consumed and cannot be resent.
      if let challenge, outgoing.httpBodyStream == nil, let field = try await challenges.answer(challenge, &login) {
        outgoing.setValue(field, forHTTPHeaderField: "Authorization")
        continue
      }
      if response.head.status != 401 { login.keep(in: session.configuration.urlCredentialStorage) }
      response.usedUnseenCredentials = login.isUsed
      return response
    }
  }

  /// Sends a request once.
  ///
  /// - Parameter holdsUnauthorized: Whether a 401 is returned only when it is complete, together with its challenge.
  private func exchange(
    _ request: URLRequest, holdsUnauthorized: Bool
  ) async throws -> (response: IncomingResponse, challenge: SessionExchange.Challenge?) {
    let exchange = SessionExchange(
      holdsUnauthorized: holdsUnauthorized, timeLimit: request.ownTimeLimit ?? sessionTimeLimit)
    return try await withTaskCancellationHandler {
      try Task.checkCancellation()
      let response = try await exchange.start { [session, router] in
        let task = session.dataTask(with: request)
        router.connect(exchange, to: task)
        return task
      }
      return (response, exchange.challenge)
    } onCancel: {
      exchange.cancel()
    }
  }

  /// Calls `body` with a task that is never started, for delegate methods that require a task.
  func withIdleTask<R: Sendable>(
    for request: URLRequest, _ body: (URLSessionTask) async throws -> R
  ) async rethrows -> R {
    let task = await withCheckedContinuation { continuation in
      SessionCalls.queue.async { [session] in continuation.resume(returning: session.dataTask(with: request)) }
    }
    // Cancel the task, because its session would otherwise retain it.
    defer { SessionCalls.queue.async { task.cancel() } }
    return try await body(task)
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

  var unreadByteCount: Int {
    exchanges.withLock { Array($0.values) }.reduce(0) { $0 + $1.unreadByteCount }
  }

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
    takeExchange(task)?.complete(task, challenge)
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

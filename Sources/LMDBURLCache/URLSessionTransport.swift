import CachingClient
import Foundation
import HTTPCaching
import Synchronization

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// Reaches the origin over a `URLSession` of its own that does not cache.
///
/// Redirects are not followed, bodies are streamed, and errors are passed on as they are. May be used from many tasks
/// at once. The session is invalidated with the transport, when its tasks have finished.
public final class URLSessionTransport: Transport {
  /// The session that carries the requests.
  public let session: URLSession
  private let switchboard = Switchboard()
  /// Who answers challenges; nil if a 401 is simply the response.
  private let challenges: ChallengeResponder?
  /// In seconds, of requests without a time limit of their own.
  private let sessionTimeLimit: TimeInterval

  /// A transport with the configuration of a session, whose delegate answers challenges.
  ///
  /// The requests are carried by a session of the transport's own: only so is it known what became of redirects and
  /// challenges. Invalidating `session` therefore does not end them.
  ///
  /// - Parameter session: Any session. It is not kept alive; once it is gone, nobody answers challenges for it.
  public convenience init(session: URLSession) {
    let configuration = session.configuration
    configuration.leaveCachingOut()
    self.init(configuration: configuration, challenges: ChallengeResponder(session: session))
  }

  /// A transport with a configuration. A 401 is the response.
  ///
  /// - Parameter configuration: What the session is made with. It should have no cache.
  public convenience init(configuration: URLSessionConfiguration) {
    self.init(configuration: configuration, challenges: nil)
  }

  init(configuration: URLSessionConfiguration, challenges: ChallengeResponder?) {
    self.challenges = challenges
    sessionTimeLimit = configuration.timeoutIntervalForRequest.asTimeLimit
    session = URLSession(configuration: configuration, delegate: switchboard, delegateQueue: ImmediateQueue())
  }

  deinit {
    session.finishTasksAndInvalidate()
  }

  /// The bytes of all bodies that have come and are not read yet.
  var unreadByteCount: Int { switchboard.unreadByteCount }

  /// Whether somebody may have credentials for an origin that asks for them.
  var hasCredentials: Bool { challenges?.hasCredentials(session.configuration.urlCredentialStorage) ?? false }

  /// Sends a request and returns when its final head has arrived.
  ///
  /// - Throws: The session's error, unchanged; `CancellationError` when the calling task was cancelled, or the delegate
  ///   of the session has cancelled a challenge.
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
      // A stream has been read, and cannot be sent once more.
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
  /// - Parameter holdsUnauthorized: Whether a 401 is returned only when it has come as a whole, with the challenge that
  ///   it holds.
  private func exchange(
    _ request: URLRequest, holdsUnauthorized: Bool
  ) async throws -> (response: IncomingResponse, challenge: Exchange.Challenge?) {
    let exchange = Exchange(
      holdsUnauthorized: holdsUnauthorized, timeLimit: request.ownTimeLimit ?? sessionTimeLimit)
    return try await withTaskCancellationHandler {
      try Task.checkCancellation()
      let response = try await exchange.start { [session, switchboard] in
        let task = session.dataTask(with: request)
        switchboard.connect(exchange, to: task)
        return task
      }
      return (response, exchange.challenge)
    } onCancel: {
      exchange.cancel()
    }
  }

  /// Calls `body` with a task for a request that is never started, for a delegate that wants one.
  func withIdleTask<R: Sendable>(
    for request: URLRequest, _ body: (URLSessionTask) async throws -> R
  ) async rethrows -> R {
    let task = await withCheckedContinuation { continuation in
      SessionCalls.queue.async { [session] in continuation.resume(returning: session.dataTask(with: request)) }
    }
    // Ends it for its session, which would keep it.
    defer { SessionCalls.queue.async { task.cancel() } }
    return try await body(task)
  }
}

/// Runs the session's calls to its delegate where Foundation makes them, on the queue on which it changes the task.
///
/// An answer to a redirect is then on its way before anything else can happen to the task: a time limit that passes in
/// between would stop the process. No call of the delegate's may wait for that queue.
private final class ImmediateQueue: OperationQueue, @unchecked Sendable {
  // Sendable, as its superclass is; it has no state.
  override func addOperation(_ block: @escaping @Sendable () -> Void) { block() }
}

/// A session's delegate that knows which exchange each task belongs to. (A delegate of the task alone is not called on Linux
/// when the session has none.)
private final class Switchboard: NSObject, URLSessionDataDelegate {
  private let exchanges = Mutex<[Int: Exchange]>([:])

  var unreadByteCount: Int {
    exchanges.withLock { Array($0.values) }.reduce(0) { $0 + $1.unreadByteCount }
  }

  func connect(_ exchange: Exchange, to task: URLSessionTask) {
    exchanges.withLock { $0[task.taskIdentifier] = exchange }
  }

  private func exchange(_ task: URLSessionTask) -> Exchange? {
    exchanges.withLock { $0[task.taskIdentifier] }
  }

  private func takeExchange(_ task: URLSessionTask) -> Exchange? {
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

  /// Redirects are followed outside, one request to the engine for each hop.
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
    // The 401 has come with all of its body, and is the response. Left to Foundation, the task would never end without
    // credentials, and with them nobody would know that they were used.
    takeExchange(task)?.complete(task, challenge)
    // Cancels the task, which waits for the queue that this is called on.
    SessionCalls.queue.async { completionHandler(.cancelAuthenticationChallenge, nil) }
  }
}

extension URLSessionConfiguration {
  /// Makes it one of sessions that never ask a cache. To be called on a copy.
  func leaveCachingOut() {
    urlCache = nil
    let isOther = { (candidate: AnyClass) in candidate != CachingURLProtocol.self }
    let others = (protocolClasses ?? []).filter(isOther)
    // Without any class Foundation would ask all that are registered, ours included.
    protocolClasses = others.isEmpty ? URLSessionConfiguration.ephemeral.protocolClasses?.filter(isOther) : others
    timeoutIntervalForRequest = timeoutIntervalForRequest.asTimeLimit
  }
}

extension URLRequest {
  /// The time limit that was set for this request in particular, in seconds; nil if its session's holds.
  ///
  /// Foundation on Linux keeps whether one was set to itself, in a second stored property. Where a later Foundation
  /// keeps it elsewhere, any limit but the default counts as set. A test would fail then.
  var ownTimeLimit: TimeInterval? {
    let isSet = withUnsafeBytes(of: self) { bytes in
      bytes.count == MemoryLayout<UnsafeRawPointer>.size + 1 ? bytes.last != 0 : nil
    }
    return isSet ?? (timeoutInterval != 60) ? timeoutInterval : nil
  }
}

extension TimeInterval {
  /// A time limit that Foundation can count: it makes a millisecond of less than a second, and stops the process where
  /// the milliseconds are no integer.
  var asTimeLimit: TimeInterval { self < 1e9 ? Swift.max(1, self) : 1e9 }
}

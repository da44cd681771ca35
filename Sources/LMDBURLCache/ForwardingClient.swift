import CachingClient
import Foundation
import HTTPCaching

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// Passes on what a built-in protocol says, and looks at the response when the load is over: what a request past the store
/// has changed there is invalidated, and the answer to a POST stored if it may answer a later GET.
final class ForwardingClient: NSObject, URLProtocolClient, @unchecked Sendable {
  // Sendable: the constants are set once; the client is called where the built-in protocol calls this, and the variables
  // change only there, on the task's queue.
  private let client: any URLProtocolClient
  private let forwarded: ForwardedRequest<CacheStorage>?
  private let afterRedirects: (URLRequest) -> ForwardedRequest<CacheStorage>?
  private let onTaskQueue: @Sendable (@escaping @Sendable () -> Void) async -> Void
  private var body = Data()
  /// Whether `body` is all that came. Not where nothing came: what a delegate gets, the built-in protocol hands to it past
  /// its client.
  private var isGathered = false
  private var bodyLimit: Int

  /// - Parameters:
  ///   - forwarded: what becomes of the store; nil without a cache.
  ///   - afterRedirects: the same for the last request of a task that Foundation has redirected.
  ///   - bodyLimit: the largest body that is gathered to be stored, in bytes; 0 gathers none.
  ///   - onTaskQueue: runs the end of the load on the task's queue, unless the task is over.
  init(
    _ client: any URLProtocolClient, forwarded: ForwardedRequest<CacheStorage>?,
    afterRedirects: @escaping (URLRequest) -> ForwardedRequest<CacheStorage>?, bodyLimit: Int,
    onTaskQueue: @escaping @Sendable (@escaping @Sendable () -> Void) async -> Void
  ) {
    self.client = client
    self.forwarded = forwarded
    self.afterRedirects = afterRedirects
    self.bodyLimit = bodyLimit
    self.onTaskQueue = onTaskQueue
  }

  /// Tells of the answer of a task that was cancelled, as far as it has come.
  func look(at task: URLSessionTask?) {
    guard let forwarded, let head = head(of: task), forwarded.invalidates(answeredBy: head) else { return }
    Task { await forwarded.invalidate(answeredBy: head) }
  }

  /// The answer to the request, as far as it has come.
  private func head(of task: URLSessionTask?) -> ResponseHead? {
    guard let task, let response = task.response as? HTTPURLResponse else { return nil }
    // If a redirect was followed, that was the answer to the request, and no error whatever came of it.
    return isRedirected(task) ? ResponseHead(status: 303, fields: HTTPFields()) : response.head
  }

  /// What the last request of a redirected task has changed: 307 and 308 keep the method (RFC 9110, 15.4.8).
  private func redirectedChange(
    by task: URLSessionTask?
  ) -> (request: ForwardedRequest<CacheStorage>, head: ResponseHead)? {
    guard let task, isRedirected(task), let last = task.currentRequest,
      let head = (task.response as? HTTPURLResponse)?.head,
      let request = afterRedirects(last), request.invalidates(answeredBy: head)
    else { return nil }
    return (request, head)
  }

  private func isRedirected(_ task: URLSessionTask) -> Bool {
    guard let asked = task.originalRequest?.url, let answered = task.currentRequest?.url else { return false }
    return asked != answered
  }

  func urlProtocolDidFinishLoading(_ protocol: URLProtocol) {
    end(`protocol`, storing: answerToStore(of: `protocol`)) { $0.client.urlProtocolDidFinishLoading($0.urlProtocol) }
  }

  /// The answer to a POST that may answer a later GET.
  private func answerToStore(of urlProtocol: URLProtocol) -> IncomingResponse? {
    guard isGathered, let task = urlProtocol.task, !isRedirected(task),
      let response = task.response as? HTTPURLResponse,
      // Most answers to POST have none, and need not wait.
      response.value(forHTTPHeaderField: "Content-Location") != nil
    else { return nil }
    return IncomingResponse(
      head: response.head, body: ResponseBody(body),
      isContentDecoded: response.value(forHTTPHeaderField: "Content-Encoding") != nil)
  }

  /// Brings the store up to date, and then tells the caller of the end: whoever asks next must not get what the request
  /// has changed, and finds what it has brought. Not on this queue, since a removal waits for the disk.
  private func end(
    _ urlProtocol: URLProtocol, storing response: IncomingResponse?, _ tell: @escaping @Sendable (End) -> Void
  ) {
    let end = End(client: client, urlProtocol: urlProtocol)
    let head = head(of: urlProtocol.task)
    if let forwarded, let head, let task = urlProtocol.task, forwarded.invalidates(answeredBy: Self.success),
      mayBeSentAgain(task, after: head)
    {
      let resent = ResentTask(task)
      Task { [onTaskQueue] in
        await forwarded.expectUnseenResponse()
        await onTaskQueue { tell(end) }
        await forwarded.unseenResponseHasCome(await resent.response())
      }
      return
    }
    let redirected = redirectedChange(by: urlProtocol.task)
    guard let forwarded, let head,
      response != nil || redirected != nil || forwarded.invalidates(answeredBy: head)
    else { return tell(end) }
    Task { [onTaskQueue] in
      await forwarded.invalidate(answeredBy: head)
      if let redirected { await redirected.request.invalidate(answeredBy: redirected.head) }
      if let response { await forwarded.store(response) }
      await onTaskQueue { tell(end) }
    }
  }

  private static let success = ResponseHead(status: 204, fields: HTTPFields())

  /// Whether Foundation may send a request again by itself, with credentials: it then answers the challenge of a 401
  /// and no longer tells this object of the load.
  private func mayBeSentAgain(_ task: URLSessionTask, after head: ResponseHead) -> Bool {
    guard head.status == 401, head.fields.contains("WWW-Authenticate"),
      let session = TaskReflection.session(of: task)
    else { return false }
    return ChallengeResponder(session: session).hasCredentials(session.configuration.urlCredentialStorage)
  }

  /// The end of a load, to be told later.
  private struct End: @unchecked Sendable {
    // Sendable: both are used on the task's queue alone, as before.
    let client: any URLProtocolClient
    let urlProtocol: URLProtocol
  }

  func urlProtocol(_ protocol: URLProtocol, didFailWithError error: any Error) {
    // The head may have come, and then the origin has done what it was asked for.
    end(`protocol`, storing: nil) { $0.client.urlProtocol($0.urlProtocol, didFailWithError: error) }
  }

  func urlProtocol(
    _ protocol: URLProtocol, didReceive response: URLResponse, cacheStoragePolicy policy: URLCache.StoragePolicy
  ) {
    client.urlProtocol(`protocol`, didReceive: response, cacheStoragePolicy: policy)
  }

  func urlProtocol(_ protocol: URLProtocol, didLoad data: Data) {
    if body.count + data.count <= bodyLimit {
      body.append(data)
      isGathered = true
    } else {
      (body, isGathered, bodyLimit) = (Data(), false, 0)
    }
    client.urlProtocol(`protocol`, didLoad: data)
  }

  func urlProtocol(_ protocol: URLProtocol, wasRedirectedTo request: URLRequest, redirectResponse: URLResponse) {
    client.urlProtocol(`protocol`, wasRedirectedTo: request, redirectResponse: redirectResponse)
  }

  func urlProtocol(_ protocol: URLProtocol, cachedResponseIsValid cachedResponse: CachedURLResponse) {
    client.urlProtocol(`protocol`, cachedResponseIsValid: cachedResponse)
  }

  func urlProtocol(_ protocol: URLProtocol, didReceive challenge: URLAuthenticationChallenge) {
    client.urlProtocol(`protocol`, didReceive: challenge)
  }

  func urlProtocol(_ protocol: URLProtocol, didCancel challenge: URLAuthenticationChallenge) {
    client.urlProtocol(`protocol`, didCancel: challenge)
  }
}

/// A task that Foundation has started again, which nobody is told the end of.
private final class ResentTask: @unchecked Sendable {
  // Sendable: weak references are loaded atomically, and this one is never set again. Tasks may be used from any thread.
  private weak var task: URLSessionTask?

  init(_ task: URLSessionTask) {
    self.task = task
  }

  /// The head of the final response once the task has ended; nil if it ended without one. Looks again and again, ever
  /// more rarely: the answer to a challenge may take minutes.
  func response() async -> ResponseHead? {
    var pause = Duration.milliseconds(20)
    while isRunning {
      // A sleep that is cancelled is as good.
      try? await Task.sleep(for: pause)
      pause = min(pause * 2, .seconds(5))
    }
    return (task?.response as? HTTPURLResponse)?.head
  }

  private var isRunning: Bool { task.map { $0.state != .completed } ?? false }
}

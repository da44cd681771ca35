import CachingClient
import Foundation
import FoundationNetworking
import HTTPCaching

/// Forwards the events of a built-in protocol, and updates the cache when the load is over.
///
/// A response to an unsafe request invalidates stored responses (RFC 9111, section 4.4).
final class PassthroughProtocolClient: NSObject, URLProtocolClient, @unchecked Sendable {
  // Sendable: the constants are set once. The built-in protocol calls this object on the task's queue. The client is
  // called there, and the variables change only there.
  private let client: any URLProtocolClient
  private let forwarded: ForwardedRequest<ResponseCache>?
  private let afterRedirects: (URLRequest) -> ForwardedRequest<ResponseCache>?
  private let onTaskQueue: @Sendable (@escaping @Sendable () -> Void) async -> Void

  /// - Parameters:
  ///   - forwarded: The forwarded request, which updates the cache; nil without a cache.
  ///   - afterRedirects: Returns the forwarded request for the last request of a task that Foundation has redirected.
  ///   - onTaskQueue: Runs the end of the load on the task's queue, unless the task is over.
  init(
    _ client: any URLProtocolClient, forwarded: ForwardedRequest<ResponseCache>?,
    afterRedirects: @escaping (URLRequest) -> ForwardedRequest<ResponseCache>?,
    onTaskQueue: @escaping @Sendable (@escaping @Sendable () -> Void) async -> Void
  ) {
    self.client = client
    self.forwarded = forwarded
    self.afterRedirects = afterRedirects
    self.onTaskQueue = onTaskQueue
  }

  /// Invalidates stored responses if the head of a cancelled task's response has arrived and requires it.
  func observeResponse(of task: URLSessionTask?) {
    guard let forwarded, let head = head(of: task), forwarded.invalidates(answeredBy: head) else { return }
    Task { await forwarded.invalidate(answeredBy: head) }
  }

  /// Returns the head of the response to the request, if it has arrived.
  private func head(of task: URLSessionTask?) -> ResponseHead? {
    guard let task, let response = task.response as? HTTPURLResponse else { return nil }
    // The response to the request is the redirect, which is not an error, regardless of the responses after it.
    return isRedirected(task) ? ResponseHead(status: 303, fields: HeaderFields()) : response.head
  }

  /// Returns the last request of a redirected task and its response, if the response invalidates stored responses.
  ///
  /// 307 and 308 keep the method (RFC 9110, section 15.4.8), so the last request can be unsafe, too.
  private func redirectedChange(
    by task: URLSessionTask?
  ) -> (request: ForwardedRequest<ResponseCache>, head: ResponseHead)? {
    guard let task, isRedirected(task), let last = task.currentRequest,
      let head = (task.response as? HTTPURLResponse)?.head,
      let request = afterRedirects(last), request.invalidates(answeredBy: head)
    else { return nil }
    return (request, head)
  }

  private func isRedirected(_ task: URLSessionTask) -> Bool {
    guard let original = task.originalRequest?.url, let current = task.currentRequest?.url else { return false }
    return original != current
  }

  func urlProtocolDidFinishLoading(_ protocol: URLProtocol) {
    end(`protocol`) { $0.client.urlProtocolDidFinishLoading($0.urlProtocol) }
  }

  /// Updates the cache, then reports the end of the load to the client.
  ///
  /// In this order, a later request never gets an invalidated response. A task updates the cache, because a removal
  /// waits for the disk.
  private func end(_ urlProtocol: URLProtocol, _ tell: @escaping @Sendable (End) -> Void) {
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
      redirected != nil || forwarded.invalidates(answeredBy: head)
    else { return tell(end) }
    Task { [onTaskQueue] in
      await forwarded.invalidate(answeredBy: head)
      if let redirected { await redirected.request.invalidate(answeredBy: redirected.head) }
      await onTaskQueue { tell(end) }
    }
  }

  private static let success = ResponseHead(status: 204, fields: HeaderFields())

  /// Whether Foundation may resend the request with credentials to answer the challenge of a 401.
  ///
  /// It then reports no further events of the load to this object.
  private func mayBeSentAgain(_ task: URLSessionTask, after head: ResponseHead) -> Bool {
    guard head.status == 401, head.fields.contains("WWW-Authenticate"),
      let session = TaskReflection.session(of: task)
    else { return false }
    return task.delegate != nil || !(session.configuration.urlCredentialStorage?.allCredentials.isEmpty ?? true)
  }

  /// The end of a load, which is reported later.
  private struct End: @unchecked Sendable {
    // Sendable: both are used only on the task's queue.
    let client: any URLProtocolClient
    let urlProtocol: URLProtocol
  }

  func urlProtocol(_ protocol: URLProtocol, didFailWithError error: any Error) {
    // If the head has arrived, the origin has processed the request.
    end(`protocol`) { $0.client.urlProtocol($0.urlProtocol, didFailWithError: error) }
  }

  func urlProtocol(
    _ protocol: URLProtocol, didReceive response: URLResponse, cacheStoragePolicy policy: URLCache.StoragePolicy
  ) {
    client.urlProtocol(`protocol`, didReceive: response, cacheStoragePolicy: policy)
  }

  func urlProtocol(_ protocol: URLProtocol, didLoad data: Data) {
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

/// A task that Foundation has restarted, and whose end it does not report.
private final class ResentTask: @unchecked Sendable {
  // Sendable: weak references are read atomically, and this one is never set again. Any thread can use a task.
  private weak var task: URLSessionTask?

  init(_ task: URLSessionTask) {
    self.task = task
  }

  /// Waits for the end of the task and returns the head of the final response; nil if there is none.
  ///
  /// Polls at increasing intervals, because a reply to the challenge may take minutes.
  func response() async -> ResponseHead? {
    var pause = Duration.milliseconds(20)
    while isRunning {
      // The sleep throws only in a cancelled task, and the task that calls this is never cancelled.
      try? await Task.sleep(for: pause)
      pause = min(pause * 2, .seconds(5))
    }
    return (task?.response as? HTTPURLResponse)?.head
  }

  private var isRunning: Bool { task.map { $0.state != .completed } ?? false }
}

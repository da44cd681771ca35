import CachingClient
import Foundation
import HTTPCaching
import Synchronization

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// One load for a Foundation caller, from its request to the final answer: each hop of a redirect is a request of its own to
/// the engine, under its own URL.
///
/// `@unchecked Sendable`: nothing changes after `init`; the task and the session may be used from any thread.
struct CachedLoad: @unchecked Sendable {
  typealias Answer = CachingClient<CacheStorage>.Response

  let context: SessionContext
  let cache: LMDBURLCache
  /// The task of a session that caches; nil for ``LMDBURLCache/data(for:)``.
  var task: URLSessionDataTask?
  /// The session of the task, or the one that was given to ``LMDBURLCache/data(for:from:)``.
  var session: URLSession?
  /// What the session's lookup found.
  var prefetched: CachedURLResponse?
  /// Reaches the origin.
  private var transport: LoadTransport {
    task == nil ? context.loadTransport(of: session) : .session(context.transport)
  }

  /// As Foundation's, which mirrors Apple's.
  private static let mostRedirects = 20

  /// Whether the task's chunks can be delivered one by one.
  var deliversChunks: Bool {
    guard let task, let session else { return false }
    return TaskReflection.isDelegateDriven(task, in: session)
  }

  /// An answer that needs nobody else: fresh, and no redirect.
  func storedAnswer(to request: URLRequest) -> (response: URLResponse, body: Data)? {
    guard let asked = clientRequest(request, isFirst: true), let answer = cache.engine.storedAnswer(to: asked),
      !mayGetMore(than: answer),
      Redirect.next(after: answer.status, location: { answer.head.fields["Location"] }, request: request) == nil,
      let body = answer.body.bytes, let url = request.url
    else { return nil }
    do {
      return (try FoundationAnswer.response(for: answer, url: url), body)
    } catch {
      // The whole way meets the same error, and can report it.
      return nil
    }
  }

  /// The final answer and its URL. Its body may still be on its way.
  func run(_ first: URLRequest) async throws -> (answer: Answer, url: URL) {
    var request = first
    let transport = transport
    for hop in 0...Self.mostRedirects {
      guard let url = request.url, var asked = clientRequest(request, isFirst: hop == 0) else {
        throw URLError(.badURL)
      }
      asked.timeLimit = context.timeLimit(of: request)
      let hasCookiesFromJar = context.hasCookiesFromJar(request)
      let answer = try await respond(to: asked, over: transport)
      guard
        let target = Redirect.next(after: answer.status, location: { answer.head.fields["Location"] }, request: request)
      else { return (answer, url) }
      let next = context.refreshingCookies(of: target, isFromJar: hasCookiesFromJar)
      guard let followed = try await permitted(next, after: answer, to: request, over: transport) else {
        return (answer, url)
      }
      try await drain(answer.body)
      request = followed
    }
    throw URLError(.httpTooManyRedirects)
  }

  private func respond(to asked: ClientRequest, over transport: LoadTransport) async throws -> Answer {
    let answer = try await cache.engine.respond(to: asked, over: transport)
    guard mayGetMore(than: answer) else { return answer }
    var again = asked
    again.policy = .reloadIgnoringLocalCacheData
    return try await cache.engine.respond(to: again, over: transport)
  }

  /// Whether an answer is a stored refusal, which is for those without credentials, and this load may have some. A
  /// task's session outside gets the refusal, and asks by itself.
  private func mayGetMore(than answer: Answer) -> Bool {
    answer.status == 401 && answer.source != .network && task == nil && transport.hasCredentials
  }

  /// Reads the body of a redirect to its end, so that one that may be stored is; not one that is absurdly long.
  private func drain(_ body: ResponseBody) async throws {
    guard body.bytes == nil else { return }
    var byteCount = 0
    for try await chunk in body {
      byteCount += chunk.count
      if byteCount > 1 << 20 { return }
    }
  }

  private func clientRequest(_ request: URLRequest, isFirst: Bool) -> ClientRequest? {
    // A session has put its cookies into its task's request already, and later hops have theirs as well.
    let completed = context.complete(request, addsCookies: task == nil && isFirst)
    let requestContext = RequestContext(
      request: completed, task: isFirst ? task : nil, prefetched: isFirst ? prefetched : nil)
    var asked = context.clientRequest(completed, context: requestContext, cache: cache)
    if let task, let head = asked?.head { asked?.willStore = StorageQuestion.willStore(head, task, session, cache) }
    return asked
  }

  /// Asks the delegate whether, and with what request, to follow.
  private func permitted(
    _ next: URLRequest, after answer: Answer, to request: URLRequest, over transport: LoadTransport
  ) async throws -> URLRequest? {
    guard let session, let delegate = task == nil ? session.delegate as? any URLSessionTaskDelegate : task?.delegate,
      let url = request.url, let response = HTTPURLResponse.make(url: url, head: answer.head)
    else { return next }
    let question = RedirectQuestion(session: session, delegate: delegate, response: response, next: next)
    if let task { return try await question.ask(about: task) }
    // The delegate wants a task, and this load has none. Only the load of a session has a delegate.
    guard case .session(let transport) = transport else { return next }
    return try await transport.withIdleTask(for: request) { try await question.ask(about: $0) }
  }
}

/// The question that a delegate is asked before a redirect is followed.
private struct RedirectQuestion: @unchecked Sendable {
  // Sendable: nothing changes, and the delegate is called on its session's queue alone.
  let session: URLSession
  let delegate: any URLSessionTaskDelegate
  let response: HTTPURLResponse
  let next: URLRequest

  /// The request to follow with; nil if the redirect is the answer.
  func ask(about task: URLSessionTask) async throws -> URLRequest? {
    try await DelegateAnswer<URLRequest?>.wait { answer in
      session.delegateQueue.addOperation {
        delegate.urlSession(session, task: task, willPerformHTTPRedirection: response, newRequest: next) {
          answer.give($0)
        }
      }
    }
  }
}

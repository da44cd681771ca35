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
  var session: URLSession?
  /// What the session's lookup found.
  var prefetched: CachedURLResponse?
  /// Reaches the origin; the context's own by default.
  var transport: URLSessionTransport?

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
    for hop in 0...Self.mostRedirects {
      guard let url = request.url, let asked = clientRequest(request, isFirst: hop == 0) else {
        throw URLError(.badURL)
      }
      let answer = try await cache.engine.respond(to: asked, over: transport ?? context.transport)
      let next = Redirect.next(after: answer.status, location: { answer.head.fields["Location"] }, request: request)
      guard let next, let followed = await permitted(next, after: answer, url) else { return (answer, url) }
      try await drain(answer.body)
      request = followed
    }
    throw URLError(.httpTooManyRedirects)
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
    // The session has put its cookies into the first request already.
    let completed = context.complete(request, addsCookies: task == nil || !isFirst)
    let requestContext = RequestContext(
      request: completed, task: isFirst ? task : nil, prefetched: isFirst ? prefetched : nil)
    var asked = context.clientRequest(completed, context: requestContext, cache: cache)
    if let task, let head = asked?.head { asked?.willStore = StorageQuestion.willStore(head, task, session, cache) }
    return asked
  }

  /// Asks the task's delegate whether, and with what request, to follow.
  private func permitted(_ next: URLRequest, after answer: Answer, _ url: URL) async -> URLRequest? {
    guard let task, let session, let delegate = task.delegate,
      let response = HTTPURLResponse.make(url: url, head: answer.head)
    else { return next }
    return await withCheckedContinuation { continuation in
      let isAnswered = Atomic(false)
      session.delegateQueue.addOperation {
        delegate.urlSession(session, task: task, willPerformHTTPRedirection: response, newRequest: next) { request in
          guard !isAnswered.exchange(true, ordering: .relaxed) else { return }
          continuation.resume(returning: request)
        }
      }
    }
  }
}

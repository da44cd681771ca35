import CachingClient
import Foundation
import HTTPCaching

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// Loads that need no `URLSession` for a hit: what is fresh in the cache is answered on the caller's thread, many times faster
/// than a session's task, of which all in a process share one queue.
extension LMDBURLCache {
  /// Loads a request through the cache; misses go over a session of the cache's own (see ``Options/transport``).
  ///
  /// Redirects are followed, each hop cached under its own URL. The same rules hold as for a session with
  /// ``FoundationNetworking/URLSessionConfiguration/caching(with:)``.
  ///
  /// - Parameter request: Any request; its cache policy is honoured.
  /// - Returns: The whole body and the response; an answer from the store has an `Age` field.
  /// - Throws: The error of the session, unchanged; `URLError.resourceUnavailable` when the policy is
  ///   `returnCacheDataDontLoad` and nothing is stored; `URLError.badURL` for a request without a URL;
  ///   `URLError.httpTooManyRedirects` after 20 redirects; `URLError.cancelled` when the task is cancelled.
  /// - Complexity: A hit costs a lookup in memory, or on disk and a copy of the body; it never suspends.
  public func data(for request: URLRequest) async throws -> (Data, URLResponse) {
    try await data(for: request, context: ownContext, session: nil)
  }

  /// Loads a URL through the cache. Otherwise like ``data(for:)``.
  public func data(from url: URL) async throws -> (Data, URLResponse) {
    try await data(for: URLRequest(url: url))
  }

  /// Loads a request through the cache; misses go out as `session` sends them. Otherwise like ``data(for:)``.
  ///
  /// They are carried by a session of the cache's own with the same configuration, so invalidating `session` does not
  /// end them, and its delegate is told nothing of tasks. It is asked about challenges and redirects, as without the
  /// cache, but not before storing. What comes after it has answered a challenge is given to this caller alone, and is
  /// not stored.
  ///
  /// - Parameters:
  ///   - request: Any request; its cache policy is honoured, or the session's where it has none of its own.
  ///   - session: Any session, with or without a cache and a delegate.
  public func data(for request: URLRequest, from session: URLSession) async throws -> (Data, URLResponse) {
    try await data(for: request, context: SessionContext.of(session), session: session)
  }

  private func data(
    for request: URLRequest, context: SessionContext, session: URLSession?
  ) async throws -> (Data, URLResponse) {
    var load = CachedLoad(context: context, cache: self)
    load.session = session
    if let answer = load.storedAnswer(to: request) { return (answer.body, answer.response) }
    if let scheme = request.url?.scheme?.lowercased(), scheme != "http", scheme != "https" {
      // Not HTTP, so not ours.
      return try await (session ?? context.loadTransport(for: nil).session).data(for: request)
    }
    do {
      let (answer, url) = try await load.run(request)
      let response = try FoundationAnswer.response(for: answer, url: url)
      return (try await answer.body.collect(upTo: .max), response)
    } catch {
      throw FoundationAnswer.error(for: error)
    }
  }
}

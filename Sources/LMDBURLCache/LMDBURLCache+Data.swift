import CachingClient
import Foundation
import HTTPCaching

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// Loads that need no `URLSession` for a hit: what is fresh in the cache is answered on the caller's thread, many times faster
/// than a session's task, of which all in a process share one queue.
extension LMDBURLCache {
  /// Loads a request through the cache; misses go over a session of the cache's own.
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
    try await data(for: request, context: ownContext, transport: nil)
  }

  /// Loads a URL through the cache. Otherwise like ``data(for:)``.
  public func data(from url: URL) async throws -> (Data, URLResponse) {
    try await data(for: URLRequest(url: url))
  }

  /// Loads a request through the cache; misses go over `session`, with its configuration. Otherwise like ``data(for:)``.
  ///
  /// - Parameters:
  ///   - request: Any request; its cache policy is honoured, or the session's where it has none of its own.
  ///   - session: Any session; its delegate is not asked before storing. Of one that caches itself only the configuration
  ///     is used.
  public func data(for request: URLRequest, from session: URLSession) async throws -> (Data, URLResponse) {
    let context = SessionContext.of(session)
    // A session that caches would look everything up, and store it, once more; its inner one does not.
    let transport = context.cache == nil ? URLSessionTransport(session: session) : nil
    return try await data(for: request, context: context, transport: transport)
  }

  private func data(
    for request: URLRequest, context: SessionContext, transport: URLSessionTransport?
  ) async throws -> (Data, URLResponse) {
    var load = CachedLoad(context: context, cache: self)
    load.transport = transport
    if let answer = load.storedAnswer(to: request) { return (answer.body, answer.response) }
    if let scheme = request.url?.scheme?.lowercased(), scheme != "http", scheme != "https" {
      // Not HTTP, so not ours.
      return try await (transport ?? context.transport).session.data(for: request)
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

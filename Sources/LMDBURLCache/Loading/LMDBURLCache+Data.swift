import CachingClient
import Foundation
import FoundationNetworking
import HTTPCaching

/// Loads in which a hit does not use `URLSession`.
///
/// A hit completes on the calling thread. A session's task is many times slower, because all tasks of a process share a
/// queue.
extension LMDBURLCache {
  /// Loads a request through the cache.
  ///
  /// A hit completes on the calling thread without suspending. A miss uses ``Options/transport``, which is libcurl by
  /// default. Redirects are followed, up to 20; each hop is cached under its own URL. The rules are the same as for a
  /// session with ``FoundationNetworking/URLSessionConfiguration/caching(with:)``.
  ///
  /// - Parameter request: Any request; its cache policy is honored.
  /// - Returns: The complete body and the response; a stored response has an `Age` field.
  /// - Throws: A `URLError`: an error of the transport (see <doc:Transports>); `URLError.resourceUnavailable` if the
  ///   policy is `returnCacheDataDontLoad` and nothing is stored; `URLError.badURL` for a request without a URL;
  ///   `URLError.httpTooManyRedirects` after 20 redirects; `URLError.cancelled` if the task is cancelled.
  /// - Complexity: A hit costs a lookup in memory, or a lookup on disk and a copy of the body, or of the range.
  public func data(for request: URLRequest) async throws -> (Data, URLResponse) {
    try await data(for: request, context: ownContext, session: nil)
  }

  /// Loads a URL through the cache like ``data(for:)``.
  public func data(from url: URL) async throws -> (Data, URLResponse) {
    try await data(for: URLRequest(url: url))
  }

  /// Loads a request through the cache like ``data(for:)``, but sends misses with the configuration of a session.
  ///
  /// The request is not a task of `session`. Invalidating `session` therefore does not end it, and the delegate of
  /// `session` gets no calls about its task. The delegate is asked about challenges and redirects, as without the
  /// cache, but not before storing. A response that required a reply to a challenge is returned only to this caller and
  /// is not stored.
  ///
  /// - Parameters:
  ///   - request: Any request; its cache policy is honored, or the session's if the request has none.
  ///   - session: Any session, with or without a cache and a delegate.
  public func data(for request: URLRequest, from session: URLSession) async throws -> (Data, URLResponse) {
    try await data(for: request, context: SessionContext.of(session), session: session)
  }

  private func data(
    for request: URLRequest, context: SessionContext, session: URLSession?
  ) async throws -> (Data, URLResponse) {
    var load = CachedLoad(context: context, cache: self)
    load.session = session
    guard var hop = load.firstHop(request) else { throw URLError.requestWithoutURL }
    if let stored = load.storedResponse(to: &hop) { return (stored.body, stored.response) }
    if let scheme = request.url?.scheme?.lowercased(), scheme != "http", scheme != "https" {
      // Only HTTP is cached.
      return try await (session ?? context.sessionForOtherSchemes(self)).data(for: request)
    }
    do {
      let (result, body) =
        if let limit = context.resourceTimeLimit {
          try await withTimeLimit(limit) { [load, hop] in try await load.finish(hop) }
        } else {
          try await load.finish(hop)
        }
      return (body, try result.urlResponse())
    } catch {
      throw FoundationResponse.error(for: error)
    }
  }
}

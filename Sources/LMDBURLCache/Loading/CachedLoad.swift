import CachingClient
import Foundation
import FoundationNetworking
import HTTPCaching
import Synchronization

/// One load for a Foundation caller, from its request to the final response.
///
/// Each hop of a redirect is a separate client request under its own URL.
struct CachedLoad: Sendable {
  typealias Client = CachingClient<CacheStorage>

  let context: SessionContext
  let cache: LMDBURLCache
  /// The task of a session that caches; nil for ``LMDBURLCache/data(for:)``.
  var task: URLSessionDataTask?
  /// The session of the task, or the session in ``LMDBURLCache/data(for:from:)``.
  var session: URLSession?
  /// Whether a large stored body is left in the store until it is read.
  var readsBodyInPieces = false
  /// The response that the session's lookup found.
  var prefetched: CachedURLResponse?
  /// The transport to the origin.
  private var transport: LoadTransport {
    task == nil ? context.loadTransport(of: session) : .session(context.transport)
  }

  /// One request of the load, and the result of its lookup.
  struct Hop {
    fileprivate let request: URLRequest
    fileprivate(set) var clientRequest: ClientRequest
    fileprivate var stored: Client.Response?
    /// The result of a lookup that found no response to serve at once.
    fileprivate var lookup: LookupResult<CacheStorage.Entry>?
  }

  /// The final response after redirects, and its request. The body may not have arrived yet.
  struct Result {
    let response: Client.Response
    let url: URL
    let request: ClientRequest

    func urlResponse() throws -> URLResponse { try FoundationResponse.response(for: response, url: url) }
  }

  /// The maximum number of redirects, as in Foundation.
  private static let maximumRedirectCount = 20

  /// Whether the task's chunks can be delivered one by one.
  var deliversChunks: Bool {
    guard let task, let session else { return false }
    return TaskReflection.isDelegateDriven(task, in: session)
  }

  /// Returns the first request of the load with its cache key; nil for a request without a URL.
  func firstHop(_ request: URLRequest) -> Hop? {
    clientRequest(request, isFirst: true).map { Hop(request: request, clientRequest: $0) }
  }

  /// Returns a stored response if it needs neither the origin nor a redirect.
  ///
  /// Otherwise the hop keeps the result of the lookup.
  func storedResponse(to hop: inout Hop?) -> (response: URLResponse, body: Data)? {
    guard let request = hop?.request, let clientRequest = hop?.clientRequest else { return nil }
    var lookup: LookupResult<CacheStorage.Entry>?
    let stored = cache.cachingClient.storedResponse(to: clientRequest, otherwise: &lookup)
    if let stored, !mayGetMore(than: stored), redirect(after: stored, to: request) == nil,
      let body = stored.body.bytes,
      // On an error the load goes on as without this shortcut.
      let response = try? FoundationResponse.response(for: stored, url: clientRequest.head.url)
    {
      return (response, body)
    }
    hop?.stored = stored
    hop?.lookup = lookup
    return nil
  }

  /// Loads the final response.
  func run(_ first: Hop?) async throws -> Result {
    guard var hop = first else { throw URLError(.badURL) }
    let transport = transport
    for _ in 0...Self.maximumRedirectCount {
      let request = hop.request
      hop.clientRequest.timeLimit = context.timeLimit(of: request)
      let hasCookiesFromJar = context.hasCookiesFromJar(request)
      let response = try await respond(to: hop, over: transport)
      let result = Result(response: response, url: hop.clientRequest.head.url, request: hop.clientRequest)
      guard let target = redirect(after: response, to: request) else { return result }
      let next = context.refreshingCookies(of: target, isFromJar: hasCookiesFromJar)
      guard let followed = try await permitted(next, after: response, to: request, over: transport) else {
        return result
      }
      try await drain(response.body)
      guard let clientRequest = clientRequest(followed, isFirst: false) else { throw URLError(.badURL) }
      hop = Hop(request: followed, clientRequest: clientRequest)
    }
    throw URLError(.httpTooManyRedirects)
  }

  private func respond(to hop: Hop, over transport: LoadTransport) async throws -> Client.Response {
    let client = cache.cachingClient
    let response: Client.Response
    if let stored = hop.stored {
      response = stored
    } else if let fleet = cache.core.fleet {
      response = try await client.respond(
        to: hop.clientRequest, over: FleetTransport(fleet: fleet, transport: transport), after: hop.lookup)
    } else {
      response = try await client.respond(to: hop.clientRequest, over: transport, after: hop.lookup)
    }
    guard mayGetMore(than: response) else { return response }
    var again = hop.clientRequest
    again.policy = .reloadIgnoringLocalCacheData
    return try await client.respond(to: again, over: transport)
  }

  private func redirect(after response: Client.Response, to request: URLRequest) -> URLRequest? {
    Redirect.next(after: response.status, location: { response.head.fields["Location"] }, request: request)
  }

  /// Whether a response is a stored 401 to a request without credentials, and this load may have credentials.
  ///
  /// False for a task: its session receives the 401 and resends the request itself.
  private func mayGetMore(than response: Client.Response) -> Bool {
    response.status == 401 && response.source != .network && task == nil && transport.hasCredentials
  }

  /// Reads the body of a redirect to its end, so that the redirect can be stored. Stops after 1 MiB.
  private func drain(_ body: ResponseBody) async throws {
    guard body.bytes == nil else { return }
    var byteCount = 0
    for try await chunk in body {
      byteCount += chunk.count
      if byteCount > 1 << 20 { return }
    }
  }

  private func clientRequest(_ request: URLRequest, isFirst: Bool) -> ClientRequest? {
    // The session has already added its cookies to its task's request, and later hops contain theirs, too.
    let completed = context.complete(request, addsCookies: task == nil && isFirst)
    let requestContext = RequestContext(
      request: completed, task: isFirst ? task : nil, prefetched: isFirst ? prefetched : nil)
    var made = context.clientRequest(completed, context: requestContext, cache: cache)
    made?.readsBodyInPieces = readsBodyInPieces
    if let task, let head = made?.head { made?.willStore = WillCacheQuery.willStore(head, task, session, cache) }
    return made
  }

  /// Asks the delegate whether to follow a redirect, and with which request.
  private func permitted(
    _ next: URLRequest, after earlier: Client.Response, to request: URLRequest, over transport: LoadTransport
  ) async throws -> URLRequest? {
    guard let session, let delegate = task == nil ? session.delegate as? any URLSessionTaskDelegate : task?.delegate,
      let url = request.url, let response = HTTPURLResponse.make(url: url, head: earlier.head)
    else { return next }
    let ask = { @Sendable (task: URLSessionTask) in
      try await DelegateReply<URLRequest?>.wait { reply in
        session.delegateQueue.addOperation {
          delegate.urlSession(
            session, task: task, willPerformHTTPRedirection: response, newRequest: next, completionHandler: reply.give)
        }
      }
    }
    if let task { return try await ask(task) }
    // The delegate method requires a task, and this load has none. Only the load of a session has a delegate.
    guard case .session(let transport) = transport else { return next }
    return try await transport.withIdleTask(for: request, ask)
  }
}

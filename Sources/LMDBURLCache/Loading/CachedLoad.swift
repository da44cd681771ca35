import CachingClient
import Foundation
import FoundationNetworking
import HTTPCaching
import Synchronization

/// One load for a Foundation caller, from its request to the final response.
///
/// Each hop of a redirect is a separate client request under its own URL.
struct CachedLoad: Sendable {
  typealias Client = CachingClient<ResponseCache>

  let context: SessionContext
  let cache: LMDBURLCache
  /// The task of a session that caches; nil for ``LMDBURLCache/data(for:)``.
  var task: URLSessionDataTask?
  /// The session of the task, or the session in ``LMDBURLCache/data(for:from:)``.
  var session: URLSession?
  /// Whether the caller reads the body as it arrives.
  var readsBodyInPieces = false
  /// The response that the session's lookup found.
  var prefetched: CachedURLResponse?
  /// Whether the task's chunks are delivered one by one.
  var deliversChunks = false
  /// The transport to the origin.
  private var transport: LoadTransport { context.transport(for: cache, session, task) }

  /// One request of the load, and the result of its lookup.
  struct Hop {
    /// The request with the fields that the session adds. All that is sent is here before the key is made.
    fileprivate let request: URLRequest
    /// Whether the `Cookie` field comes from the cookie storage, and not from the caller.
    fileprivate let usesStoredCookies: Bool
    /// Whether a redirect has led to another origin than that of the first request.
    fileprivate let hasLeftOrigin: Bool
    fileprivate(set) var clientRequest: CachingClientRequest
    fileprivate var stored: Client.Response?
    /// The result of a lookup that found no response to serve at once.
    fileprivate var lookup: LookupResult<CacheEntry>?

    fileprivate var isSafe: Bool { request.httpMethod == "GET" || request.httpMethod == "HEAD" }

    fileprivate mutating func forgetLookup() {
      stored = nil
      lookup = nil
    }
  }

  /// The final response after redirects, and its request. The body may not have arrived yet.
  struct Result {
    let response: Client.Response
    let url: URL
    let request: CachingClientRequest

    func urlResponse() throws -> URLResponse { try FoundationResponse.response(for: response, url: url) }
  }

  /// The maximum number of redirects, as in Foundation.
  private static let maximumRedirectCount = 20

  /// Returns the first request of the load with its cache key; nil for a request without a URL.
  func firstHop(_ request: URLRequest) -> Hop? {
    var request = context.addingFields(to: request)
    let cookies = request.value(forHTTPHeaderField: "Cookie")
    // The session has already added its cookies to its task's request.
    let usesStoredCookies = cookies == nil || task != nil && context.hasStoredCookies(request)
    if task == nil, usesStoredCookies { request = context.addingCookies(to: request) }
    guard let head = request.head else { return nil }
    return hop(request, head, usesStoredCookies: usesStoredCookies, hasLeftOrigin: false, task, prefetched)
  }

  /// Returns the hop to which a response leads; nil if the response is the final one.
  private func nextHop(after response: Client.Response, to hop: Hop) async throws -> Hop? {
    guard let redirection = response.redirection(of: hop.clientRequest.head) else { return nil }
    var next = hop.request.replacing(redirection.head)
    if !redirection.keepsContent {
      next.httpBody = nil
      next.httpBodyStream = nil
    }
    // The redirect may have set or deleted cookies.
    if hop.usesStoredCookies { next = context.settingCookies(of: next) }
    guard var request = try await permitted(next, after: response, to: hop.request) else { return nil }
    if request.httpBodyStream != nil { request.httpBodyStream = try await newBodyStream(for: request) }
    guard let url = request.url else {
      throw URLError(
        .badURL,
        "The redirect was not followed, because the session's delegate has given a request without a URL. Give the proposed "
          + "request, or nil for the redirect itself.")
    }
    let hasLeftOrigin = hop.hasLeftOrigin || Redirection.leavesOrigin(of: hop.clientRequest.head.url, to: url)
    // A delegate may have made a request without the session's fields.
    request = context.addingFields(to: request, hasLeftOrigin: hasLeftOrigin)
    guard let head = request.head else { return nil }
    return self.hop(request, head, usesStoredCookies: hop.usesStoredCookies, hasLeftOrigin: hasLeftOrigin, nil, nil)
  }

  private func hop(
    _ request: URLRequest, _ head: consuming RequestHead, usesStoredCookies: Bool, hasLeftOrigin: Bool,
    _ task: URLSessionDataTask?, _ prefetched: CachedURLResponse?
  ) -> Hop {
    let requestContext = RequestContext(request: request, task: task, prefetched: prefetched)
    // The hop is made in place, because a copy of it counts many references.
    var hop = Hop(
      request: request, usesStoredCookies: usesStoredCookies, hasLeftOrigin: hasLeftOrigin,
      clientRequest: context.clientRequest(request, head, context: requestContext, cache: cache))
    hop.clientRequest.readsBodyInPieces = readsBodyInPieces
    if let task = self.task {
      hop.clientRequest.willStore = WillCacheQuery.willStore(hop.clientRequest.head, task, session, cache)
    }
    return hop
  }

  /// Returns a stored response if it needs neither the origin nor a redirect.
  ///
  /// Otherwise the hop keeps the result of the lookup.
  func storedResponse(to hop: inout Hop) -> (response: URLResponse, body: Data)? {
    let stored = cache.client.storedResponse(to: hop.clientRequest, otherwise: &hop.lookup)
    if let stored, !mayGetMore(than: stored), stored.redirection(of: hop.clientRequest.head) == nil,
      let body = stored.body.bytes,
      // On an error the load goes on as without this shortcut, and throws it from there.
      let response = try? FoundationResponse.response(for: stored, url: hop.clientRequest.head.url)
    {
      return (response, body)
    }
    hop.stored = stored
    return nil
  }

  /// The size of the content in memory of a hop's request; 0 if it has none.
  func contentByteCount(of hop: Hop?) -> Int { hop?.request.httpBody?.count ?? 0 }

  /// Loads the final response.
  func run(_ first: Hop?) async throws -> Result {
    guard let first else { throw URLError.requestWithoutURL }
    let transport = transport
    var redirects: [FollowedRedirect] = []
    let (response, last) = try await cache.client.followRedirects(of: first, upTo: Self.maximumRedirectCount) {
      hop in
      try await respond(to: hop, over: transport)
    } next: { hop, response in
      guard let next = try await nextHop(after: response, to: hop) else { return nil }
      redirects.append(
        FollowedRedirect(
          request: hop.clientRequest.head, response: response.head, source: response.source,
          target: next.clientRequest.head))
      return next
    }
    let request = last.clientRequest
    return Result(response: response.following(redirects), url: request.head.url, request: request)
  }

  /// Loads the final response and its complete body.
  func finish(_ first: Hop?) async throws -> (Result, Data) {
    var first = first
    // The request may be sent again.
    var repetitionCount = first?.isSafe == true ? 3 : 0
    while true {
      let result = try await run(first)
      do {
        return (result, try await result.response.collectedBody())
      } catch CachingClientError.storedBodyLost where repetitionCount > 0 {
        // The stored response was removed or replaced while it was read. The caller has nothing of it yet.
        repetitionCount -= 1
        first?.forgetLookup()
      }
    }
  }

  private func respond(to hop: Hop, over transport: LoadTransport) async throws -> Client.Response {
    let client = cache.client
    var request = hop.clientRequest
    request.timeLimit = context.timeLimit(of: hop.request)
    request.receivesBodyAsItArrives = deliversChunks
    let response: Client.Response
    if let stored = hop.stored {
      response = stored
    } else {
      response = try await client.respond(to: request, over: transport, after: hop.lookup)
    }
    guard mayGetMore(than: response) else { return response }
    request.policy = .reloadIgnoringLocalCacheData
    return try await client.respond(to: request, over: transport)
  }

  /// Whether a response is a stored 401, and this load may have credentials for another response.
  private func mayGetMore(than response: Client.Response) -> Bool {
    response.status == 401 && response.source != .miss && transport.hasCredentials
  }

  /// The delegate of the load: its task's, or its session's.
  private var delegate: (any URLSessionTaskDelegate)? { context.delegateTask(for: task, cache).delegate(of: session) }

  /// Asks the delegate whether to follow a redirect, and with which request.
  private func permitted(
    _ next: URLRequest, after earlier: Client.Response, to request: URLRequest
  ) async throws -> URLRequest? {
    guard let session, let delegate, let url = request.url,
      let response = try FoundationResponse.response(for: earlier, url: url) as? HTTPURLResponse
    else { return next }
    return try await context.delegateTask(for: task, cache).use(for: request) { task in
      try await DelegateReply<URLRequest?>.wait { reply in
        session.delegateQueue.addOperation {
          delegate.urlSession(
            session, task: task, willPerformHTTPRedirection: response, newRequest: next, completionHandler: reply.give)
        }
      }
    }
  }

  /// A stream that is passed on, and that only its last receiver reads.
  private struct PassedStream: @unchecked Sendable {
    // Sendable: the giver does not use the stream after it has passed it on.
    let stream: InputStream?
  }

  /// Returns another stream for content that was read for the request before a redirect.
  ///
  /// - Throws: `URLError.requestBodyStreamExhausted` if the delegate has none.
  private func newBodyStream(for request: URLRequest) async throws -> InputStream {
    guard let session, let delegate else { throw URLError.exhaustedBodyStream }
    let given = try await context.delegateTask(for: task, cache).use(for: request) { task in
      try await DelegateReply<PassedStream>.wait { reply in
        session.delegateQueue.addOperation {
          delegate.urlSession(session, task: task) { reply.give(PassedStream(stream: $0)) }
        }
      }
    }
    guard let stream = given.stream else { throw URLError.exhaustedBodyStream }
    return stream
  }
}

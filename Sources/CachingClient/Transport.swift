public import FoundationEssentials
public import HTTPCaching

/// What carries a request to the origin: one method, so that any HTTP client can stand behind the cache.
///
///     struct MyTransport: Transport {
///       func send(_ request: OutgoingRequest) async throws -> IncomingResponse {
///         let answer = try await httpClient.execute(request.head, body: request.body)
///         return IncomingResponse(head: answer.head, body: ResponseBody(answer.chunks))
///       }
///     }
///
/// What the engine relies on:
/// - Redirects are not followed: each hop is a request of its own to the engine.
/// - Interim responses (1xx) are skipped: what is returned is the final head. A switch of protocols (101) is one.
/// - A body that ends early **throws**; one that just ends is taken as complete unless its Content-Length says otherwise.
///   Where the transport cannot tell, it says so by ``IncomingResponse/endsWithConnection``.
/// - No cache of its own is used, and header fields are sent as given. Fields a transport adds by itself (cookies, language)
///   are unknown to the engine: if a response can vary by them, put them into ``ClientRequest/head`` first.
/// - Credentials that a transport adds by itself are marked by ``IncomingResponse/usedUnseenCredentials``.
/// - Cancelling the calling task ends the transfer.
///
/// `send` may be called from many tasks at once.
public protocol Transport: Sendable {
  /// Sends the request and returns when the final head has arrived; the body may follow.
  ///
  /// - Throws: whatever keeps an answer from coming. The engine takes any error but `CancellationError` as "the origin cannot
  ///   be reached", which may let a stale response stand in, and passes it on otherwise.
  func send(_ request: OutgoingRequest) async throws -> IncomingResponse
}

/// A request as it goes to the origin: the caller's, with validators where a stored response is being checked.
public struct OutgoingRequest: Sendable {
  /// Method, URL and fields to send.
  public var head: RequestHead
  /// The content, if the request has any.
  public var body: RequestBody?
  /// What the caller put into ``ClientRequest/context``.
  public var context: (any Sendable)?
  /// How long the transport waits while nothing comes; nil, the default, for as long as it does without being told.
  public var timeLimit: Duration?

  /// A request to be sent.
  public init(
    head: RequestHead, body: RequestBody? = nil, context: (any Sendable)? = nil, timeLimit: Duration? = nil
  ) {
    self.head = head
    self.body = body
    self.context = context
    self.timeLimit = timeLimit
  }
}

/// The content of a request.
public enum RequestBody: Sendable {
  /// Bytes at hand.
  case bytes(Data)
  /// Content that only the transport can read: it finds it in the request's context.
  case inContext
}

/// A response as it comes from the origin.
public struct IncomingResponse: Sendable {
  /// The final head.
  public var head: ResponseHead
  /// The content; it throws when it ends early.
  public var body: ResponseBody
  /// Whether the transport has undone the Content-Encoding that `head` names. The default is no.
  ///
  /// The length of such a body is not what Content-Length says, so it is not compared.
  public var isContentDecoded: Bool
  /// Whether the transport dropped the content that `head` describes, as `URLSession` does with that of a redirect it cannot
  /// follow. The default is no. The response then counts as one without content, and its length is not compared.
  public var lacksContent = false
  /// Whether nothing but the end of the connection marks the end of the content (RFC 9112 section 6.3). The default is no.
  ///
  /// A connection that is lost looks the same, so such a response is handed on and not stored.
  public var endsWithConnection = false
  /// Whether the transport sent credentials that its request does not show, as a `URLSession` does whose delegate
  /// answers a challenge. The default is no. What came by them is given to that one caller: it is neither stored nor
  /// shared, and changes nothing that is stored for a safe method.
  public var usedUnseenCredentials = false

  /// A response that has arrived.
  public init(head: ResponseHead, body: ResponseBody, isContentDecoded: Bool = false) {
    self.head = head
    self.body = body
    self.isContentDecoded = isContentDecoded
  }
}

public import FoundationEssentials
public import HTTPCaching

/// Sends requests to the origin.
///
/// Any HTTP client can be used as a transport:
///
///     struct MyTransport: Transport {
///       func send(_ request: OutgoingRequest) async throws -> IncomingResponse {
///         let response = try await httpClient.execute(request.head, body: request.body)
///         return IncomingResponse(head: response.head, body: ResponseBodyStream(response.chunks))
///       }
///     }
///
/// A transport has these duties:
/// - Do not follow redirects. The caching client does (``CachingClientRequest/maximumRedirectCount``): each hop is a
///   separate request, which is stored under its own URL.
/// - Skip interim responses (1xx) and return the final head. A switch of protocols (101) is a final head.
/// - **Throw** if a body ends early. A body that ends without an error counts as complete if it matches Content-Length.
///   If the transport cannot know whether it is complete, set ``IncomingResponse/endsWithConnection``.
/// - Do not use a cache, and send the header fields unchanged. The caching client does not know fields that a transport
///   adds, such as cookies or a language. If responses vary by them, add them to ``CachingClientRequest/head`` instead.
/// - Set ``IncomingResponse/usedUnseenCredentials`` if the transport adds credentials.
/// - Stop the transfer when the calling task is cancelled.
///
/// `send` is called concurrently.
public protocol Transport: Sendable {
  /// Sends a request and returns when the final head has arrived. The body may follow later.
  ///
  /// - Throws: The transport's own error if there is no response. Any error except `CancellationError` means that the
  ///   origin is unreachable. The caching client then returns a stale response if that is permitted, and otherwise
  ///   throws the error unchanged.
  func send(_ request: OutgoingRequest) async throws -> IncomingResponse
}

/// A request to the origin: the caller's request, with validators if it validates a stored response.
public struct OutgoingRequest: Sendable {
  /// The method, URL and fields to send.
  public var head: RequestHead
  /// The content, if the request has any.
  public var body: RequestBodySource?
  /// The value of ``CachingClientRequest/context``.
  public var context: (any Sendable)?
  /// How long the transport waits while nothing arrives. Nil, the default, means the transport's own limit.
  public var timeLimit: Duration?

  /// The cache key, if the response of another machine may answer the request.
  package var sharing: SharingContext?

  /// Creates a request to the origin.
  public init(
    head: RequestHead, body: RequestBodySource? = nil, context: (any Sendable)? = nil, timeLimit: Duration? = nil
  ) {
    self.head = head
    self.body = body
    self.context = context
    self.timeLimit = timeLimit
  }
}

/// The content of a request.
public enum RequestBodySource: Sendable {
  /// Bytes in memory.
  case bytes(Data)
  /// Content that only the transport can read, from the request's context.
  case inContext
}

/// A response from the origin.
public struct IncomingResponse: Sendable {
  /// The final head.
  public var head: ResponseHead
  /// The content. Reading throws if the content ends early.
  public var body: ResponseBodyStream
  /// Whether the transport decoded the Content-Encoding that `head` names. The default is false.
  ///
  /// The length of decoded content is not compared with Content-Length.
  public var isContentDecoded: Bool
  /// Whether the transport dropped the content that `head` describes. The default is false.
  ///
  /// `URLSession` does so for a redirect that it cannot follow. The response then counts as a response without content,
  /// and the length is not compared with Content-Length.
  public var lacksContent = false
  /// Whether only the end of the connection marks the end of the content (RFC 9112 section 6.3). The default is false.
  ///
  /// A lost connection looks the same, so the caller receives the response but the cache does not store it.
  public var endsWithConnection = false
  /// Whether the transport sent credentials that are not in the request. The default is false.
  ///
  /// A `URLSession` does so if its delegate answers a challenge. The response is only for the caller: it is not stored
  /// or shared, and if the method is safe, it does not change stored responses.
  public var usedUnseenCredentials = false

  /// The rule by which a ``TransportLayer`` returned the response without asking the origin; nil for the origin's own.
  package var rule: Rule?

  /// Creates a response.
  public init(head: ResponseHead, body: ResponseBodyStream, isContentDecoded: Bool = false) {
    self.head = head
    self.body = body
    self.isContentDecoded = isContentDecoded
  }
}

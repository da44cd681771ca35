public import FoundationEssentials
public import HTTPCaching

/// A request to a ``CachingClient``.
public struct ClientRequest: Sendable {
  /// Method, URL and fields as the caller wants them sent.
  public var head: RequestHead {
    didSet { keyURL = overrides.keyURL(for: head.url) }
  }

  /// The content, if any. A GET with content is neither answered from the store nor stored: content is not part of the key.
  public var body: RequestBody?

  /// How stored responses may be used. The default follows HTTP.
  public var policy: RequestPolicy

  /// Whose responses these are. Nothing stored in one partition is seen in another. An invalidation by URL reaches only its own;
  /// one by cache group the whole origin's, in all partitions. The default is the empty string.
  public let partition: String

  /// Where the caller knows better than the server.
  public let overrides: RequestOverrides

  /// Anything the transport or the storage wants to see again, for example the `URLRequest` this was made from.
  public var context: (any Sendable)?

  /// A question to the caller: what is to be stored of a complete response.
  ///
  /// The hook gives its answer by calling the second argument, at once or later and from any thread; `nil` stores nothing, and
  /// so does a hook that never answers. It must return at once: it is called before the end of the response is handed on.
  public typealias StorageHook =
    @Sendable (
      _ proposal: StorageProposal, _ answer: @escaping @Sendable (StorageProposal?) -> Void
    ) -> Void

  /// Asked what to store once the body is complete. Storing alone waits for the answer: the caller, and requests that share the
  /// response, get it without. Only the request that is actually sent asks its hook.
  public var willStore: StorageHook?

  /// How long the request waits for another request's fetch of which nothing comes; `nil`, the default, for as long as
  /// that fetch lasts. Each piece that comes begins the time anew. The request's own fetch gets it as
  /// ``OutgoingRequest/timeLimit``.
  public var timeLimit: Duration?

  /// The URL that stands for this request in the store: ``head``'s without the query parameters that the overrides ignore.
  public private(set) var keyURL: URL

  /// A request.
  public init(
    head: RequestHead, body: RequestBody? = nil, policy: RequestPolicy = .useProtocolCachePolicy,
    partition: String = "",
    overrides: RequestOverrides = RequestOverrides(), context: (any Sendable)? = nil,
    willStore: StorageHook? = nil
  ) {
    self.head = head
    self.body = body
    self.policy = policy
    self.partition = partition
    self.overrides = overrides
    self.context = context
    self.willStore = willStore
    keyURL = overrides.keyURL(for: head.url)
  }
}

extension ClientRequest {
  /// Whether a stored response can answer it at all.
  @inlinable
  var isAnswerableFromStore: Bool {
    (head.method == "GET" || head.method == "HEAD") && body == nil && !head.namesOtherHost
  }

  /// Why a request that is not answerable from the store goes past it.
  var reasonToForward: Rule {
    guard head.method == "GET" || head.method == "HEAD" else { return .writeThrough }
    return body == nil ? .otherHost : .requestWithContent
  }

  /// Whether it can use what an identical request brings, and the other way round.
  ///
  /// A request with conditions or ranges of its own, or one that asks for an answer from the origin, gets an answer made for it
  /// alone; waiting for another's would only cost it time.
  var isShareable: Bool {
    guard overrides.allowsCoalescing, head.method == "GET", body == nil,
      policy == .useProtocolCachePolicy || policy == .returnCacheDataElseLoad
    else {
      return false
    }
    for (name, value) in head.fields {
      switch name.lowercased() {
      case "range", "if-range", "if-match", "if-none-match", "if-modified-since", "if-unmodified-since": return false
      case "cache-control", "pragma":
        let value = value.lowercased()
        if value.contains("no-store") || value.contains("no-cache") || value.contains("max-age=0") { return false }
      default: continue
      }
    }
    return true
  }

  /// The request a background revalidation sends: the whole resource, whatever part, condition or age its caller asked for.
  var forWholeResource: ClientRequest {
    var request = self
    request.policy = .useProtocolCachePolicy
    request.head.method = "GET"
    for name in Self.fieldsOfOneUse { request.head.fields.remove(name) }
    return request
  }

  private static let fieldsOfOneUse = [
    "Range", "If-Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "Cache-Control",
    "Pragma",
  ]

  /// The request as it is sent, with the cache's own conditions, if any, in place of the caller's.
  func outgoing(conditional: HTTPFields = HTTPFields()) -> OutgoingRequest {
    var head = conditional.isEmpty ? head : head.conditional(on: conditional)
    // A caller who speaks to the caches on the way himself is not contradicted.
    if policy != .useProtocolCachePolicy, !head.fields.contains("Cache-Control") {
      for (name, value) in policy.requestFields { head.fields.set(name, value) }
    }
    return OutgoingRequest(head: head, body: body, context: context, timeLimit: timeLimit)
  }
}

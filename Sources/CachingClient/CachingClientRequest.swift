public import CacheModel
public import FoundationEssentials
public import HTTPCaching

/// A request to a ``CachingClient``.
public struct CachingClientRequest: Sendable {
  /// The method, URL and fields of the caller's request.
  @inlinable public var head: RequestHead {
    get { storedHead }
    set { setHead(newValue) }
  }

  /// The head. A change of its method or fields does not need the comparison of URLs that one of ``head`` makes.
  @usableFromInline var storedHead: RequestHead

  /// The content, if any.
  ///
  /// The content of a query (``isQuery``) is part of its cache key. Any other request with content bypasses the cache.
  public var body: RequestBodySource?

  /// The permitted use of stored responses. The default follows HTTP.
  public var policy: RequestPolicy

  /// The partition of the cache, for example a tenant ID; the empty string by default.
  ///
  /// Responses are never served across partitions. An invalidation by URL is limited to its partition. An invalidation
  /// by cache group applies to the origin in all partitions.
  public private(set) var partition: String

  /// Overrides of HTTP's caching rules, with those of the rules that match the request.
  public private(set) var overrides: RequestOverrides

  /// The members that few requests have; nil for the others, so that they stay small.
  private var extras: RequestExtras?

  /// Any value for the transport or the storage, for example the original `URLRequest`.
  public var context: (any Sendable)?

  /// A hook that decides how a complete response is stored.
  ///
  /// The hook calls its second argument with the proposal to store, or with `nil` to store nothing. It can do so at any
  /// time and on any thread. If the hook releases the argument without a call, nothing is stored. The hook must return
  /// at once, because the end of the caller's body waits for it.
  public typealias StorageHook =
    @Sendable (
      _ proposal: ProposedResponse, _ answer: @escaping @Sendable (ProposedResponse?) -> Void
    ) -> Void

  /// The hook that is called when the body of a storable response is complete.
  ///
  /// Followers receive the response before the hook decides. The end of the caller's body waits at most 200 ms for the
  /// decision. Only the hook of the request that is sent to the origin is called.
  public var willStore: StorageHook?

  /// How long the request waits for another request's fetch that makes no progress.
  ///
  /// Each chunk that arrives restarts the time. `nil`, the default, means no limit. The request's own fetch receives
  /// this value as ``OutgoingRequest/timeLimit``.
  public var timeLimit: Duration?

  /// Whether the caller reads each part of a body from the origin when it arrives, also of a small one.
  ///
  /// The default is false: a body of up to 1 MiB that another request fetches is awaited, and so is the missing part of
  /// a stored one. A stored body of more than 1 MiB is read in pieces in any case.
  public var readsBodyInPieces = false

  /// Whether the caller has read a part of another response, and needs the rest.
  var isForRest = false

  /// Whether the caller must receive the body as it arrives, although a cut may follow.
  ///
  /// The default is false: if a stale response may replace the response, the caller waits until the body is complete.
  /// Otherwise, and with ``readsBodyInPieces``, it waits for the first part.
  public var receivesBodyAsItArrives = false

  /// The maximum number of redirects that ``CachingClient/respond(to:over:)`` follows.
  ///
  /// 0, the default: a redirect is the response. Foundation's limit is 20.
  ///
  /// Each hop is a separate request, which is looked up and stored under its own URL. The rules that match its URL
  /// apply to it. It has the policy, partition, overrides, context and hook of this request, and its fields and time
  /// limit:
  ///
  /// - The status 303 makes each method except HEAD a GET, and 301 and 302 make POST a GET. Content and its fields are
  ///   then dropped (RFC 9110 section 15.4). After 307 and 308 the method and the content stay the same. If the content
  ///   cannot be sent again (``canResendBody``), the redirect is the response.
  /// - Another origin does not get `Authorization`, `Proxy-Authorization`, `Cookie` and `Host`; nor do the hops after
  ///   it. `http` and `https` are different origins. Cookies that a redirect sets are not sent.
  /// - A redirect without `Location`, with two different ones, or to another scheme than http or https, is the
  ///   response.
  ///
  /// ``CachingClientResponse/redirects`` names the hops.
  public var maximumRedirectCount = 0

  /// Whether the transport can send content in the context (``RequestBodySource/inContext``) a second time.
  ///
  /// The default is false. Bytes in memory can always be sent again.
  public var canResendBody = false

  /// The URL for the cache key: the URL of ``head`` without the query parameters that the overrides ignore.
  public var keyURL: URL { otherKeyURL ?? storedHead.url }

  /// The URL for the cache key, if it is not that of the head.
  private var otherKeyURL: URL?

  /// The cache key under which a storage stores. Nil if the URL cannot be a key.
  ///
  /// It is the key for GET, from ``keyURL`` and ``partition``, in a request that a caller creates. The caching client
  /// passes its storage requests with other keys: for queries, for the users of a URL, and for URLs that are equivalent
  /// to others (No-Vary-Search).
  public var key: RequestKey? { spaceKey?.value ?? urlKey }

  /// The key of the URL.
  @usableFromInline package private(set) var urlKey: RequestKey?

  /// The key in a key space; nil if the request has the key of its URL.
  private(set) var spaceKey: KeySpace.Key? {
    get { extras?.spaceKey }
    set {
      if newValue !== extras?.spaceKey { extras = RequestExtras(rules: extras?.rules, spaceKey: newValue) }
    }
  }

  /// Whether ``keyURL`` contains user information, which is not part of the key.
  package private(set) var namesUser = false

  /// Creates a request.
  ///
  /// - Parameters:
  ///   - head: The method, URL and fields.
  ///   - body: The content, if any.
  ///   - policy: The permitted use of stored responses.
  ///   - partition: The partition of the cache.
  ///   - overrides: The program's own overrides.
  ///   - rules: Rules for many requests. Those that match add to the partition and to the overrides. Where both the
  ///     rules and `overrides` set something, the latter count.
  ///   - context: Any value for the transport or the storage.
  ///   - willStore: A hook that decides how a complete response is stored.
  public init(
    head: RequestHead, body: RequestBodySource? = nil, policy: RequestPolicy = .useProtocolCachePolicy,
    partition: String = "",
    overrides: RequestOverrides? = nil, rules: CachingRules = CachingRules(), context: (any Sendable)? = nil,
    willStore: StorageHook? = nil
  ) {
    storedHead = head
    self.body = body
    self.policy = policy
    self.context = context
    self.willStore = willStore
    if rules.isEmpty {
      self.partition = partition
      self.overrides = overrides ?? RequestOverrides()
    } else {
      let rules = RulesOfRequest(rules, partition, overrides)
      (self.partition, self.overrides) = rules.apply(to: head)
      extras = RequestExtras(rules: rules, spaceKey: nil)
    }
    makeKey()
  }

  @usableFromInline
  mutating func setHead(_ new: RequestHead) {
    let isSameURL = new.url == storedHead.url
    storedHead = new
    if !isSameURL { makeKey() }
  }

  /// Returns the request under a key of a key space; nil for the key of its URL.
  @usableFromInline
  func under(_ spaceKey: KeySpace.Key?) -> CachingClientRequest {
    var request = self
    request.spaceKey = spaceKey
    if spaceKey?.query != nil {
      request.storedHead.method = "GET"
      request.body = nil
    }
    return request
  }

  /// Returns the request for the target of a redirect. The rules that match the target apply to it.
  func redirected(to target: RequestHead) -> CachingClientRequest {
    var next = self
    if let rules = extras?.rules { (next.partition, next.overrides) = rules.apply(to: target) }
    next.storedHead = target
    next.makeKey()
    return next
  }

  private mutating func makeKey() {
    spaceKey = nil
    otherKeyURL = !overrides.ignoredQueryParameters.isEmpty ? overrides.keyURL(for: storedHead.url) : nil
    urlKey = RequestKey(
      urlString: keyURL.absoluteString, method: "GET", partition: partition, hasUser: &namesUser)
  }
}

/// The rules of a request with the values that they are combined with, and its key in a key space.
private final class RequestExtras: Sendable {
  let rules: RulesOfRequest?
  let spaceKey: KeySpace.Key?

  init(rules: RulesOfRequest?, spaceKey: KeySpace.Key?) {
    self.rules = rules
    self.spaceKey = spaceKey
  }
}

/// Rules, and the partition and overrides that the caller gave with them.
private struct RulesOfRequest: Sendable {
  private let rules: CachingRules
  private let partition: String
  private let overrides: RequestOverrides?

  init(_ rules: CachingRules, _ partition: String, _ overrides: RequestOverrides?) {
    self.rules = rules
    self.partition = partition
    self.overrides = overrides
  }

  func apply(to head: RequestHead) -> (partition: String, overrides: RequestOverrides) {
    rules.apply(to: head.url, partition: partition, overrides: overrides) { head.fields.values(of: $0) }
  }
}

extension CachingClientRequest {
  /// Whether a stored response can satisfy the request.
  @inlinable
  var isAnswerableFromStore: Bool {
    (head.method == "GET" || head.method == "HEAD") && body == nil && !head.namesOtherHost
  }

  /// The reason to report for a request that is not answerable from the store.
  var reasonToForward: Rule {
    if isQuery { return head.namesOtherHost ? .otherHost : .contentNotKeyed }
    guard head.method == "GET" || head.method == "HEAD" else { return .writeThrough }
    return body == nil ? .otherHost : .requestWithContent
  }

  /// Whether the request can share a fetch with identical requests.
  ///
  /// A request with its own conditions or ranges, or one that requires a response from the origin, needs its own
  /// response. Waiting for another request's response would only delay it.
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

  /// The request of a background revalidation: a GET without the caller's ranges, conditions and cache directives.
  var unconditional: CachingClientRequest {
    var request = self
    request.policy = .useProtocolCachePolicy
    request.head.method = "GET"
    for name in UnsharedFields.ofRequest { request.head.fields.remove(name) }
    return request
  }

  /// Returns the request to send, with the cache's own conditions, if any, in place of the caller's.
  func outgoing(conditional: HeaderFields = HeaderFields()) -> OutgoingRequest {
    var head = conditional.isEmpty ? head : head.conditional(on: conditional)
    // Keep the caller's own Cache-Control, if any.
    if policy != .useProtocolCachePolicy, !head.fields.contains("Cache-Control") {
      for (name, value) in policy.requestFields { head.fields.set(name, value) }
    }
    let query = spaceKey?.query
    if let query { head.method = query.method }
    var outgoing = OutgoingRequest(
      head: head, body: query?.body ?? body, context: context, timeLimit: timeLimit)
    // A reload asks the origin itself.
    if let key = sharedKey,
      policy == .useProtocolCachePolicy || policy == .returnCacheDataElseLoad,
      !namesUser,
      overrides.mayStore
    {
      outgoing.sharing = SharingContext(
        key: key, content: query?.content, hasOwnValidators: !conditional.isEmpty)
    }
    return outgoing
  }
}

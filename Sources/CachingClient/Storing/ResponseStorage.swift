public import CacheModel
public import FoundationEssentials
public import HTTPCaching

/// The storage of a ``CachingClient``.
///
/// All methods are called concurrently from any thread, and never while the caching client holds a lock. They are
/// called from Swift tasks, so they must not block: a write or update that does not fit is dropped. ``remove(_:for:)``
/// and ``invalidate(_:for:movingPast:)`` are rare and suspend until the removal is durable.
///
/// The storage keeps variants by cache key and Vary key (``/HTTPCaching/VaryKey``). The cache key of a store, an update
/// and a removal is ``CachingClientRequest/key``. It is for GET, also of a HEAD, which is served from a stored GET, or
/// for a query with its content. It has no user information, which is part of the Vary key instead. Use these keys, and
/// no others made of the URL: they distinguish queries and users. Some are of small records that the client stores
/// (``/CacheModel/RequestKey/isKeySpace``).
///
/// A storage of one's own needs six methods. The others have defaults for a storage from which only its caching client
/// removes responses.
public protocol ResponseStorage: Sendable {
  /// A stored response that lookups return.
  associatedtype Entry: StoredResponseMetadata & Sendable

  /// Returns the newest stored response with a cache key whose Vary key matches the request's head, fresh or stale;
  /// `nil` if none.
  ///
  /// - Parameters:
  ///   - request: The request as its caller made it.
  ///   - key: The cache key, which may be another than that of `request`.
  func lookup(_ request: CachingClientRequest, at key: RequestKey) -> Entry?

  /// Returns the body of an entry.
  ///
  /// Called for the whole of a body of up to 1 MiB, and by the default implementation of `chunks(of:in:)`.
  func body(of entry: Entry) -> Data

  /// Returns a range of the body of an entry. The bytes may stay in the store until they are read.
  ///
  /// Called for ranges, and for bodies of more than 1 MiB. The default implementation uses `body(of:)`.
  func chunks(of entry: Entry, in range: Range<Int>) -> ResponseBodyStream

  /// Returns how the body of a response is stored that is larger than 1 MiB, before it arrives.
  ///
  /// The default implementation returns ``BodyPlacement/inMemory(maximumByteCount:)`` without a limit of its own.
  ///
  /// - Parameters:
  ///   - proposal: The response without its body.
  ///   - request: The request for which it will be stored.
  func placement(ofBody proposal: ProposedResponse, for request: CachingClientRequest) -> BodyPlacement

  /// Stores a response and replaces the stored one with the same cache key and Vary key.
  ///
  /// The body is in ``ProposedResponse/arrivedBody`` if the storage has received it while it arrived. Lookups find the
  /// response when this returns, unless it was dropped. A storage that drops it because of its size calls
  /// ``ProposedResponse/refuse(_:)``.
  func store(_ proposal: ProposedResponse, for request: CachingClientRequest)

  /// Whether `store` checks ``ProposedResponse/isRevoked`` inside the critical section that removals use, so that an
  /// outdated response is never visible.
  ///
  /// The default implementation returns `false`. Then the caching client removes an invalidated response after it was
  /// stored, together with any that has replaced it.
  var checksRevocation: Bool { get }

  /// Replaces the fields and freshness of an entry and keeps its body (RFC 9111 section 4.3.4).
  ///
  /// Does nothing if the entry is no longer stored.
  ///
  /// - Parameters:
  ///   - entry: The entry as a lookup returned it.
  ///   - fields: The new fields.
  ///   - freshness: The new freshness.
  ///   - token: The removal token from before the validation was sent. The entry stays stale if a later soft purge
  ///     covers it.
  ///   - request: The request that was validated.
  func update(
    _ entry: Entry, fields: HeaderFields, freshness: FreshnessInfo, askedAt token: RemovalToken,
    for request: CachingClientRequest)

  /// Removes an entry. When this returns, lookups no longer find it.
  ///
  /// Other variants with its cache key may be removed too.
  func remove(_ entry: Entry, for request: CachingClientRequest) async

  /// Removes the stored responses that a response invalidates (RFC 9111 section 4.4, RFC 9875).
  ///
  /// When this returns, lookups no longer find them.
  ///
  /// - Parameters:
  ///   - invalidation: The URLs and groups to remove.
  ///   - request: The request whose response invalidates them.
  ///   - token: The removal token of the invalidating response, which may itself be stored. It is advanced past the
  ///     removals made here, unless other removals came in between. A storage without tokens does not change it.
  func invalidate(
    _ invalidation: StorageInvalidation, for request: CachingClientRequest, movingPast token: inout RemovalToken
  ) async

  /// The token of the latest removal.
  ///
  /// The caching client reads it before it sends a request. The default implementation returns zero.
  var removalToken: RemovalToken { get }

  /// Returns the effect that removals since a token, by any process, may have on a response with a cache key.
  ///
  /// The default implementation returns none.
  ///
  /// - Parameters:
  ///   - key: The key of the response's URL.
  ///   - token: The removal token to compare with. It is advanced to the present.
  func effectOfRemovals(on key: RequestKey, since token: inout RemovalToken) -> RemovalEffect

  /// Returns a keyed digest of at least 128 bits, as a token, that represents a credential, or another value that can
  /// be secret, in a key. Equal bytes have equal digests.
  ///
  /// The secret of the default implementation is random in each process. A storage that outlives a process needs one
  /// that does so, too: otherwise it finds no responses for single users, and none to queries.
  ///
  /// - Parameter bytes: Valid during the call.
  func digest(_ bytes: UnsafeRawBufferPointer) -> String
}

extension ResponseStorage {
  /// Returns the range of `body(of:)`.
  public func chunks(of entry: Entry, in range: Range<Int>) -> ResponseBodyStream {
    ResponseBodyStream(body(of: entry).part(range))
  }

  /// Returns a placement in memory without a limit.
  public func placement(ofBody proposal: ProposedResponse, for request: CachingClientRequest) -> BodyPlacement {
    .inMemory(maximumByteCount: .max)
  }

  /// `false`.
  public var checksRevocation: Bool { false }

  /// Zero, because only the caching client removes responses.
  public var removalToken: RemovalToken { 0 }

  /// Returns none, because only the caching client removes responses.
  public func effectOfRemovals(on key: RequestKey, since token: inout RemovalToken) -> RemovalEffect { .none }

  /// Returns a digest with a secret of this process.
  public func digest(_ bytes: UnsafeRawBufferPointer) -> String { KeyedDigest.inProcess(bytes) }

  /// Returns the digest of a credential, or of another secret, for ``/HTTPCaching/VaryKey``.
  public func credentialDigest(_ value: String) -> String {
    var value = value
    return value.withUTF8 { digest(UnsafeRawBufferPointer($0)) }
  }
}

/// Stored responses to remove because a request has changed their resources at the origin.
public struct StorageInvalidation: Sendable {
  /// URLs whose variants in the request's partition are removed, without the query parameters that overrides ignore.
  public let urls: [URL]
  /// The keys to remove: those of the URLs and of their key spaces (``/CacheModel/RequestKey/isKeySpace``).
  public let keys: [RequestKey]
  /// The keys of the URLs whose responses are all removed. Empty if only those with ``keys`` are.
  package let resources: [RequestKey]
  /// Cache groups whose members are removed, in all partitions.
  public let groups: [String]
  /// The scopes of the groups.
  package let scopes: [RemovalScope]
  /// The origin to which the groups belong.
  public let origin: String
  /// Whether store permits for the URLs were revoked.
  ///
  /// Their fetches may be storing a response at this moment, so remove the URLs even if a lookup finds no response.
  public let revokesPermits: Bool
  /// Whether only this storage's copies are to be removed, because the request changed nothing at the origin.
  package var isLocal: Bool { resources.isEmpty && scopes.isEmpty }

  init(
    urls: [URL], resources: [RequestKey], groups: [String], scopes: [RemovalScope], origin: String,
    revokesPermits: Bool
  ) {
    self.urls = urls
    self.resources = resources
    keys = resources.flatMap(\.withSpaces)
    self.groups = groups
    self.scopes = scopes
    self.origin = origin
    self.revokesPermits = revokesPermits
  }

  /// Removes what is stored under one key, and nothing else of its URL.
  init(urls: [URL], exactly key: RequestKey) {
    self.urls = urls
    resources = []
    keys = [key]
    groups = []
    scopes = []
    origin = ""
    revokesPermits = false
  }
}

/// A response that is proposed for storing.
///
/// It has the members of ``/HTTPCaching/CacheableResponse`` too.
@dynamicMemberLookup
public struct ProposedResponse: Sendable {
  /// The response to store.
  public var response: CacheableResponse
  /// The body, if the storage has received it while it arrived; `body` is empty then.
  public internal(set) var arrivedBody: (any BodyDestination)?
  /// Bytes of the caller that are stored with the response.
  public var userInfo: Data?
  /// Whether to keep the response in memory only.
  public var isMemoryOnly: Bool
  /// Any value that a ``CachingClientRequest/willStore`` hook passes to the storage.
  public var attachment: (any Sendable)?

  /// The size of the body.
  public var storedByteCount: Int { arrivedBody?.readableByteCount ?? response.body.count }

  /// The store permit of the fetch; `nil` for a proposal that does not come from a fetch.
  var permit: StorePermit?
  /// The removal token up to which no removal covers this response.
  ///
  /// Pass it to the store, because a later removal may cover the response. `nil` for a proposal that does not come from
  /// a fetch.
  public internal(set) var removalToken: RemovalToken?
  /// Where the storage reports that it keeps the response in memory only, or not at all.
  package internal(set) var report: StorageReport?

  /// Creates a proposal.
  public init(
    status: Int, fields: HeaderFields, body: Data, freshness: FreshnessInfo, vary: VaryKey, userInfo: Data? = nil,
    isMemoryOnly: Bool = false, attachment: (any Sendable)? = nil
  ) {
    response = CacheableResponse(status: status, fields: fields, body: body, freshness: freshness, vary: vary)
    self.userInfo = userInfo
    self.isMemoryOnly = isMemoryOnly
    self.attachment = attachment
  }

  /// A member of the response.
  public subscript<Value>(dynamicMember member: WritableKeyPath<CacheableResponse, Value>) -> Value {
    get { response[keyPath: member] }
    set { response[keyPath: member] = newValue }
  }

  /// Whether a removal or invalidation revoked the permit to store this response.
  ///
  /// The caching client checks it before `store`. See ``ResponseStorage/checksRevocation``.
  public var isRevoked: Bool { permit?.isRevoked ?? false }

  /// Reports why the storage does not keep this response.
  ///
  /// Call this within ``ResponseStorage/store(_:for:)``. The response then has the rule as
  /// ``CachingClientResponse/storageRefusal``. No effect on a proposal that does not come from a fetch.
  public func refuse(_ rule: Rule) {
    report?.decide(.notStored(rule))
  }
}

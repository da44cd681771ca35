public import FoundationEssentials
public import HTTPCaching
public import ResponseStore

/// Where a ``CachingClient`` looks responses up and puts them.
///
/// All methods are called from any thread, many at once; none is called while the engine holds a lock. They are called from
/// Swift tasks, so none may block: a store or an update for which there is no room is dropped. ``remove(_:for:)`` and
/// ``invalidate(_:for:movingPast:)``, which are rare, suspend until the removal is safe.
///
/// The storage keys by ``ClientRequest/keyURL`` without its user, and ``ClientRequest/partition``, always as for a GET: a HEAD is
/// answered from a stored GET. Users select among the variants of a key (``HTTPCaching/VarySelection``).
public protocol ResponseStorage: Sendable {
  /// A stored response as lookups return it.
  associatedtype Entry: StoredResponseView & Sendable

  /// The newest stored response whose selection matches the request's head, fresh or not; `nil` if there is none.
  func lookup(_ request: ClientRequest) -> Entry?

  /// The stored bytes of an entry.
  func body(of entry: Entry) -> Data

  /// Stores a response in place of what has the same key and selection. It can be looked up when this returns, if it fits.
  func store(_ proposal: StorageProposal, for request: ClientRequest)

  /// Replaces fields and facts of an entry and keeps its body (RFC 9111 section 4.3.4). Nothing happens if it is gone.
  func update(_ entry: Entry, fields: HTTPFields, facts: FreshnessFacts, for request: ClientRequest)

  /// Removes one entry. When it returns, the entry is not found any more; other variants of its key may go with it.
  func remove(_ entry: Entry, for request: ClientRequest) async

  /// Removes what an answer makes invalid (RFC 9111 section 4.4, RFC 9875). When it returns, nothing of that is found
  /// any more.
  ///
  /// - Parameter token: of an answer that is itself to be stored, as ``removalToken`` gave it. It is moved past the
  ///   removals that this makes, unless others come between; a storage without tokens leaves it alone.
  func invalidate(
    _ invalidation: StorageInvalidation, for request: ClientRequest, movingPast token: inout RemovalToken
  ) async

  /// The present point in the order of removals. The engine takes it before it sends a request. There is a default:
  /// zero, for a storage from which only its client removes.
  var removalToken: RemovalToken { get }

  /// Whether a removal since a token, by whomever, may cover a response that comes from a URL now. The token is moved
  /// to now. There is a default: false.
  ///
  /// - Parameter url: `nil` if the URL cannot be told; then any removal may cover the response.
  func wasRemoved(_ url: URL?, _ partition: String, since token: inout RemovalToken) -> Bool

  /// How many variants are stored under the request's key, matching or not. There is a default: one if `lookup` finds any.
  func variantCount(of request: ClientRequest) -> Int

  /// A keyed digest that stands for a credential in a ``VarySelection``; the same value always gives the same digest.
  func credentialDigest(_ value: String) -> String
}

extension ResponseStorage {
  /// One if `lookup` finds any.
  public func variantCount(of request: ClientRequest) -> Int {
    lookup(request) == nil ? 0 : 1
  }

  /// Zero: nobody else removes anything.
  public var removalToken: RemovalToken { 0 }

  /// False: nobody else removes anything.
  public func wasRemoved(_ url: URL?, _ partition: String, since token: inout RemovalToken) -> Bool { false }
}

/// What is to be removed from a storage because a request has changed it at the origin.
public struct StorageInvalidation: Sendable, Hashable {
  /// URLs of which every variant in the request's partition is to be removed, as the storage keys them.
  public var urls: [URL]
  /// Cache groups of which every member is to be removed, in all partitions.
  public var groups: [String]
  /// The origin to which the groups belong.
  public var origin: String
  /// Whether fetches of the URLs have lost their right to store by this. One may be storing at this moment: then a
  /// removal is to be made even where nothing is found.
  public var overtakesFetches: Bool

  /// What is to be removed.
  public init(urls: [URL], groups: [String] = [], origin: String = "", overtakesFetches: Bool = false) {
    self.urls = urls
    self.groups = groups
    self.origin = origin
    self.overtakesFetches = overtakesFetches
  }
}

/// A response that is about to be stored.
public struct StorageProposal: Sendable {
  /// The status to store.
  public var status: Int
  /// The fields to store: hop-by-hop fields are left out, and a Date is there (RFC 9111 section 3.1).
  public var fields: HTTPFields
  /// The complete body; for a part (`facts.flags.incomplete`) the bytes of that part.
  public var body: Data
  /// What was computed from the head for later decisions.
  public var facts: FreshnessFacts
  /// The request fields this response was selected by.
  public var vary: VarySelection
  /// Bytes of the caller's own, kept with the response.
  public var userInfo: Data?
  /// Whether it is to be kept in memory only.
  public var isMemoryOnly: Bool
  /// Anything a ``ClientRequest/willStore`` hook wants to hand to the storage along with it.
  public var attachment: (any Sendable)?

  /// The transfer this comes from; `nil` for a proposal made elsewhere.
  var ticket: StoreTicket?

  /// A proposal.
  public init(
    status: Int, fields: HTTPFields, body: Data, facts: FreshnessFacts, vary: VarySelection, userInfo: Data? = nil,
    isMemoryOnly: Bool = false, attachment: (any Sendable)? = nil
  ) {
    self.status = status
    self.fields = fields
    self.body = body
    self.facts = facts
    self.vary = vary
    self.userInfo = userInfo
    self.isMemoryOnly = isMemoryOnly
    self.attachment = attachment
  }

  /// The point in the order of removals at which the origin was asked: a removal that came later covers this response,
  /// which is to be stored as of then. `nil` for a proposal made elsewhere.
  public var removalToken: RemovalToken? { ticket?.token }

  /// Whether a removal or an invalidation has overtaken this response, so that it must not be stored any more.
  ///
  /// The engine asks before `store`, and removes again what an invalidation overtook meanwhile. A storage that asks once more
  /// inside its own critical section, the one its removals take too, leaves no instant at which the old response is visible.
  public var isVoid: Bool { ticket?.isVoid ?? false }
}

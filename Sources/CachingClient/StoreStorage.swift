public import FoundationEssentials
public import HTTPCaching
public import ResponseStore

/// A ``ResponseStore/ResponseStore`` as the storage of a ``CachingClient``, without a memory tier.
///
///     let store = try ResponseStore.open(directory: path, options: .init(capacityByteCount: 512 << 20))
///     let client = CachingClient(store: store)
///
/// Lookups cost what the store's cost. `remove` and `invalidate` return when the removal is safe on disk, as the store's do.
public struct StoreStorage: ResponseStorage {
  /// Where responses are kept.
  public let store: ResponseStore

  /// A storage on an open store.
  public init(_ store: ResponseStore) {
    self.store = store
  }

  private func key(_ request: ClientRequest) -> RequestKey? {
    RequestKey(url: request.keyURL, partition: request.partition)
  }

  /// The newest stored response whose selection matches.
  public func lookup(_ request: ClientRequest) -> StoredResponse? {
    guard let key = key(request) else { return nil }
    return store.lookup(key) { vary in
      vary.matches(request.head, credentialDigest: store.credentialDigest)
    }
  }

  /// The bytes that were copied out with the entry.
  public func body(of entry: StoredResponse) -> Data { entry.body }

  /// Hands a response to the store's writer; it is dropped where the queue is full. One that is to be kept in memory
  /// only is not kept.
  public func store(_ proposal: StorageProposal, for request: ClientRequest) {
    guard !proposal.isMemoryOnly, let key = key(request) else { return }
    store.store(
      NewResponse(
        key: key, status: proposal.status, fields: proposal.fields, body: proposal.body, facts: proposal.facts,
        vary: proposal.vary, attachment: proposal.userInfo.map { [UInt8]($0) }),
      askedAt: proposal.removalToken, waitsForRoom: false)
  }

  /// Gives an entry new fields and facts.
  public func update(_ entry: StoredResponse, fields: HTTPFields, facts: FreshnessFacts, for request: ClientRequest) {
    store.update(entry, fields: fields, facts: facts, waitsForRoom: false)
  }

  /// Removes an entry, and its siblings with it: the store removes by key.
  public func remove(_ entry: StoredResponse, for request: ClientRequest) async {
    await onBlockingThread { [store] in store.remove(entry.key) }
  }

  /// Removes each URL in the request's partition, and the groups in all.
  public func invalidate(
    _ invalidation: StorageInvalidation, for request: ClientRequest, movingPast token: inout RemovalToken
  ) async {
    let keys = invalidation.urls.compactMap { RequestKey(url: $0, partition: request.partition) }
    let scopes =
      keys.map { .key($0.bytes) }
      + invalidation.groups.compactMap { RemovalScope.group($0, ofOrigin: request.head.url) }
    token = await onBlockingThread { [store, token] in
      var token = token
      for scope in scopes { store.remove(scope, movingPast: &token) }
      return token
    }
  }

  /// The store's.
  public var removalToken: RemovalToken { store.snapshot }

  /// Whether a removal by any process may cover what comes from a URL now.
  public func wasRemoved(_ url: URL?, _ partition: String, since token: inout RemovalToken) -> Bool {
    store.mayBeRemoved(url, partition: partition, since: &token)
  }

  /// Counts the variants that a lookup would choose from.
  public func variantCount(of request: ClientRequest) -> Int {
    guard let key = key(request) else { return 0 }
    var count = 0
    _ = store.lookup(key) { _ in
      count += 1
      return false
    }
    return count
  }

  /// The store's keyed digest.
  public func credentialDigest(_ value: String) -> String {
    store.credentialDigest(value)
  }
}

extension CachingClient where Storage == StoreStorage {
  /// An engine on a store.
  ///
  /// - Parameter maximumBodyByteCount: the largest body to keep; by default a tenth of what the store takes at most, about 5% of
  ///   its capacity as with `URLSession`, but not less than 16 MiB where the store takes that, and not more than 64 MiB.
  public convenience init(
    store: ResponseStore, options: CachingOptions = CachingOptions(), maximumBodyByteCount: Int? = nil,
    clock: @escaping @Sendable () -> Date = { Date() }
  ) {
    let largest = store.largestBodyByteCount
    self.init(
      storage: StoreStorage(store), options: options,
      maximumBodyByteCount: maximumBodyByteCount ?? min(max(largest / 10, min(largest, 16 << 20)), 64 << 20),
      clock: clock)
  }
}

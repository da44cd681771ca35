public import CacheModel
public import CachingClient
public import FoundationEssentials
public import HTTPCaching
import ResponseStore

/// The cache as the storage of its caching clients.
extension ResponseCache: ResponseStorage, SharesClientState {
  // MARK: Lookups

  /// Returns the newest stored response with a key whose Vary key matches the request, fresh or stale.
  public func lookup(_ request: CachingClientRequest, at key: RequestKey) -> CacheEntry? {
    if let interceptor, case .decided(let entry) = interceptor.lookup(request, at: key, in: tiers) { return entry }
    // Check the lease before the lookup: a purge may be applied, and the lease renewed, in between.
    let isCutOff = tiers.isCutOff
    guard let found = tiers.lookup(request, at: key), found.status > 0 else { return nil }
    return isCutOff ? found.requiringValidation() : found
  }

  /// Returns the body of an entry. One of more than 1 MiB may be in the store: read it by `chunks(of:in:)`.
  public func body(of entry: CacheEntry) -> Data { entry.body }

  // MARK: Stores

  /// Returns a placement on disk, if the response may be stored there. A response for the memory tier alone, or for a
  /// layer above, is collected.
  public func placement(ofBody proposal: ProposedResponse, for request: CachingClientRequest) -> BodyPlacement {
    let inMemory = BodyPlacement.inMemory(maximumByteCount: tiers.maximumCollectedBodyByteCount)
    guard let key = request.key, interceptor?.mayHoldResponses != true, let store = tiers.usableStore else {
      return inMemory
    }
    let entry = CacheEntry(proposal.response, for: key, storedAt: tiers.now)
    let reachesDisk = tiers.allowsDiskStorage(entry, isMemoryOnly: proposal.isMemoryOnly) { request.storageHead }
    return reachesDisk ? .whileArriving(store.makeIncomingBody()) : inMemory
  }

  /// Stores a response in the tiers that its size, its lifetime and its policy permit.
  public func store(_ proposal: ProposedResponse, for request: CachingClientRequest) {
    guard let key = request.key else { return }
    let limit = tiers.maximumSessionBodyByteCount
    guard proposal.storedByteCount <= limit else { return proposal.refuse(.bodyTooLarge(limit: limit)) }
    let attached = interceptor?.attachment(of: proposal, for: key)
    let entry = CacheEntry(
      proposal.response, for: key, attachment: attached?.bytes ?? proposal.userInfo.map { [UInt8]($0) },
      storedAt: tiers.now, prepared: attached?.prepared)
    if let body = proposal.arrivedBody as? IncomingBody {
      proposal.report?.decide(tiers.insert(entry, with: body, askedAt: proposal.removalToken))
      return
    }
    if let interceptor, interceptor.store(entry, proposal, for: request) { return }
    let reachesDisk = tiers.allowsDiskStorage(entry, isMemoryOnly: proposal.isMemoryOnly) { request.storageHead }
    if !reachesDisk { tiers.activity.noteRefusal(Rule.memoryOnly.id, of: key) }
    let outcome = tiers.insert(
      entry, reachesDisk: reachesDisk, askedAt: proposal.removalToken, waitsForSpace: false,
      unless: { proposal.isRevoked })
    proposal.report?.decide(outcome)
  }

  /// Whether no layer above the tiers may keep a copy, which their locks do not guard.
  public var checksRevocation: Bool { interceptor?.mayHoldResponses != true }

  /// Replaces the fields and freshness of an entry in both tiers.
  public func update(
    _ entry: CacheEntry, fields: HeaderFields, freshness: FreshnessInfo, askedAt token: RemovalToken,
    for request: CachingClientRequest
  ) {
    let entry = entry.stored
    let isTaken = interceptor?.update(
      entry, to: entry.updated(fields: fields, freshness: freshness, at: tiers.now), askedAt: token, for: request)
    if isTaken != true { tiers.update(entry, fields: fields, freshness: freshness, askedAt: token) }
  }

  // MARK: Removals

  /// Removes an entry and the other variants with its cache key.
  public func remove(_ entry: CacheEntry, for request: CachingClientRequest) async {
    let key = entry.key
    guard entry.isForeign || tiers.holds(key) else { return }
    await onBlockingThread { [self] in
      if tiers.holds(key) { tiers.remove([key]) }
      if entry.isForeign { interceptor?.remove([request.head.url], for: request) }
    }
  }

  /// Removes the URLs in the request's partition and the groups in all partitions.
  public func invalidate(
    _ invalidation: StorageInvalidation, for request: CachingClientRequest, movingPast token: inout RemovalToken
  ) async {
    // A removal waits for a disk sync: skip keys under which nothing is stored, unless a fetch may be storing just now,
    // in this cache or another one.
    let mayBeFetched = invalidation.revokesPermits || tiers.mayHaveOtherUsers
    let keys = invalidation.resources.isEmpty ? invalidation.keys : []
    let resources = invalidation.resources.filter { mayBeFetched || $0.withSpaces.contains { tiers.holds($0) } }
    let scopes = invalidation.scopes
    let urls = interceptor?.mayHoldResponses == true ? invalidation.urls : []
    // Other machines may hold what this one does not.
    let posted =
      !tiers.hasOtherMachines || invalidation.isLocal
      ? [] : (invalidation.urls.compactMap { RemovalScope.target(of: $0) } + scopes).map { Removal($0) }
    guard !keys.isEmpty || !resources.isEmpty || !scopes.isEmpty || !urls.isEmpty || !posted.isEmpty else { return }
    token = await onBlockingThread { [self, token] in
      var token = token
      tiers.onAllMachines(posted) {
        tiers.remove(keys, movingPast: &token, of: request.key)
        tiers.remove(resources: resources, movingPast: &token, of: request.key)
        interceptor?.remove(urls, for: request)
        if !scopes.isEmpty { tiers.remove(scopes, movingPast: &token, of: request.key) }
      }
      return token
    }
  }

  /// The token of the latest removal by any process.
  public var removalToken: RemovalToken { tiers.connection.removalToken }

  /// Returns the store's keyed digest of a credential, or of the content of a query.
  public func digest(_ bytes: UnsafeRawBufferPointer) -> String { tiers.digest(bytes) }
}

extension ResponseStorage where Entry == CacheEntry {
  /// Returns a range of an entry's body, whose bytes are in memory or in the store.
  public func chunks(of entry: CacheEntry, in range: Range<Int>) -> ResponseBodyStream {
    guard let stored = entry.storedBody else { return ResponseBodyStream(entry.body.part(range)) }
    return ResponseBodyStream(stored, in: range)
  }
}

extension IncomingBody: BodyDestination {}

extension CachingClientRequest {
  /// The head of the request under which a response is stored: that of a GET.
  package var storageHead: RequestHead {
    guard head.method != "GET" else { return head }
    var head = head
    head.method = "GET"
    return head
  }
}

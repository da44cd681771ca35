import CacheActivity
import CacheModel
import CachingClient
import CachingStorage
import Foundation
import FoundationNetworking
import HTTPCaching

/// The storage of a cache's caching client: the two tiers, which it accesses with the request's key.
///
/// With a subclass it calls `cachedResponse(for:)` and `storeCachedResponse(_:for:)` instead, which the subclass may
/// override.
struct CacheStorage: ResponseStorage, CountsActivity {
  /// A stored response as the caching client uses it.
  struct Entry: StoredResponseMetadata, Sendable {
    let cached: LMDBCachedURLResponse
    /// Whether an override returned a response that it created, which only the cache's public methods can replace.
    let isForeign: Bool
    /// Whether the machine has no valid lease in its fleet, so that purges of this response may be unknown.
    var mustBeValidated = false

    /// The tier in which the lookup found the response; nil if an override created it.
    var tier: CacheProvenance.Tier? { isForeign ? nil : cached.tier }
    var status: Int { cached.status }
    var freshness: FreshnessInfo {
      mustBeValidated ? cached.freshness.requiringValidation : cached.freshness
    }
    var fields: HeaderFields { cached.fields }
    var bodyByteCount: Int { cached.bodyByteCount }
  }

  let tiers: TieredStorage
  /// Calls the methods of a subclass; nil for an `LMDBURLCache` itself.
  ///
  /// Only for requests under the key of their URL: `URLCache` has no methods for queries and for equivalent URLs.
  let detour: SubclassDetour?

  var activity: ActivityReference { tiers.activity }

  // MARK: Lookups

  func lookup(_ request: CachingClientRequest) -> Entry? {
    // The session's lookup does not know in which form its transport delivers content.
    if let prefetched = (request.context as? RequestContext)?.takePrefetched(),
      let entry = entry(prefetched, for: request), tiers.matches(entry.cached.vary, request.head)
    {
      return entry
    }
    // Overrides see every lookup, and return whole bodies.
    if let detour, request.isForURL { return detour.lookup(request).flatMap { entry($0, for: request) } }
    return request.key.flatMap { find(request, at: $0) }
  }

  func lookup(_ request: CachingClientRequest, at key: RequestKey) -> Entry? {
    // Overrides do not see lookups of equivalent URLs.
    guard detour != nil, key.isOfUser else { return find(request, at: key) }
    return lookup(request.under(key))
  }

  private func find(_ request: CachingClientRequest, at key: RequestKey) -> Entry? {
    // Check the lease before the lookup: a purge may be applied, and the lease renewed, in between.
    let isCutOff = tiers.isCutOff
    guard let found = tiers.lookup(request, at: key), found.status > 0 else { return nil }
    return Entry(cached: found, isForeign: false, mustBeValidated: isCutOff)
  }

  func keySpaceRecord(at key: RequestKey) -> HeaderFields? { tiers.keySpaceRecord(at: key) }

  var mayHaveEquivalentURLs: Bool { tiers.mayHaveEquivalentURLs }

  func body(of entry: Entry) -> Data { entry.cached.body }

  func chunks(of entry: Entry, in range: Range<Int>) -> ResponseBodyStream {
    guard let stored = entry.cached.storedBody else { return ResponseBodyStream(entry.cached.body.part(range)) }
    return ResponseBodyStream(stored, in: range)
  }

  func variantCount(of request: CachingClientRequest) -> Int {
    request.key.map { tiers.variantCount($0) } ?? 0
  }

  /// Returns the entry of a response that one of the cache's public methods returned.
  ///
  /// A response that an override created is evaluated by its fields, as if it were received now.
  private func entry(_ cached: CachedURLResponse, for request: CachingClientRequest) -> Entry? {
    if let own = cached as? LMDBCachedURLResponse {
      // A response that is stored for an equivalent URL has another key, under which the caching client looks next.
      return own.status > 0 && own.key == request.key ? Entry(cached: own, isForeign: false) : nil
    }
    guard let response = cached.response as? HTTPURLResponse, let key = request.key else { return nil }
    let now = tiers.now
    let head = response.head
    let overrides = request.overrides.resolved(forContentType: head.fields["Content-Type"])
    let stored = ManualStorage(
      request: request.head, response: overrides.applied(to: head), responseTime: now,
      options: tiers.options.caching)
    let foreign = LMDBCachedURLResponse(
      CacheableResponse(
        status: response.statusCode, fields: stored.fields, body: cached.data,
        freshness: overrides.applied(to: stored.freshness, status: response.statusCode),
        vary: VaryKey(fields: [])),
      for: key, storedAt: now, copying: cached)
    return Entry(cached: foreign, isForeign: true)
  }

  // MARK: Stores

  func store(_ proposal: ProposedResponse, for request: CachingClientRequest) {
    guard let key = request.key else { return }
    let limit = tiers.maximumSessionBodyByteCount
    guard proposal.body.count <= limit else { return proposal.refuse(.bodyTooLarge(limit: limit)) }
    let changed = proposal.attachment as? CachedURLResponse
    let response = LMDBCachedURLResponse(
      proposal.response, for: key,
      attachment: changed.flatMap { ResponseAttachment($0, for: key)?.bytes }, storedAt: tiers.now,
      userInfo: changed?.userInfo, storagePolicy: proposal.isMemoryOnly ? .allowedInMemoryOnly : .allowed)
    if let detour, request.isForURL {
      let operation = SubclassDetour.Operation.insert(
        askedAt: proposal.removalToken, isRevoked: { proposal.isRevoked })
      return detour.store(response, operation, for: request)
    }
    let reachesDisk = tiers.allowsDiskStorage(response, isMemoryOnly: proposal.isMemoryOnly) { request.storageHead }
    if !reachesDisk { activity.noteRefusal(Rule.memoryOnly.id, of: key) }
    let outcome = tiers.insert(
      response, reachesDisk: reachesDisk, askedAt: proposal.removalToken, waitsForSpace: false,
      unless: { proposal.isRevoked })
    proposal.report?.decide(outcome)
  }

  func update(
    _ entry: Entry, fields: HeaderFields, freshness: FreshnessInfo, askedAt token: RemovalToken,
    for request: CachingClientRequest
  ) {
    guard let detour, request.isForURL else {
      return tiers.update(entry.cached, fields: fields, freshness: freshness, askedAt: token)
    }
    let operation: SubclassDetour.Operation =
      entry.isForeign ? .insert(askedAt: nil, isRevoked: { false }) : .update(entry.cached, askedAt: token)
    detour.store(entry.cached.updated(fields: fields, freshness: freshness, at: tiers.now), operation, for: request)
  }

  // MARK: Removals

  func remove(_ entry: Entry, for request: CachingClientRequest) async {
    let key = entry.cached.key
    guard entry.isForeign || tiers.holds(key) else { return }
    await onBlockingThread {
      if tiers.holds(key) { tiers.remove([key]) }
      if entry.isForeign { detour?.remove([request.head.url], for: request) }
    }
  }

  func invalidate(
    _ invalidation: StorageInvalidation, for request: CachingClientRequest, movingPast token: inout RemovalToken
  ) async {
    // A removal waits for a disk sync: skip keys under which nothing is stored, unless a fetch may be storing just now,
    // in this cache or another one.
    let mayBeFetched = invalidation.revokesPermits || tiers.mayHaveOtherUsers
    let keys = invalidation.resources.isEmpty ? invalidation.keys : []
    let resources = invalidation.resources.filter { mayBeFetched || $0.withSpaces.contains { tiers.holds($0) } }
    let scopes = invalidation.scopes
    // A subclass may store responses elsewhere.
    let urls = detour == nil ? [] : invalidation.urls
    // Other machines may hold what this one does not.
    let posted =
      tiers.fleet == nil || invalidation.isLocal
      ? [] : (invalidation.urls.compactMap { RemovalScope.target(of: $0) } + scopes).map { Removal($0) }
    guard !keys.isEmpty || !resources.isEmpty || !scopes.isEmpty || !urls.isEmpty || !posted.isEmpty else { return }
    token = await onBlockingThread { [token] in
      var token = token
      tiers.postingToFleet(posted) {
        tiers.remove(keys, movingPast: &token, of: request.key)
        tiers.remove(resources: resources, movingPast: &token, of: request.key)
        detour?.remove(urls, for: request)
        if !scopes.isEmpty { tiers.remove(scopes, movingPast: &token, of: request.key) }
      }
      return token
    }
  }

  var removalToken: RemovalToken { tiers.connection.removalToken }

  func keySpaceNumber(at token: RemovalToken) -> UInt64 { tiers.connection.keySpaceNumber(at: token) }

  func hasRemovals(since token: RemovalToken) -> Bool { tiers.connection.hasRemovals(since: token) }

  func effectOfRemovals(on url: URL?, partition: String, since token: inout RemovalToken) -> RemovalEffect {
    tiers.connection.possibleEffectOfRemovals(on: url, partition: partition, since: &token)
  }

  var usesRequestKeys: Bool { true }

  func credentialDigest(_ value: String) -> String { tiers.credentialDigest(value) }

  func contentDigest(_ bytes: UnsafeRawBufferPointer) -> String { tiers.contentDigest(bytes) }
}

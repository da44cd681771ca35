import CacheModel
import CachingClient
import CachingStorage
import Foundation
import FoundationNetworking
import HTTPCaching
import Synchronization

/// The part of an `LMDBURLCache` between its caching client and the tiers: takes the response that a session's own
/// lookup has found, and calls the methods of a subclass.
///
/// `@unchecked Sendable`: the detour is set once, before the cache is used.
final class FoundationInterceptor: StorageInterceptor, @unchecked Sendable {
  /// Calls the methods of a subclass; nil for an `LMDBURLCache` itself.
  ///
  /// Only for the keys of URLs: `URLCache` has no methods for queries and for equivalent URLs.
  private(set) var detour: SubclassDetour?

  /// Sets the cache. Call this once, in the initializer of the cache.
  func attach(to cache: LMDBURLCache) {
    if cache.isSubclass { detour = SubclassDetour(cache) }
  }

  var mayHoldResponses: Bool { detour != nil }

  func lookup(_ request: CachingClientRequest, at key: RequestKey, in tiers: TieredStorage) -> InterceptedLookup {
    // The session's lookup does not know in which form its transport delivers content.
    if let prefetched = (request.context as? RequestContext)?.takePrefetched(),
      let entry = Self.entry(prefetched, for: request, at: key, in: tiers), tiers.matches(entry.vary, request.head)
    {
      return .decided(entry)
    }
    // Overrides see every lookup, and return whole bodies.
    guard let detour, key.isForURL else { return .pass }
    return .decided(detour.lookup(request).flatMap { Self.entry($0, for: request, at: key, in: tiers) })
  }

  /// Returns the entry of a response that one of the cache's public methods returned.
  ///
  /// A response that an override created is evaluated by its fields, as if it were received now.
  private static func entry(
    _ cached: CachedURLResponse, for request: CachingClientRequest, at key: RequestKey, in tiers: TieredStorage
  ) -> CacheEntry? {
    if let own = (cached as? LMDBCachedURLResponse)?.entry {
      // A response that is stored for an equivalent URL has another key, under which the caching client looks next.
      return own.status > 0 && own.key == key ? own : nil
    }
    guard let response = cached.response as? HTTPURLResponse else { return nil }
    let now = tiers.now
    let head = response.head
    let overrides = request.overrides.resolved(forContentType: head.fields["Content-Type"])
    let stored = ManualStorage(
      request: request.head, response: overrides.applied(to: head), responseTime: now,
      options: tiers.options.caching)
    return CacheEntry(
      CacheableResponse(
        status: response.statusCode, fields: stored.fields, body: cached.data,
        freshness: overrides.applied(to: stored.freshness, status: response.statusCode),
        vary: VaryKey(fields: [])),
      for: key, storedAt: now, prepared: PreparedURLResponse(copying: cached), isForeign: true)
  }

  func attachment(
    of proposal: ProposedResponse, for key: RequestKey
  ) -> (bytes: [UInt8]?, prepared: (any PreparedEntry)?) {
    let changed = proposal.attachment as? CachedURLResponse
    guard changed != nil || proposal.isMemoryOnly else { return (nil, nil) }
    return (
      changed.flatMap { ResponseAttachment($0, for: key)?.bytes },
      PreparedURLResponse(
        userInfo: changed?.userInfo, storagePolicy: proposal.isMemoryOnly ? .allowedInMemoryOnly : .allowed)
    )
  }

  func store(_ entry: CacheEntry, _ proposal: ProposedResponse, for request: CachingClientRequest) -> Bool {
    guard let detour, entry.key.isForURL else { return false }
    detour.store(
      entry, .insert(askedAt: proposal.removalToken, isRevoked: { proposal.isRevoked }), for: request)
    return true
  }

  func update(
    _ entry: CacheEntry, to updated: @autoclosure () -> CacheEntry, askedAt token: RemovalToken,
    for request: CachingClientRequest
  ) -> Bool {
    // An override can return a response of another cache, whose body is in that cache's store.
    guard let detour, entry.key.isForURL, entry.storedBody == nil else { return false }
    let operation: SubclassDetour.Operation =
      entry.isForeign ? .insert(askedAt: nil, isRevoked: { false }) : .update(entry, askedAt: token)
    detour.store(updated(), operation, for: request)
    return true
  }

  func remove(_ urls: [URL], for request: CachingClientRequest) {
    detour?.remove(urls, for: request)
  }
}

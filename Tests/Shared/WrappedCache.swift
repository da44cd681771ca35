import CacheModel
import CachingClient
import CachingStorage
import FoundationEssentials
import HTTPCaching

/// A storage over a cache, with the methods that a storage must have.
protocol WrappedCache: ResponseStorage where Entry == CacheEntry {
  var base: ResponseCache { get }
}

extension WrappedCache {
  func lookup(_ request: CachingClientRequest, at key: RequestKey) -> CacheEntry? { base.lookup(request, at: key) }
  func body(of entry: CacheEntry) -> Data { base.body(of: entry) }
  func store(_ proposal: ProposedResponse, for request: CachingClientRequest) { base.store(proposal, for: request) }
  func update(
    _ entry: CacheEntry, fields: HeaderFields, freshness: FreshnessInfo, askedAt token: RemovalToken,
    for request: CachingClientRequest
  ) { base.update(entry, fields: fields, freshness: freshness, askedAt: token, for: request) }
  func remove(_ entry: CacheEntry, for request: CachingClientRequest) async { await base.remove(entry, for: request) }
  func invalidate(
    _ invalidation: StorageInvalidation, for request: CachingClientRequest, movingPast token: inout RemovalToken
  ) async { await base.invalidate(invalidation, for: request, movingPast: &token) }
}

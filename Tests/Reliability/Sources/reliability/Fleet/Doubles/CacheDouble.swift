import CacheActivity
import Foundation
import FoundationNetworking
import LMDBURLCache
import Synchronization

extension FleetRule {
  /// Opens the cache of a machine, which breaks the rule if it is one of the cache.
  static func makeCache(
    directory: URL, options: LMDBURLCache.Options, breaking rule: FleetRule?
  ) throws -> LMDBURLCache {
    let (memory, disk) = (1 << 20, 16 << 20)
    switch rule {
    case .leaseBeforeLookup?:
      let cache = try CacheThatChecksLate(
        directory: directory, memoryCapacity: memory, diskCapacity: disk, options: options)
      cache.path.withLock { $0 = directory.path }
      return cache
    case .fetchRevoked?:
      return try CacheThatStoresLate(
        directory: directory, memoryCapacity: memory, diskCapacity: disk, options: options)
    default:
      return try LMDBURLCache(directory: directory, memoryCapacity: memory, diskCapacity: disk, options: options)
    }
  }
}

/// A cache that checks the lease after each lookup, which ``TierDouble`` keeps from checking it before.
private final class CacheThatChecksLate: LMDBURLCache, @unchecked Sendable {
  let path = Mutex("")

  override func cachedResponse(for request: URLRequest) -> CachedURLResponse? {
    guard let found = super.cachedResponse(for: request) else { return nil }
    // In between purges may be applied, and the lease renewed.
    if !hasLease { usleep(UInt32.random(in: 0..<100_000)) }
    return hasLease ? found : nil
  }

  private var hasLease: Bool { FleetMachineState.read(directory: path.withLock { $0 })?.hasLease ?? false }
}

/// A cache that stores fetched responses a little later, as responses of its own, so that no purge in between counts.
private final class CacheThatStoresLate: LMDBURLCache, @unchecked Sendable {
  private struct Kept: @unchecked Sendable {
    // Sendable because a cached response does not change.
    let response: CachedURLResponse
    let request: URLRequest
  }

  override func storeCachedResponse(_ cachedResponse: CachedURLResponse, for request: URLRequest) {
    let kept = Kept(
      response: CachedURLResponse(response: cachedResponse.response, data: cachedResponse.data), request: request)
    DispatchQueue.global().asyncAfter(deadline: .now() + .milliseconds(100)) {
      super.storeCachedResponse(kept.response, for: kept.request)
    }
  }
}

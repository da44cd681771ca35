import CachingClient
import Foundation
import FoundationNetworking
import Synchronization

/// The caching client and the session context of a cache.
///
/// Both are created on first use. The client refers back to the cache, which must be initialized by then.
final class LazyCachingClient: Sendable {
  private let reference = AtomicOnceReference<CachingClient<CacheStorage>>()

  private let contextReference = AtomicOnceReference<SessionContext>()

  /// Returns the context of loads without a session.
  func context(of cache: LMDBURLCache) -> SessionContext {
    if let context = contextReference.load() { return context }
    // The context needs no cache here: it only provides the configuration and the transports.
    let options = cache.core.options
    return contextReference.storeIfNil(
      SessionContext(configuration: options.loadConfiguration, curl: options.curlConfiguration))
  }

  var cachingClientInUse: CachingClient<CacheStorage>? { reference.load() }

  func client(_ make: () -> CachingClient<CacheStorage>) -> CachingClient<CacheStorage> {
    if let client = reference.load() { return client }
    return reference.storeIfNil(make())
  }
}

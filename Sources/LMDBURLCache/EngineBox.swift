import CachingClient
import Foundation
import Synchronization

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// What a cache needs once it is used over HTTP, made on first use: it refers back to the cache, which must be whole by then.
final class EngineBox: Sendable {
  private let reference = OnceReference<CachingClient<CacheStorage>>()

  private let contextReference = OnceReference<SessionContext>()

  /// The context of loads without a session.
  func context(of cache: LMDBURLCache) -> SessionContext {
    if let context = contextReference.load() { return context }
    // Without the cache in it: the context is only asked for the configuration and the session inside.
    let options = cache.core.options
    return contextReference.storeIfNil(
      SessionContext(configuration: options.loadConfiguration, curl: options.curlConfiguration))
  }

  var engineInUse: CachingClient<CacheStorage>? { reference.load() }

  func engine(_ make: () -> CachingClient<CacheStorage>) -> CachingClient<CacheStorage> {
    if let engine = reference.load() { return engine }
    return reference.storeIfNil(make())
  }
}

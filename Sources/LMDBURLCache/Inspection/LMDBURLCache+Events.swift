public import CacheActivity
import CachingStorage

extension LMDBURLCache {
  /// The number of events that a stream of ``events`` holds for a slow reader.
  public static let eventBufferCount = ResponseCache.eventBufferCount

  /// A new stream of what happens in this cache from now on.
  ///
  ///     for await event in cache.events {
  ///       if case .storeFailed(let reason) = event { alert(reason) }
  ///     }
  ///
  /// Includes requests, stores, refusals, evictions, purges and failures of this process. The command
  /// `urlcache log` shows the requests of other processes. The stream holds up to ``eventBufferCount`` events
  /// for its reader. Then the oldest are dropped and counted in ``droppedEventCount``. The stream ends when its reader
  /// is cancelled or releases it, and when the cache is released.
  ///
  /// - Complexity: Without a stream, one load per request. With one, a request costs a few allocations more.
  public var events: AsyncStream<CacheEvent> { storage.events }

  /// The number of events that were dropped because the readers of ``events`` were too slow.
  public var droppedEventCount: Int { storage.droppedEventCount }
}

import CacheActivity
import Synchronization

extension LMDBURLCache {
  /// The number of events that a stream of ``events`` holds for a slow reader.
  public static let eventBufferCount = 1024

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
  public var events: AsyncStream<CacheEvent> {
    let (stream, continuation) = AsyncStream.makeStream(
      of: CacheEvent.self, bufferingPolicy: .bufferingNewest(Self.eventBufferCount))
    core.eventStreams.begin(continuation, observing: core.activity.observers)
    return stream
  }

  /// The number of events that were dropped because the readers of ``events`` were too slow.
  public var droppedEventCount: Int { core.eventStreams.droppedCount }
}

/// The streams of a cache's events. They end when this object is released.
final class EventStreams: Sendable {
  private let continuations = Mutex<[Int: AsyncStream<CacheEvent>.Continuation]>([:])
  private let dropped = Atomic<Int>(0)

  var droppedCount: Int { dropped.load(ordering: .relaxed) }

  deinit {
    for continuation in continuations.withLock({ Array($0.values) }) { continuation.finish() }
  }

  func begin(_ continuation: AsyncStream<CacheEvent>.Continuation, observing observers: EventObservers) {
    let id = observers.add { [weak self] event in
      if case .dropped = continuation.yield(event) { self?.dropped.wrappingAdd(1, ordering: .relaxed) }
    }
    continuations.withLock { $0[id] = continuation }
    continuation.onTermination = { [weak self, weak observers] _ in
      observers?.remove(id)
      _ = self?.continuations.withLock { $0.removeValue(forKey: id) }
    }
  }
}

/// Passes the events of a store on to the observers of a cache, for as long as this object lives.
final class EventForwarding: Sendable {
  private let source: EventObservers
  private let id: Int

  init(from source: EventObservers, to target: EventObservers) {
    self.source = source
    id = source.add { [weak target] event in target?.emit(event) }
  }

  deinit {
    source.remove(id)
  }
}

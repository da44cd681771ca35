import CacheActivity
import Synchronization

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

import CacheModel
import Synchronization

/// Something that happened in a cache of this process.
public enum CacheEvent: Sendable, Hashable {
  /// A request was sent to the origin.
  case fetchBegan(method: String, url: String)
  /// A request ended, with the rule that decided and its duration.
  case answered(RequestEvent)
  /// A response was passed to the tiers.
  case stored(url: String, byteCount: Int)
  /// A response was not stored, because of the rule with this ID.
  case refused(url: String, rule: String)
  /// Entries were evicted for space, by this process.
  case evicted(count: Int, reason: RemovalReason)
  /// A removal by this process is in force. The scope includes removals by the rules of HTTP.
  case purged(scope: RemovalScope, isSoft: Bool)
  /// The store failed: lookups on disk miss until it is reopened.
  case storeFailed(reason: String)
  /// The store was opened again after it had failed.
  case reopened
}

/// The observers of one cache's or one store's events in this process.
///
/// Without an observer, an event costs one load.
package final class EventObservers: Sendable {
  /// Receives events on the thread where they happen. It must be fast and must not use the cache.
  package typealias Observer = @Sendable (CacheEvent) -> Void

  private struct State {
    var observers: [Int: Observer] = [:]
    var lastID = 0
  }

  private let state = Mutex(State())
  private let count = Atomic<Int>(0)

  /// Whether there is an observer.
  @inline(__always)
  package var isObserved: Bool { count.load(ordering: .relaxed) != 0 }

  /// Adds an observer and returns its ID.
  package func add(_ observer: @escaping Observer) -> Int {
    count.wrappingAdd(1, ordering: .relaxed)
    return state.withLock { state in
      state.lastID += 1
      state.observers[state.lastID] = observer
      return state.lastID
    }
  }

  /// Removes an observer. A call that has begun may still be running.
  package func remove(_ id: Int) {
    let removed = state.withLock { $0.observers.removeValue(forKey: id) }
    if removed != nil { count.wrappingSubtract(1, ordering: .relaxed) }
  }

  /// Passes an event to the observers, if there are any.
  package func emit(_ event: @autoclosure () -> CacheEvent) {
    guard isObserved else { return }
    let observers = state.withLock { Array($0.observers.values) }
    let event = event()
    for observer in observers { observer(event) }
  }
}

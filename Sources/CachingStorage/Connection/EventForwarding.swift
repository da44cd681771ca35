import CacheActivity

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

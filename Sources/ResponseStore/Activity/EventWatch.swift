import Glibc
import Synchronization

/// Watches the requests of all processes that use a directory.
///
/// Requests are recorded from its creation until some seconds after its end, also if the process is killed. Use it from
/// one thread at a time, and call ``next()`` at least every second.
///
/// `@unchecked Sendable`: `state` is a lock.
package final class EventWatch: @unchecked Sendable {
  /// How long a recording outlives the last ``next()``.
  static let duration: UInt64 = 3_000_000_000

  private struct State {
    var ring: EventRing
    var position: UInt64
    /// When the event at the position was first found unfinished.
    var waitingSince: UInt64?
    var lostCount = 0
    var until: UInt64 = 0
  }

  private let file: ActivityFile
  private let path: String
  private let capacityByteCount: Int
  private let state: Mutex<State>

  /// Begins to watch; nil if the file of events could not be created.
  init?(file: ActivityFile, path: String, capacityByteCount: Int) {
    self.file = file
    self.path = path
    self.capacityByteCount = capacityByteCount
    guard
      let ring = EventRing.open(path: path) ?? EventRing.create(path: path, capacityByteCount: capacityByteCount)
    else { return nil }
    state = Mutex(State(ring: ring, position: ring.head))
    state.withLock { renew(&$0) }
  }

  deinit {
    // Unless another process has renewed the watch since.
    let until = state.withLock { $0.until }
    _ = file.header(ActivityLayout.HeaderWord.watchedUntil).pointee
      .compareExchange(expected: until, desired: 0, ordering: .relaxed)
  }

  /// The number of events that were overwritten before they could be read.
  package var lostCount: Int { state.withLock { $0.lostCount } }

  /// The number of requests that all processes did not record, because there were too many.
  package var skippedCount: Int {
    Int(clamping: file.header(ActivityLayout.HeaderWord.skippedEvents).pointee.load(ordering: .relaxed))
  }

  private func renew(_ state: inout State) {
    let id = file.header(ActivityLayout.HeaderWord.eventFile)
    if let present = EventRing.open(path: path), present.id != state.ring.id {
      // Another process that watches has replaced the file.
      state.ring = present
      state.position = present.head
    }
    id.pointee.store(state.ring.id, ordering: .releasing)
    state.until = ActivityReference.nanoseconds + Self.duration
    file.header(ActivityLayout.HeaderWord.watchedUntil).pointee.store(state.until, ordering: .releasing)
  }

  /// Returns the events since the last call, oldest first, and extends the watch.
  package func next() -> [RequestEvent] {
    state.withLock { state in
      renew(&state)
      return read(&state)
    }
  }

  private func read(_ state: inout State) -> [RequestEvent] {
    var events: [RequestEvent] = []
    let head = state.ring.head
    let oldest = head - min(head, UInt64(state.ring.slotCount))
    if state.position < oldest {
      state.lostCount += Int(clamping: oldest - state.position)
      state.position = oldest
    }
    while state.position < head {
      switch state.ring.read(state.position) {
      case .event(let event): events.append(event)
      case .lost: state.lostCount += 1
      case .unfinished:
        // A process that was killed never finishes it.
        let since = state.waitingSince ?? ActivityReference.nanoseconds
        state.waitingSince = since
        if ActivityReference.nanoseconds - since < 500_000_000 { return events }
        state.lostCount += 1
      }
      state.waitingSince = nil
      state.position += 1
    }
    return events
  }

  /// Returns the events that the file of events has from the last time that a process watched, oldest first.
  static func recent(path: String) -> [RequestEvent] {
    guard let ring = EventRing.open(path: path) else { return [] }
    let head = ring.head
    return (head - min(head, UInt64(ring.slotCount))..<head).compactMap { number in
      if case .event(let event) = ring.read(number) { event } else { nil }
    }
  }
}

extension ResponseStore {
  /// Begins to watch the requests of all processes; nil if there are no counters or no space for the events.
  package func watchEvents() -> EventWatch? {
    guard let file = activity.file else { return nil }
    return EventWatch(
      file: file, path: context.storeDirectory.path(of: EventRing.fileName), capacityByteCount: capacityByteCount)
  }

  /// The requests that were recorded when a process last watched, oldest first.
  package var recentEvents: [RequestEvent] {
    EventWatch.recent(path: context.storeDirectory.path(of: EventRing.fileName))
  }
}

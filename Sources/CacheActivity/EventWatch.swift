import Glibc
import Synchronization

/// Watches the requests of all processes that use a directory.
///
/// Each ``next()`` grants up to ``maximumGrant`` events. If more requests end until the following call, the others are
/// counted only. After the last call, or if the process is killed, the granted events are still recorded. Use it from
/// one thread at a time.
///
/// `@unchecked Sendable`: `state` is a lock.
package final class EventWatch: @unchecked Sendable {
  /// The name of the file of events in the directory.
  package static let fileName = "LMDBURLCache.events"

  /// The maximum number of events that a call grants.
  ///
  /// An event takes about 6 µs of its thread's time. 400 of them every 100 ms are 2.4% of it.
  static let maximumGrant = 400

  /// No watch counts more requests or events than this, so a larger difference is corruption.
  private static let maximumCount = 1 << 40

  private struct State {
    var ring: EventRing
    var position: UInt64
    /// When the event at the position was first found unfinished.
    var waitingSince: UInt64?
    var lostCount = 0
    /// The count of events in the file at the last look.
    var head: UInt64
    /// The number of events since the watch began.
    var eventCount = 0
    /// The requests of all processes at the last call.
    var requestCount: Int
    var skippedCount = 0
  }

  private let file: ActivityFile
  private let path: String
  private let capacityByteCount: Int
  /// The requests of all processes before this watch.
  private let earlierRequestCount: Int
  private let state: Mutex<State>

  /// Begins to watch; nil if the file of events could not be created.
  package init?(file: ActivityFile, path: String, capacityByteCount: Int) {
    self.file = file
    self.path = path
    self.capacityByteCount = capacityByteCount
    guard
      let ring = EventRing.open(path: path) ?? EventRing.create(path: path, capacityByteCount: capacityByteCount)
    else { return nil }
    let head = ring.head
    earlierRequestCount = file.requestCount
    state = Mutex(State(ring: ring, position: head, head: head, requestCount: earlierRequestCount))
    state.withLock { renew(&$0) }
  }

  /// The number of events that were overwritten before they could be read.
  package var lostCount: Int { state.withLock { $0.lostCount } }

  /// The number of requests that all processes did not record, because there were too many.
  ///
  /// Computed from the counters, so it is exact only some calls of ``next()`` later.
  package var skippedCount: Int { state.withLock { $0.skippedCount } }

  private func renew(_ state: inout State) {
    if let present = EventRing.open(path: path), present.id != state.ring.id {
      // Another process that watches has replaced the file.
      state.lostCount += Int(state.head - state.position)
      state.ring = present
      state.head = present.head
      state.position = state.head
    }
    file.header(ActivityLayout.HeaderWord.eventFile).pointee.store(state.ring.id, ordering: .releasing)
    file.header(ActivityLayout.HeaderWord.grantedEvents).pointee
      .store(UInt64(min(Self.maximumGrant, state.ring.slotCount / 2)), ordering: .releasing)
  }

  /// Returns the events since the last call, oldest first, and grants more.
  package func next() -> [RequestEvent] {
    state.withLock { state in
      countEvents(&state)
      let events = read(&state)
      renew(&state)
      return events
    }
  }

  private func countEvents(_ state: inout State) {
    let head = state.ring.head
    if head >= state.head, head - state.head <= Self.maximumCount {
      state.eventCount += Int(head - state.head)
    } else {
      // The file is corrupt. Continue with the events from now on.
      state.position = head
    }
    state.head = head
    // A request is counted before it is recorded, so one that was just counted may not be recorded yet. Those that were
    // counted at the last call are.
    let requestCount = state.requestCount &- earlierRequestCount
    if (0...Self.maximumCount).contains(requestCount) {
      state.skippedCount = max(state.skippedCount, requestCount - state.eventCount)
    }
    state.requestCount = file.requestCount
  }

  private func read(_ state: inout State) -> [RequestEvent] {
    var events: [RequestEvent] = []
    let head = state.head
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
  package static func recent(path: String) -> [RequestEvent] {
    guard let ring = EventRing.open(path: path) else { return [] }
    let head = ring.head
    return (head - min(head, UInt64(ring.slotCount))..<head).compactMap { number in
      if case .event(let event) = ring.read(number) { event } else { nil }
    }
  }
}

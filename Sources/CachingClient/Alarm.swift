import CacheModel
import Dispatch
import Synchronization

/// An action at a time, unless the alarm is cancelled or released before.
///
/// Use it for a time limit that is seldom reached. The Swift runtime keeps a cancelled `Task.sleep` in memory until its
/// time comes, 700 bytes each.
///
/// `@unchecked Sendable`: all functions of a dispatch source may be called by any thread.
package final class Alarm: @unchecked Sendable {
  /// One queue, because each cancelled source has some work to do, which must not take a thread of its own.
  private static let queue = DispatchQueue(label: "LMDBURLCache.alarms")
  private let source: any DispatchSourceTimer
  private let hasActed = Atomic(false)

  /// Sets an alarm.
  ///
  /// - Parameter action: Returns when to act again; nil for never. Called without locks held. It must not block:
  ///   all alarms share one queue.
  package init(at time: ContinuousClock.Instant, _ action: @escaping @Sendable () -> ContinuousClock.Instant?) {
    source = DispatchSource.makeTimerSource(queue: Self.queue)
    source.setEventHandler { [weak self] in
      guard let self else { return }
      hasActed.store(true, ordering: .relaxed)
      if let next = action() { schedule(at: next) }
    }
    schedule(at: time)
    source.resume()
  }

  deinit { source.cancel() }

  package func cancel() { source.cancel() }

  /// Whether its time has come before it was cancelled.
  package var hasGoneOff: Bool { hasActed.load(ordering: .relaxed) }

  private func schedule(at time: ContinuousClock.Instant) {
    let (seconds, attoseconds) = min(max(time - .now, .zero), .longest).components
    source.schedule(deadline: .now() + .nanoseconds(Int(seconds * 1_000_000_000 + attoseconds / 1_000_000_000)))
  }
}

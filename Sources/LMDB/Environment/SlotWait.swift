internal import Glibc
internal import Synchronization

/// The wait of threads for a reader slot.
final class SlotWait: Sendable {
  /// The maximum wait of a thread, in nanoseconds: a second.
  ///
  /// Reads take microseconds. A long wait means many more threads than processors, or suspended processes with all
  /// slots.
  private static let maximumWait = 1000 * Clock.millisecond
  /// How long no thread waits after an unsuccessful wait, in nanoseconds: ten seconds.
  private static let pause = 10_000 * Clock.millisecond

  /// A time of ``Clock``, before which no thread waits because an earlier wait timed out.
  private let pausedUntil = Atomic<UInt64>(0)

  /// Repeats `search` until it finds a result; nil if the time runs out.
  func wait<R>(for search: () throws(LMDBError) -> R?) throws(LMDBError) -> R? {
    let start = Clock.now
    guard start >= pausedUntil.load(ordering: .relaxed) else { return nil }
    // A thread that has waited for longer searches less often, because many may wait.
    var pause: UInt32 = 20
    while true {
      if let found = try search() { return found }
      let now = Clock.now
      guard now < start + Self.maximumWait else {
        pausedUntil.store(now + Self.pause, ordering: .relaxed)
        return nil
      }
      usleep(pause)
      pause = min(2 * pause, 2000)
    }
  }
}

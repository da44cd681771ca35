import FoundationEssentials
import Synchronization

/// A clock that changes only when a test sets it.
///
/// The test targets refer to this file through symbolic links.
final class ManualClock: Sendable {
  private let time: Mutex<Date>

  init(_ start: Date = Date(timeIntervalSince1970: 1_800_000_000)) {
    time = Mutex(start)
  }

  var now: Date { time.withLock { $0 } }

  func advance(by seconds: Double) {
    time.withLock { $0 += seconds }
  }

  func set(_ date: Date) {
    time.withLock { $0 = date }
  }
}

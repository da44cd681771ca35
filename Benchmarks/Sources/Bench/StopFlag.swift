import Foundation
import Synchronization

/// A flag that asks a thread to stop.
final class StopFlag: Sendable {
  private let flag = Atomic<Bool>(false)
  var isSet: Bool { flag.load(ordering: .relaxed) }
  func set() { flag.store(true, ordering: .relaxed) }
}

/// The maximum of the values that several threads record.
final class LockedMaximum: Sendable {
  private let largest = Mutex(0.0)
  var value: Double { largest.withLock { $0 } }
  func note(_ value: Double) { largest.withLock { $0 = max($0, value) } }
}

/// A clock that advances one second for each entry.
final class EntryClock: Sendable {
  private let ticks = Atomic<Int>(0)
  static let start = Date(timeIntervalSince1970: 1_700_000_000)

  /// Advances the clock and returns the time.
  func next() -> Date { Self.start + Double(ticks.wrappingAdd(1, ordering: .relaxed).newValue) }
}

/// Counts from 1.
final class StepCounter: Sendable {
  private let count = Atomic<Int>(0)
  func next() -> Int { count.wrappingAdd(1, ordering: .relaxed).newValue }
}

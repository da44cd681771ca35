import CacheModel

extension MonotonicTime {
  /// Later than any other time.
  static let never = MonotonicTime(nanoseconds: .max)

  /// Returns the time after a duration; ``never`` if it cannot be represented.
  func advanced(by duration: Duration) -> MonotonicTime {
    let (sum, overflow) = nanoseconds.addingReportingOverflow(duration.clampedNanoseconds)
    return overflow ? .never : MonotonicTime(nanoseconds: sum)
  }

  /// Returns the milliseconds from `now`, rounded up, for `epoll_wait`; -1 for ``never``.
  func milliseconds(after now: MonotonicTime) -> CInt {
    if self == .never { return -1 }
    guard nanoseconds > now.nanoseconds else { return 0 }
    return CInt(clamping: (nanoseconds - now.nanoseconds + 999_999) / 1_000_000)
  }
}

extension Duration {
  fileprivate var clampedNanoseconds: Int64 {
    // Beyond 64 bits of seconds, the components do not exist.
    if self >= .seconds(Int64.max / 1_000_000_000) { return .max }
    if self <= .seconds(Int64.min / 1_000_000_000) { return .min }
    let (seconds, attoseconds) = components
    return seconds * 1_000_000_000 + attoseconds / 1_000_000_000
  }

  /// The whole milliseconds, at least 1 and at most as many as libcurl accepts.
  var positiveMilliseconds: Int { min(max(1, Int(clamping: clampedNanoseconds / 1_000_000)), Int(CInt.max)) }

  /// The whole seconds, rounded up, at least 1 and at most as many as libcurl accepts.
  var positiveSeconds: Int {
    // Beyond 64 bits of seconds, the components do not exist.
    guard self < .seconds(Int(CInt.max)) else { return Int(CInt.max) }
    return self > .zero ? Int(components.seconds) + (components.attoseconds > 0 ? 1 : 0) : 1
  }
}

/// The I/O thread's time, updated once per round of its loop. Only that thread uses it.
final class LoopClock {
  private let source: () -> MonotonicTime
  private(set) var now: MonotonicTime

  /// - Parameter source: Returns the time; tests can replace it.
  init(source: @escaping () -> MonotonicTime = { .now }) {
    self.source = source
    now = source()
  }

  func update() {
    now = source()
  }
}

internal import Glibc

/// The time of `CLOCK_MONOTONIC` in nanoseconds.
enum Clock {
  /// A millisecond in nanoseconds.
  static let millisecond: UInt64 = 1_000_000

  static var now: UInt64 {
    var time = timespec()
    clock_gettime(CLOCK_MONOTONIC, &time)
    return UInt64(time.tv_sec) * 1_000_000_000 + UInt64(time.tv_nsec)
  }
}

import Glibc

/// A reading of `CLOCK_MONOTONIC`.
package struct MonotonicTime: Comparable {
  package var nanoseconds: Int64

  package init(nanoseconds: Int64) { self.nanoseconds = nanoseconds }

  package static var now: MonotonicTime {
    var time = timespec()
    clock_gettime(CLOCK_MONOTONIC, &time)
    return MonotonicTime(nanoseconds: Int64(time.tv_sec) * 1_000_000_000 + Int64(time.tv_nsec))
  }

  package static func + (time: MonotonicTime, duration: Duration) -> MonotonicTime {
    // Limited to a century, so that sums do not overflow.
    let (seconds, attoseconds) = min(max(duration, .zero), .longest).components
    return MonotonicTime(nanoseconds: time.nanoseconds + seconds * 1_000_000_000 + attoseconds / 1_000_000_000)
  }

  /// The time until `later`; zero if it is earlier.
  package func duration(to later: MonotonicTime) -> Duration {
    .nanoseconds(max(0, later.nanoseconds - nanoseconds))
  }

  package static func < (left: MonotonicTime, right: MonotonicTime) -> Bool {
    left.nanoseconds < right.nanoseconds
  }
}

extension Duration {
  /// A century: the limit of durations that programs set. Sums and the system's calls overflow with much longer ones.
  package static let longest = Duration.seconds(3_155_760_000)
}

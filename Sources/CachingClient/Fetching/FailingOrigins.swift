import CacheModel
import HTTPCaching
import Synchronization

/// The requests for which the origin has failed, and when it is asked again.
///
/// The times are those of a clock that is never set.
final class FailingOrigins: Sendable {
  /// The requests that a failure concerns.
  enum Key: Hashable, Sendable {
    /// All requests for a URL.
    case url(RequestKey)
    /// Those that share a fetch: of one user, or with one content.
    case requests(CoalescingKey)
  }

  private struct HoldOff {
    var failure: StaleOnError.Failure
    /// The time from a failure until the origin is asked again.
    var duration: Duration
    /// When the next request asks the origin.
    var end: MonotonicTime
    /// Whether a request asks the origin after ``end``. If it ends without a result, another one asks after
    /// ``duration``.
    var isProbed = false
    /// Whether the request that failed asked for a response that a soft purge had made stale.
    var isAfterPurge = false
  }

  /// The maximum number of keys. Beyond it, one of them is forgotten, and the origin is asked at once.
  private static let maximumCount = 1_024

  private let holdOffs = Mutex<[Key: HoldOff]>([:])
  /// The number of keys, so that requests take no lock while no origin fails.
  private let count = Atomic(0)

  /// Whether no origin has failed.
  var isEmpty: Bool { count.load(ordering: .relaxed) == 0 }

  /// Returns the failure because of which a request does not ask the origin now; nil if it asks.
  ///
  /// The first request after the end of the time asks. Others are held off for as long again, or until it has failed or
  /// succeeded.
  ///
  /// - Parameter isAfterPurge: Whether a soft purge has made the stored response stale. If that was after the failure,
  ///   the request asks.
  func failure(of key: Key, isAfterPurge: Bool = false, at now: MonotonicTime = .now) -> StaleOnError.Failure? {
    guard !isEmpty else { return nil }
    return holdOffs.withLock { holdOffs in
      guard var holdOff = holdOffs[key], holdOff.isAfterPurge || !isAfterPurge else { return nil }
      if now < holdOff.end { return holdOff.failure }
      holdOff.end = now + holdOff.duration
      holdOff.isProbed = true
      holdOffs[key] = holdOff
      return nil
    }
  }

  /// Records that the origin has failed.
  ///
  /// - Parameters:
  ///   - range: The shortest and the longest time for which it is not asked again.
  ///   - isAfterPurge: Whether a soft purge had made the stored response stale when the request was sent.
  func recordFailure(
    _ failure: StaleOnError.Failure, of key: Key, range: ClosedRange<Duration>, isAfterPurge: Bool = false,
    at now: MonotonicTime = .now
  ) {
    holdOffs.withLock { holdOffs in
      var duration = max(range.lowerBound, .zero)
      if let known = holdOffs[key] {
        // Failures of requests that were sent at the same time count once.
        duration = known.isProbed ? min(known.duration * 2, max(range.upperBound, .zero)) : known.duration
      } else if holdOffs.count >= Self.maximumCount {
        holdOffs = holdOffs.filter { $0.value.end + $0.value.duration > now }
        if holdOffs.count >= Self.maximumCount { holdOffs.remove(at: holdOffs.startIndex) }
      }
      holdOffs[key] = HoldOff(
        failure: failure, duration: duration, end: now + duration, isAfterPurge: isAfterPurge)
      count.store(holdOffs.count, ordering: .relaxed)
    }
  }

  /// Records that the origin has responded.
  func recordSuccess(of keys: @autoclosure () -> [Key]) {
    guard !isEmpty else { return }
    holdOffs.withLock { holdOffs in
      for key in keys() { holdOffs[key] = nil }
      count.store(holdOffs.count, ordering: .relaxed)
    }
  }
}

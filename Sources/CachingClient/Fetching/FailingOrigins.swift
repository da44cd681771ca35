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
    /// The key of the URL, by which removals find the failure.
    let url: RequestKey
    /// The permit of the fetch that failed. A removal since then revokes it.
    let permit: StorePermit
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
  /// - Parameter isSoftPurged: Whether a soft purge covers the stored response. If there was one since the failure, the
  ///   request asks.
  func failure(of key: Key, isSoftPurged: Bool = false, at now: MonotonicTime = .now) -> StaleOnError.Failure? {
    guard !isEmpty else { return nil }
    let present = holdOffs.withLock { holdOffs -> HoldOff? in
      guard var holdOff = holdOffs[key] else { return nil }
      if now < holdOff.end { return holdOff }
      holdOff.end = now + holdOff.duration
      holdOff.isProbed = true
      holdOffs[key] = holdOff
      return nil
    }
    // Without the lock, because this asks the storage. The response's own mark excludes most removals that may cover
    // its key but do not cover the response, such as those of a tag.
    guard let present, !(isSoftPurged && present.permit.isRevoked) else { return nil }
    return present.failure
  }

  /// Records that the origin has failed.
  ///
  /// - Parameters:
  ///   - url: The key of the URL.
  ///   - permit: The permit of the fetch that failed.
  ///   - range: The shortest and the longest time for which it is not asked again.
  func recordFailure(
    _ failure: StaleOnError.Failure, of key: Key, at url: RequestKey, _ permit: StorePermit,
    range: ClosedRange<Duration>, at now: MonotonicTime = .now
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
        failure: failure, duration: duration, end: now + duration, url: url, permit: permit)
      count.store(holdOffs.count, ordering: .relaxed)
    }
  }

  /// Revokes the permits of the fetches that failed, for matching URLs. Soft purges of a storage without removal tokens
  /// are known by this alone.
  func revokePermits(isSoft: Bool, where matches: (RequestKey) -> Bool) {
    guard !isEmpty else { return }
    for holdOff in holdOffs.withLock({ Array($0.values) }) where matches(holdOff.url) {
      holdOff.permit.revoke(isSoft: isSoft)
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

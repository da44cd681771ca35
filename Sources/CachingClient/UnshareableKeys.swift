import FoundationEssentials
import ResponseStore

/// The keys whose responses could not be shared a moment ago ("hit-for-miss"): a request that waits for such a response waits in
/// vain, and longer than it would without the cache.
///
/// Bounded in number and time: a key counts for a minute, unless a response that can be shared comes before.
struct UnshareableKeys {
  private static let seconds: Double = 60
  private static let maximumCount = 1_024

  /// By digests that nobody else can choose: keys may be long, and to mistake one for another costs sharing for a minute.
  private var ends: [UInt64: Date] = [:]

  func contains(_ key: RequestKey, at now: Date) -> Bool {
    guard !ends.isEmpty, let end = ends[key.spreadingDigest] else { return false }
    // A clock that was set back must not make a minute longer.
    return end > now && end.timeIntervalSince(now) <= Self.seconds
  }

  mutating func insert(_ key: RequestKey, at now: Date) {
    let key = key.spreadingDigest
    if ends.count >= Self.maximumCount, ends[key] == nil {
      ends = ends.filter { $0.value > now }
      // To forget one early costs a request one wait.
      if ends.count >= Self.maximumCount { ends.remove(at: ends.startIndex) }
    }
    ends[key] = now + Self.seconds
  }

  mutating func remove(_ key: RequestKey) {
    if !ends.isEmpty { ends[key.spreadingDigest] = nil }
  }
}

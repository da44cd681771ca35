import FoundationEssentials
import ResponseStore

/// The keys whose last response could not be shared ("hit-for-miss").
///
/// A request that waited for such a response would then have to fetch its own, later than without a cache. A key is
/// kept for a minute, or until a response to it can be shared. The number of keys is limited.
struct UnshareableKeys {
  private static let seconds: Double = 60
  private static let maximumCount = 1_024

  /// The end of each key's minute, by digest of the key, because keys can be long.
  ///
  /// The digest is seeded, so clients cannot force collisions. A collision disables coalescing for a minute.
  private var ends: [UInt64: Date] = [:]

  func contains(_ key: RequestKey, at now: Date) -> Bool {
    guard !ends.isEmpty, let end = ends[key.spreadingDigest] else { return false }
    // If the clock was set back, the minute must not become longer.
    return end > now && end.timeIntervalSince(now) <= Self.seconds
  }

  mutating func insert(_ key: RequestKey, at now: Date) {
    let key = key.spreadingDigest
    if ends.count >= Self.maximumCount, ends[key] == nil {
      ends = ends.filter { $0.value > now }
      // If a key is removed early, one request waits in vain.
      if ends.count >= Self.maximumCount { ends.remove(at: ends.startIndex) }
    }
    ends[key] = now + Self.seconds
  }

  mutating func remove(_ key: RequestKey) {
    if !ends.isEmpty { ends[key.spreadingDigest] = nil }
  }
}

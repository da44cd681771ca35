import FoundationEssentials

/// Values that are kept for a minute. Their number is limited.
///
/// Keys are digests, because cache keys can be long. The digests are seeded, so clients cannot force collisions. A
/// collision or an early removal only makes one request wait in vain, or fetch without sharing.
struct RecentValues<Value> {
  private static var seconds: Double { 60 }
  private static var maximumCount: Int { 1_024 }

  private var values: [Int: (value: Value, end: Date)] = [:]

  var isEmpty: Bool { values.isEmpty }

  /// Returns the value for a digest, if it was inserted within the last minute.
  func value(for digest: @autoclosure () -> Int, at now: Date) -> Value? {
    guard !values.isEmpty, let (value, end) = values[digest()] else { return nil }
    // If the clock was set back, the minute must not become longer.
    return end > now && end.timeIntervalSince(now) <= Self.seconds ? value : nil
  }

  mutating func insert(_ value: Value, for digest: Int, at now: Date) {
    if values.count >= Self.maximumCount, values[digest] == nil {
      values = values.filter { $0.value.end > now }
      if values.count >= Self.maximumCount { values.remove(at: values.startIndex) }
    }
    values[digest] = (value, now + Self.seconds)
  }

  mutating func remove(_ digest: @autoclosure () -> Int) {
    if !values.isEmpty { values[digest()] = nil }
  }
}

import Foundation

/// The source of a response.
enum DemoResponseKind: String, Codable, CaseIterable, Sendable {
  case miss
  case revalidated
  case hit
  /// From another reader's fetch.
  case coalesced
}

/// The durations and sizes of a number of requests, by kind.
struct Measurements: Codable, Sendable {
  /// The duration of each request in nanoseconds.
  var durations: [DemoResponseKind: [Int]] = [:]
  var byteCounts: [DemoResponseKind: Int] = [:]
  /// One sentence per failure.
  var failures: [String] = []

  mutating func add(_ kind: DemoResponseKind, _ duration: Duration, byteCount: Int) {
    durations[kind, default: []].append(Int(duration / .nanoseconds(1)))
    byteCounts[kind, default: 0] += byteCount
  }

  mutating func add(_ other: Measurements) {
    durations.merge(other.durations) { $0 + $1 }
    byteCounts.merge(other.byteCounts) { $0 + $1 }
    failures += other.failures
  }

  func count(_ kind: DemoResponseKind) -> Int { durations[kind]?.count ?? 0 }
  var requestCount: Int { durations.values.reduce(0) { $0 + $1.count } }
  var byteCount: Int { byteCounts.values.reduce(0, +) }

  /// Returns a percentile of the durations in nanoseconds (nearest rank); nil without requests.
  func percentile(_ percent: Int, _ kind: DemoResponseKind) -> Int? {
    guard let sorted = durations[kind]?.sorted(), !sorted.isEmpty else { return nil }
    return sorted[(sorted.count * percent + 99) / 100 - 1]
  }
}

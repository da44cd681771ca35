import Foundation

/// How a request was answered.
enum Kind: String, Codable, CaseIterable, Sendable {
  case fetched
  case revalidated
  case hit
  /// By way of another reader's fetch.
  case shared
}

/// What a number of requests took and brought, by kind.
struct Measurements: Codable, Sendable {
  /// Nanoseconds of each request.
  var durations: [Kind: [Int]] = [:]
  var byteCounts: [Kind: Int] = [:]
  /// What went wrong, a sentence each.
  var troubles: [String] = []

  mutating func add(_ kind: Kind, _ duration: Duration, byteCount: Int) {
    durations[kind, default: []].append(Int(duration / .nanoseconds(1)))
    byteCounts[kind, default: 0] += byteCount
  }

  mutating func add(_ other: Measurements) {
    durations.merge(other.durations) { $0 + $1 }
    byteCounts.merge(other.byteCounts) { $0 + $1 }
    troubles += other.troubles
  }

  func count(_ kind: Kind) -> Int { durations[kind]?.count ?? 0 }
  var requestCount: Int { durations.values.reduce(0) { $0 + $1.count } }
  var byteCount: Int { byteCounts.values.reduce(0, +) }

  /// The nanoseconds that a share of the requests stayed below or at (nearest rank); nil if there are none.
  func percentile(_ percent: Int, _ kind: Kind) -> Int? {
    guard let sorted = durations[kind]?.sorted(), !sorted.isEmpty else { return nil }
    return sorted[(sorted.count * percent + 99) / 100 - 1]
  }
}

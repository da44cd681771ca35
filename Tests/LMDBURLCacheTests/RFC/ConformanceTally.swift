import Synchronization

/// A value with a lock that closures can capture, unlike `Mutex`.
final class ConformanceLock<Value: Sendable>: Sendable {
  private let mutex: Mutex<Value>

  init(_ value: Value) { mutex = Mutex(value) }

  func withLock<R: Sendable>(_ body: (inout Value) -> R) -> R {
    mutex.withLock { value in
      var copy = value
      defer { value = copy }
      return body(&copy)
    }
  }
}

/// Counts the results of all tables and prints them by requirement level.
enum ConformanceTally {
  private struct Count {
    var met = 0
    var all = 0
  }

  private struct State {
    var counts: [ConformancePath: [ConformanceCase.Kind: Count]] = [:]
    var reported = 0
  }

  private static let state = Mutex(State())

  /// Records the result of a case. The last result prints the counts.
  static func record(_ test: ConformanceCase, over path: ConformancePath, isMet: Bool) {
    let summary = state.withLock { state -> [String]? in
      state.counts[path, default: [:]][test.kind, default: Count()].all += 1
      if isMet { state.counts[path, default: [:]][test.kind, default: Count()].met += 1 }
      state.reported += 1
      guard state.reported == ConformanceTables.runCount else { return nil }
      return ConformancePath.allCases.map { path in
        let numbers = ConformanceCase.Kind.allCases.map { kind in
          let count = state.counts[path]?[kind] ?? Count()
          return "\(kind.rawValue) \(count.met) of \(count.all)"
        }
        return "HTTP conformance over \(path.rawValue): " + numbers.joined(separator: ", ")
      }
    }
    for line in summary ?? [] { print(line) }
  }
}

/// A way to run a case.
enum ConformancePath: String, Sendable, CaseIterable {
  /// A `URLSession` with `caching(with:)`, with both tiers.
  case session = "URLSession"
  /// `data(for:)`, with the disk tier only.
  case data = "data(for:)"
  /// The decisions alone.
  case decision = "the decisions"
}

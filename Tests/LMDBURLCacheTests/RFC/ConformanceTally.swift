import Synchronization

/// A value under a lock that may be captured; `Mutex` itself may not.
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

/// Counts what all tables showed, and prints it in numbers of their own: required, recommended, optional.
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

  /// Notes the result of one case. When all are in, the numbers are printed.
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

/// How a case is driven.
enum ConformancePath: String, Sendable, CaseIterable {
  /// A `URLSession` with `caching(with:)`, memory and disk.
  case session = "URLSession"
  /// `data(for:)`, disk alone.
  case data = "data(for:)"
  /// The same, with requests over libcurl.
  case curl = "data(for:) over libcurl"
  /// The decisions alone.
  case decision = "the decisions"
}

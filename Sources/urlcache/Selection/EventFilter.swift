import CacheActivity
import CachingClient
import Foundation
import LMDBURLCache

/// The options of `log` and `top` that select requests.
struct EventFilter {
  private var host: String?
  private var statuses: ClosedRange<Int>?
  private var path: PathPattern?
  private var outcome: RequestOutcome?
  private var minimumNanoseconds = 0

  static let options = [
    Option(name: "host", placeholder: "HOST", help: "Only requests to this host."),
    PathPattern.option, StatusOption.option,
    Option(
      name: "outcome", placeholder: "OUTCOME",
      help: "Only this outcome: " + RequestOutcome.allCases.prefix(5).map(\.rawValue).joined(separator: ", ")
        + ",\n" + RequestOutcome.allCases.dropFirst(5).map(\.rawValue).joined(separator: ", ") + ".",
      values: RequestOutcome.allCases.map(\.rawValue)),
    Option(
      name: "slower-than", placeholder: "TIME", help: "Only slower requests; TIME is like 500us, 20ms or 1.5s."),
  ]

  init(_ arguments: Arguments) throws {
    host = try arguments.host()
    path = try PathPattern(arguments)
    statuses = try StatusOption.range(arguments)
    if let text = arguments.value("outcome") {
      guard let outcome = RequestOutcome(rawValue: text) else {
        throw UsageError("--outcome does not take '\(text)'; see --help")
      }
      self.outcome = outcome
    }
    if let text = arguments.value("slower-than") {
      let units = [("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)]
      guard let (unit, size) = units.first(where: { text.hasSuffix($0.0) }),
        let number = Double(text.dropLast(unit.count)), number >= 0, number < 1e6
      else { throw UsageError("--slower-than takes a time like 500us, 20ms or 1.5s, not '\(text)'") }
      minimumNanoseconds = Int(number * size)
    }
  }

  func matches(_ event: RequestEvent) -> Bool {
    event.nanoseconds >= minimumNanoseconds && (outcome.map { $0 == event.outcome } ?? true)
      && (statuses.map { $0.contains(event.status) } ?? true)
      && (path.map { $0.matches(url: event.url) } ?? true)
      && (host.map { $0 == URL.canonicalHostName(in: event.url) } ?? true)
  }
}

import Foundation
import Testing

/// All tables.
enum ConformanceTables {
  static let tables: [[ConformanceCase]] = [
    FreshnessConformance.all, DirectiveConformance.all, SelectionConformance.all, ConditionConformance.all,
    ChangeConformance.all, RangeConformance.all, StaleConformance.all, MessageConformance.all, SharedConformance.all,
    SearchConformance.all,
  ]

  static let all = tables.flatMap { $0 }

  /// The number of results when every case has run on every path.
  static let runCount = all.reduce(0) { $0 + $1.paths.count }
}

/// RFC 9111 and its companions, end to end.
///
/// Each case runs over a `URLSession` and `data(for:)`, and with the decisions alone if possible. At the end the
/// numbers of met requirements are printed.
///
/// Serialized: the cases share a clock. Each has its own origin and session.
@Suite("HTTP conformance", .serialized)
struct ConformanceTests {
  @Test("Case names are unique")
  func idsAreUnique() {
    var seen: Set<String> = []
    for test in ConformanceTables.all { #expect(seen.insert(test.id).inserted, "\(test.id) comes twice") }
  }

  /// With the environment variable CONFORMANCE only cases run whose name begins with its value.
  private static let wanted = ProcessInfo.processInfo.environment["CONFORMANCE"] ?? ""

  private func run(_ test: ConformanceCase) async throws {
    guard test.id.hasPrefix(Self.wanted) else { return }
    for path in test.paths where path != .decision {
      let failures = try await ConformanceRunner(test: test, path: path).run()
      report(failures, test, path)
    }
    if test.paths.contains(.decision) { report(DecisionRunner(test: test).run(), test, .decision) }
  }

  private func report(_ failures: [String], _ test: ConformanceCase, _ path: ConformancePath) {
    ConformanceTally.record(test, over: path, isMet: failures.isEmpty)
    for failure in failures { Issue.record("over \(path.rawValue): \(failure)") }
  }

  @Test("Freshness follows RFC 9111", arguments: FreshnessConformance.all)
  func freshness(_ test: ConformanceCase) async throws { try await run(test) }

  @Test("Directives follow RFC 9111", arguments: DirectiveConformance.all)
  func directives(_ test: ConformanceCase) async throws { try await run(test) }

  @Test("Selection follows RFC 9111", arguments: SelectionConformance.all)
  func selection(_ test: ConformanceCase) async throws { try await run(test) }

  @Test("Conditional requests and freshening follow RFC 9111", arguments: ConditionConformance.all)
  func conditions(_ test: ConformanceCase) async throws { try await run(test) }

  @Test("Invalidation and cache groups follow RFC 9111 and RFC 9875", arguments: ChangeConformance.all)
  func changes(_ test: ConformanceCase) async throws { try await run(test) }

  @Test("Ranges and incomplete responses follow RFC 9111", arguments: RangeConformance.all)
  func ranges(_ test: ConformanceCase) async throws { try await run(test) }

  @Test("Stale responses follow RFC 9111 and RFC 5861", arguments: StaleConformance.all)
  func staleService(_ test: ConformanceCase) async throws { try await run(test) }

  @Test("Framing and stored fields follow RFC 9111", arguments: MessageConformance.all)
  func messages(_ test: ConformanceCase) async throws { try await run(test) }

  @Test(
    "Shared mode, targeted fields, Cache-Status and cache policies follow their RFCs and options",
    arguments: SharedConformance.all)
  func sharedMode(_ test: ConformanceCase) async throws { try await run(test) }

  @Test("Equivalent URLs follow No-Vary-Search", arguments: SearchConformance.all)
  func equivalentURLs(_ test: ConformanceCase) async throws { try await run(test) }
}

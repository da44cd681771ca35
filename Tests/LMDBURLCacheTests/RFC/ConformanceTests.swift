import Foundation
import Testing

/// All tables.
enum ConformanceTables {
  static let tables: [[ConformanceCase]] = [
    FreshnessConformance.all, DirectiveConformance.all, SelectionConformance.all, ConditionConformance.all,
    ChangeConformance.all, RangeConformance.all, StaleConformance.all, MessageConformance.all, SharedConformance.all,
  ]

  static let all = tables.flatMap { $0 }

  /// How many results there are when every case was driven every way.
  static let runCount = all.reduce(0) { $0 + $1.paths.count }
}

/// RFC 9111 and its companions, end to end: each case over a `URLSession` and over `data(for:)`, whose requests go over
/// sessions and over libcurl, and by the decisions alone where nothing but these is concerned. When all have run, the numbers of required and recommended ones met are printed.
///
/// One after the other: each case has an origin, sessions and stores of its own, and some hundred of them side by side wait for
/// each other until requests time out.
@Suite("HTTP conformance", .serialized)
struct ConformanceTests {
  @Test("Ids are unique")
  func idsAreUnique() {
    var seen: Set<String> = []
    for test in ConformanceTables.all { #expect(seen.insert(test.id).inserted, "\(test.id) comes twice") }
  }

  /// With the environment variable CONFORMANCE only cases whose id begins with its value are run.
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

  @Test("Freshness", arguments: FreshnessConformance.all)
  func freshness(_ test: ConformanceCase) async throws { try await run(test) }

  @Test("Directives", arguments: DirectiveConformance.all)
  func directives(_ test: ConformanceCase) async throws { try await run(test) }

  @Test("Selection", arguments: SelectionConformance.all)
  func selection(_ test: ConformanceCase) async throws { try await run(test) }

  @Test("Conditions", arguments: ConditionConformance.all)
  func conditions(_ test: ConformanceCase) async throws { try await run(test) }

  @Test("Changes", arguments: ChangeConformance.all)
  func changes(_ test: ConformanceCase) async throws { try await run(test) }

  @Test("Ranges", arguments: RangeConformance.all)
  func ranges(_ test: ConformanceCase) async throws { try await run(test) }

  @Test("Stale service", arguments: StaleConformance.all)
  func staleService(_ test: ConformanceCase) async throws { try await run(test) }

  @Test("Messages", arguments: MessageConformance.all)
  func messages(_ test: ConformanceCase) async throws { try await run(test) }

  @Test("Shared mode and options", arguments: SharedConformance.all)
  func sharedMode(_ test: ConformanceCase) async throws { try await run(test) }
}

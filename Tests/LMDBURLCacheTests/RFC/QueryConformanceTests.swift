import Foundation
import Testing

/// The conformance cases with QUERY in place of GET: a cache treats a query as a GET of its equivalent resource (RFC
/// 10008, section 2.2).
@Suite("HTTP conformance of queries", .serialized)
struct QueryConformanceTests {
  static let cases = ConformanceTables.all.compactMap(\.withQueries)

  /// Rows 119, 122, 128, 129 and 130.
  @Test("A query is stored, reused, validated and invalidated as a GET is", arguments: cases)
  func query(_ test: ConformanceCase) async throws {
    for path in test.paths {
      for failure in try await ConformanceRunner(test: test, path: path).run() {
        Issue.record("over \(path.rawValue): \(failure)")
      }
    }
  }

  @Test("Most cases apply to queries")
  func coverage() {
    #expect(Self.cases.count * 10 > ConformanceTables.all.count * 8)
  }
}

extension ConformanceCase {
  /// The case with queries that have one content; nil if it is about GET itself.
  var withQueries: ConformanceCase? {
    let isAboutGET = steps.contains { $0.method == "HEAD" || $0.method == "GET" && $0.content != nil }
    // Row 90 is about a POST whose response answers a later GET. The other cases are about queries in URLs.
    guard !isAboutGET, !rows.contains(90), !id.hasPrefix("nvs-"), steps.contains(where: { $0.method == "GET" }) else {
      return nil
    }
    var settings = settings
    settings.isPure = false
    let steps = steps.map { step in
      guard step.method == "GET" else { return step }
      var step = step
      step.method = "QUERY"
      step.content = "select 1"
      step.request.append(("Content-Type", "application/sql"))
      return step
    }
    return ConformanceCase(id, section, kind, rows: rows, settings: settings, steps: steps)
  }
}

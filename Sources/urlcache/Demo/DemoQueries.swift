import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin

/// The part of the demonstration with QUERY (RFC 10008): many contents at one URL.
struct DemoQueries {
  /// The texts to search for.
  static let texts = [
    "a", "b", "c", "cache", "caching", "code", "control", "cookie", "digest", "field", "http", "http/", "json",
    "method",
    "query", "rfc 9", "stale", "status", "structured", "uri",
  ]
  /// The number of times that each text is searched for.
  static let roundCount = 10

  let origin: QueryOrigin
  let cache: LMDBURLCache

  /// Sends each query several times, then purges the URL and sends them once more.
  func run() async throws -> DemoReport.QueryResult {
    var result = DemoReport.QueryResult()
    for round in 0..<Self.roundCount { try await send(expecting: round == 0 ? .miss : .hit, &result) }
    try await cache.purge(.url(origin.url))
    try await send(expecting: .miss, &result)
    return result
  }

  private func send(expecting kind: DemoResponseKind, _ result: inout DemoReport.QueryResult) async throws {
    let clock = ContinuousClock()
    for text in Self.texts {
      var request = URLRequest(url: origin.url)
      request.httpMethod = "QUERY"
      request.httpBody = Data("q=\(text)".utf8)
      request.setValue("application/x-www-form-urlencoded", forHTTPHeaderField: "Content-Type")
      let start = clock.now
      let loaded = try await cache.load(request)
      result.measurements.add(
        loaded.source == .hit ? .hit : .miss, clock.now - start, byteCount: loaded.data.count)
      if (loaded.source == .hit) != (kind == .hit) {
        result.measurements.failures.append("The query for '\(text)' had the source '\(loaded.source.rawValue)'")
      }
      if loaded.data != Data(QueryOrigin.result(of: text).utf8) {
        result.measurements.failures.append("The result of the query for '\(text)' is wrong")
      }
    }
  }
}

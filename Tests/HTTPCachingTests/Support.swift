import Foundation
import HTTPCaching
import Testing

/// A case of a table, with the rows of the requirement checklist that it shows.
protocol RequirementCase: Sendable, CustomTestStringConvertible {
  var id: String { get }
  /// The RFC and its section.
  var section: String { get }
  /// Rows of the requirement checklist.
  var rows: [Int] { get }
}

extension RequirementCase {
  var testDescription: String { "\(id) [\(section)]" }
}

typealias Lines = [(String, String)]

/// The time at which every first response arrives: Fri, 15 Jan 2027 08:00:00 GMT.
let start = Date(timeIntervalSince1970: 1_800_000_000)

func head(_ lines: Lines) -> RequestHead { RequestHead(url: target, fields: fields(lines)) }

/// Returns the lines as header fields. A value `@-60` becomes the HTTP date 60 seconds before `start`.
func fields(_ lines: Lines) -> HeaderFields {
  HeaderFields(
    lines.map { name, value in
      guard value.hasPrefix("@"), let offset = Double(value.dropFirst()) else { return (name, value) }
      return (name, HTTPDate.format(start.addingTimeInterval(offset)))
    })
}

/// Returns the lines after a `Date` field with the time `start`.
func dated(_ lines: Lines) -> Lines { [("Date", "@0")] + lines }

let target = URL(string: "https://example.com/a?b=1")!

struct Stored: StoredResponseMetadata {
  var status = 200
  var freshness: FreshnessInfo
  var fields: HeaderFields
  var bodyByteCount = 11
}

/// Names the decision, and its rule after a colon.
func word(_ decision: ReuseDecision) -> String {
  func mark(_ inBackground: Bool) -> String { inBackground ? "+" : "" }
  return switch decision {
  case .serve(_, let rule): "serve:\(rule.id)"
  case .serveStale(_, let background, let rule): "stale\(mark(background)):\(rule.id)"
  case .revalidate(_, _, let rule): "revalidate:\(rule.id)"
  case .fetch(_, let rule): "fetch:\(rule.id)"
  case .notModified(_, let background, _): "304\(mark(background))"
  case .partial(let range, _, let background, _): "206 \(range.first)-\(range.last)\(mark(background))"
  case .unsatisfiableRange(let length, _, _): "416 \(length)"
  case .fetchMissingRange(let fields, _): "complete \(fields["Range"] ?? "") \(fields["If-Range"] ?? "")"
  case .gatewayTimeout(let rule): "504:\(rule.id)"
  }
}

/// A response and a later request for the same target.
struct Exchange: Sendable {
  var url = target
  var method = "GET"
  var request: Lines = []
  var status = 200
  var response: Lines = []
  var bodyByteCount = 11
  /// Seconds between the first request and its response.
  var delay = 0.0
  /// Seconds between the response and the second request.
  var elapsed = 1.0
  var options = CachingOptions()

  func storability() -> Storability {
    Storability.decide(
      request: RequestHead(method: method, url: url, fields: fields(request)),
      response: ResponseHead(status: status, fields: fields(response)),
      requestTime: start.addingTimeInterval(-delay), responseTime: start, options: options)
  }

  var refusal: String? {
    guard case .refuse(let rule) = storability() else { return nil }
    return rule.id
  }

  var stored: Stored? {
    guard case .store(let fields, let freshness) = storability() else { return nil }
    return Stored(status: status, freshness: freshness, fields: fields, bodyByteCount: bodyByteCount)
  }

  /// Names the decision for the second request.
  func then(
    _ lines: Lines = [], method: String = "GET", policy: RequestPolicy = .useProtocolCachePolicy
  ) -> String {
    decision(lines, method: method, policy: policy).map(word) ?? "not stored:\(refusal ?? "")"
  }

  func decision(
    _ lines: Lines = [], method: String = "GET", policy: RequestPolicy = .useProtocolCachePolicy
  ) -> ReuseDecision? {
    stored.map {
      Reuse.decide(
        request: RequestHead(method: method, url: url, fields: fields(lines)), stored: $0, policy: policy,
        now: start.addingTimeInterval(elapsed), options: options)
    }
  }
}

func shared(_ change: (inout CachingOptions) -> Void = { _ in }) -> CachingOptions {
  var options = CachingOptions()
  options.mode = .shared
  change(&options)
  return options
}

func privately(_ change: (inout CachingOptions) -> Void) -> CachingOptions {
  var options = CachingOptions()
  change(&options)
  return options
}

/// A response, a later request, and the decision that it gets.
struct DecisionCase: RequirementCase {
  let id: String
  let section: String
  let rows: [Int]
  let exchange: Exchange
  var request: Lines
  var method: String
  var policy: RequestPolicy
  let expected: String

  init(
    _ id: String, _ section: String, rows: [Int], _ exchange: Exchange, _ request: Lines = [],
    method: String = "GET", policy: RequestPolicy = .useProtocolCachePolicy, gives expected: String
  ) {
    self.id = id
    self.section = section
    self.rows = rows
    self.exchange = exchange
    self.request = request
    self.method = method
    self.policy = policy
    self.expected = expected
  }
}

extension URLVariation {
  /// Returns a URL without the parameters that do not count.
  func simplified(_ url: String) -> String {
    var url = url
    return url.withUTF8 { url in
      withUnsafeTemporaryAllocation(of: UInt8.self, capacity: Self.maximumByteCount(forURLOf: url.count)) { output in
        String(decoding: UnsafeMutableBufferPointer(rebasing: output[..<simplify(url, to: output)]), as: UTF8.self)
      }
    }
  }
}

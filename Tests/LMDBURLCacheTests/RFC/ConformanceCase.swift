import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Testing

/// Header lines as name and value.
///
/// A value `@60` is the HTTP date 60 seconds after the present time of the case's clock; `@60:rfc850` and `@60:asctime`
/// are the older forms.
typealias FieldLines = [(String, String)]

/// A requirement of the RFCs as a sequence of requests with their expected results.
struct ConformanceCase: Sendable, CustomTestStringConvertible {
  /// The requirement level.
  enum Kind: String, Sendable, CaseIterable {
    /// MUST and MUST NOT.
    case required
    /// SHOULD, or a benefit that a cache may gain.
    case recommended
    /// MAY: the case shows the choice of this cache.
    case optional
  }

  /// A stable name, used in the checklist of the documentation.
  let id: String
  /// The RFC and its section.
  let section: String
  let kind: Kind
  /// The rows of the checklist that the case shows.
  let rows: [Int]
  let steps: [Step]
  var settings = Settings()

  /// Deviations from the defaults of a cache and its session.
  struct Settings: Sendable {
    var caching = CachingSettings.private
    var cacheStatusName: String?
    var targetedFieldNames: [String] = []
    var partition: (@Sendable (URLRequest) -> String)?
    /// Whether the case can be run with the decisions alone; false if it needs connections, partitions, or the like.
    var isPure = true
    /// Paths on which Foundation decides itself, or which tests cannot separate.
    var excluded: Set<ConformancePath> = []

    enum CachingSettings: Sendable { case `private`, shared }

    static let shared = Settings(caching: .shared)
    static let wired = Settings(isPure: false)
  }

  init(
    _ id: String, _ section: String, _ kind: Kind, rows: [Int], settings: Settings = Settings(), _ steps: Step...
  ) {
    self.init(id, section, kind, rows: rows, settings: settings, steps: steps)
  }

  init(_ id: String, _ section: String, _ kind: Kind, rows: [Int], settings: Settings = Settings(), steps: [Step]) {
    self.id = id
    self.section = section
    self.kind = kind
    self.rows = rows
    self.settings = settings
    self.steps = steps
  }

  var testDescription: String { "\(id) [\(section), \(kind.rawValue)]" }

  /// The paths that run the case.
  var paths: [ConformancePath] {
    let isPure = settings.isPure && steps.allSatisfy { $0.shape == nil }
    let paths: [ConformancePath] = isPure ? ConformancePath.allCases : [.session, .data]
    return paths.filter { !settings.excluded.contains($0) }
  }
}

/// A request of a case, the origin's reply, and the expected result.
struct Step: Sendable {
  /// The expected source of the response.
  enum Expectation: Sendable {
    /// The origin gets an unconditional request.
    case origin
    /// The origin gets no request.
    case stored
    /// The origin gets a conditional request, and the step's reply decides.
    case validated
    /// Served from the cache, with a revalidation in the background.
    case background
    /// The request fails with an error.
    case failure
  }

  var method = "GET"
  /// A suffix of the case's path: empty, a query, or `/more`.
  var suffix = ""
  var request: FieldLines = []
  var content: String?
  var policy = URLRequest.CachePolicy.useProtocolCachePolicy
  /// The seconds that pass before the request.
  var after = 0.0

  var status = 200
  var reply: FieldLines = []
  /// The body of the reply; nil for `body 0` in the first step, and so on.
  var replyBody: String?
  /// The seconds that pass between the request and its response.
  var delay = 0.0
  var sendsDate = true
  /// Changes the framing of the reply: truncation, chunks and the like.
  var shape: (@Sendable (Reply) -> Reply)?

  var expected: Expectation
  /// The step whose body and status are expected; nil for this step if the origin replies, and otherwise for the first.
  var bodyOf: Int?
  var expectedBody: String?
  var expectedStatus: Int?
  /// Expected fields of the response; nil if absent.
  var shows: [(String, String?)] = []
  /// Expected fields of the origin's request; nil if absent.
  var sees: [(String, String?)] = []

  /// Returns a step that the origin must serve.
  static func origin(
    _ reply: FieldLines = [], status: Int = 200, after: Double = 0, _ request: FieldLines = [], method: String = "GET",
    suffix: String = "", body: String? = nil, shows: [(String, String?)] = [], sees: [(String, String?)] = [],
    _ change: (inout Step) -> Void = { _ in }
  ) -> Step {
    var step = Step(
      method: method, suffix: suffix, request: request, after: after, status: status, reply: reply, replyBody: body,
      expected: .origin, shows: shows, sees: sees)
    change(&step)
    return step
  }

  /// Returns a step that the cache must serve; if the origin gets the request nevertheless, its reply is a plain 200.
  static func stored(
    after: Double = 0, _ request: FieldLines = [], bodyOf: Int? = nil, status: Int? = nil, method: String = "GET",
    suffix: String = "", body: String? = nil, shows: [(String, String?)] = [], _ change: (inout Step) -> Void = { _ in }
  ) -> Step {
    var step = Step(
      method: method, suffix: suffix, request: request, after: after, expected: .stored, bodyOf: bodyOf,
      expectedBody: body, expectedStatus: status, shows: shows)
    change(&step)
    return step
  }

  /// Returns a step with a conditional request, to which the origin replies 304 unless `status` differs.
  static func validated(
    _ reply: FieldLines = [], status: Int = 304, after: Double = 0, _ request: FieldLines = [], bodyOf: Int? = nil,
    suffix: String = "", shows: [(String, String?)] = [], sees: [(String, String?)] = [],
    _ change: (inout Step) -> Void = { _ in }
  ) -> Step {
    var step = Step(
      suffix: suffix, request: request, after: after, status: status, reply: reply, expected: .validated,
      bodyOf: bodyOf, shows: shows, sees: sees)
    change(&step)
    return step
  }
}

/// The clock of a case.
final class ConformanceClock: Sendable {
  private let time = ConformanceLock(Date(timeIntervalSince1970: 1_800_000_000))

  var now: Date { time.withLock { $0 } }

  func advance(by seconds: Double) {
    time.withLock { $0 = $0.addingTimeInterval(seconds) }
  }

  /// Advances to the next full second, at which a case begins.
  func beginSecond() {
    time.withLock { $0 = Date(timeIntervalSince1970: $0.timeIntervalSince1970.rounded(.up)) }
  }

  /// Replaces the date placeholders in lines.
  func resolve(_ lines: FieldLines) -> FieldLines {
    lines.map { ($0.0, resolve($0.1)) }
  }

  func resolve(_ value: String) -> String {
    guard value.hasPrefix("@") else { return value }
    let parts = value.dropFirst().split(separator: ":", maxSplits: 1)
    guard let offset = parts.first.flatMap({ Double($0) }) else { return value }
    return ConformanceDate.format(now.addingTimeInterval(offset), as: parts.count > 1 ? String(parts[1]) : "imf")
  }
}

/// Formats dates as origins send them, without the tested code.
enum ConformanceDate {
  static func format(_ date: Date, as form: String) -> String {
    let days = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]
    let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
    var calendar = Calendar(identifier: .gregorian)
    calendar.timeZone = TimeZone(secondsFromGMT: 0)!
    let parts = calendar.dateComponents([.year, .month, .day, .hour, .minute, .second, .weekday], from: date)
    func two(_ number: Int?) -> String { String((number ?? 0) + 100).suffix(2).description }
    let day = days[(parts.weekday ?? 1) - 1]
    let month = months[(parts.month ?? 1) - 1]
    let time = "\(two(parts.hour)):\(two(parts.minute)):\(two(parts.second))"
    let year = parts.year ?? 0
    return switch form {
    case "rfc850": "\(day), \(two(parts.day))-\(month)-\(two(year % 100)) \(time) GMT"
    case "asctime":
      "\(day.prefix(3)) \(month) \((parts.day ?? 0) < 10 ? " " : "")\(parts.day ?? 0) \(time) \(year)"
    default: "\(day.prefix(3)), \(two(parts.day)) \(month) \(year) \(time) GMT"
    }
  }
}

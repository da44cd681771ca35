import Foundation
import FoundationNetworking
import LMDBURLCache
import LoopbackOrigin
import Testing

/// Header lines as name and value. A value `@60` is the HTTP date 60 seconds after the case's clock at that moment;
/// `@60:rfc850` and `@60:asctime` are the older forms.
typealias FieldLines = [(String, String)]

/// One requirement of the RFCs as a sequence of requests, with what must come of each.
struct ConformanceCase: Sendable, CustomTestStringConvertible {
  /// How binding the rule is.
  enum Kind: String, Sendable, CaseIterable {
    /// MUST and MUST NOT.
    case required
    /// SHOULD, or what a cache gains by if it does it.
    case recommended
    /// MAY: the case shows what this cache chose.
    case optional
  }

  /// Stable; named in the checklist of the documentation.
  let id: String
  /// RFC and section.
  let section: String
  let kind: Kind
  /// Rows of the checklist that it shows.
  let rows: [Int]
  let steps: [Step]
  var settings = Settings()

  /// What differs from the defaults of a cache and its session.
  struct Settings: Sendable {
    var caching = CachingSettings.private
    var cacheStatusName: String?
    var targetedFieldNames: [String] = []
    var partition: (@Sendable (URLRequest) -> String)?
    /// Whether the case makes sense for the pure decision: no connection breaks, no client partitions, and so on.
    var isPure = true
    /// Ways that Foundation decides by itself, or that tests cannot keep apart.
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

  /// The ways it is driven.
  var paths: [ConformancePath] {
    let isPure = settings.isPure && steps.allSatisfy { $0.shape == nil }
    let paths: [ConformancePath] = isPure ? ConformancePath.allCases : [.session, .data, .curl]
    return paths.filter { !settings.excluded.contains($0) }
  }
}

/// One request of a case, what the origin would answer, and what must happen.
struct Step: Sendable {
  /// What must happen.
  enum Expectation: Sendable {
    /// The origin is asked, and not whether something is still valid.
    case origin
    /// The origin is not asked.
    case stored
    /// The origin is asked whether what is stored is still valid, and the step's reply decides.
    case validated
    /// Answered from store, while the origin is asked in the background.
    case background
    /// The answer is an error.
    case failure
  }

  var method = "GET"
  /// Added to the case's own path: empty, or a query, or `/more`.
  var suffix = ""
  var request: FieldLines = []
  var content: String?
  var policy = URLRequest.CachePolicy.useProtocolCachePolicy
  /// Seconds that pass before the request.
  var after = 0.0

  var status = 200
  var reply: FieldLines = []
  /// Nil: `body 0` for the first step, and so on.
  var replyBody: String?
  /// Seconds that pass between the request and its answer.
  var delay = 0.0
  var sendsDate = true
  /// Breaks, chunks and the like.
  var shape: (@Sendable (Reply) -> Reply)?

  var expected: Expectation
  /// The step whose body and status are expected; nil: this one's own if the origin answers, else the first.
  var bodyOf: Int?
  var expectedBody: String?
  var expectedStatus: Int?
  /// Fields of the answer; nil: absent.
  var shows: [(String, String?)] = []
  /// Fields the origin must see; nil: absent.
  var sees: [(String, String?)] = []

  /// A request that the origin has to answer.
  static func origin(
    _ reply: FieldLines = [], status: Int = 200, after: Double = 0, _ request: FieldLines = [], method: String = "GET",
    suffix: String = "", body: String? = nil, shows: [(String, String?)] = [], sees: [(String, String?)] = [],
    _ change: (inout Step) -> Void = { _ in }
  ) -> Step {
    var step = Step(expected: .origin)
    step.method = method
    step.suffix = suffix
    step.request = request
    step.after = after
    step.status = status
    step.reply = reply
    step.replyBody = body
    step.shows = shows
    step.sees = sees
    change(&step)
    return step
  }

  /// A request that the store has to answer; should the origin be asked all the same, it gives a plain 200.
  static func stored(
    after: Double = 0, _ request: FieldLines = [], bodyOf: Int? = nil, status: Int? = nil, method: String = "GET",
    suffix: String = "", body: String? = nil, shows: [(String, String?)] = [], _ change: (inout Step) -> Void = { _ in }
  ) -> Step {
    var step = Step(expected: .stored)
    step.method = method
    step.suffix = suffix
    step.request = request
    step.after = after
    step.bodyOf = bodyOf
    step.expectedStatus = status
    step.expectedBody = body
    step.shows = shows
    change(&step)
    return step
  }

  /// A request that leads to a conditional one, which the origin answers with 304 unless `status` says otherwise.
  static func validated(
    _ reply: FieldLines = [], status: Int = 304, after: Double = 0, _ request: FieldLines = [], bodyOf: Int? = nil,
    suffix: String = "", shows: [(String, String?)] = [], sees: [(String, String?)] = [],
    _ change: (inout Step) -> Void = { _ in }
  ) -> Step {
    var step = Step(expected: .validated)
    step.suffix = suffix
    step.request = request
    step.after = after
    step.status = status
    step.reply = reply
    step.bodyOf = bodyOf
    step.shows = shows
    step.sees = sees
    change(&step)
    return step
  }
}

/// The clock of one case.
final class ConformanceClock: Sendable {
  private let time = ConformanceLock(Date(timeIntervalSince1970: 1_800_000_000))

  var now: Date { time.withLock { $0 } }

  func advance(by seconds: Double) {
    time.withLock { $0 = $0.addingTimeInterval(seconds) }
  }

  /// Lines with the dates filled in.
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

/// Dates as origins write them, made without the code that is tested.
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

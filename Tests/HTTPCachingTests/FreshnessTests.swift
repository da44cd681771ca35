import Foundation
import HTTPCaching
import Testing

@Suite("Age and freshness lifetime")
struct FreshnessTests {
  struct Case: RequirementCase {
    let id: String
    let section: String
    let rows: [Int]
    let lines: Lines
    var status = 200
    var options = CachingOptions()
    var delay = 0.0
    /// The remaining freshness lifetime at receipt, in seconds; at least 0.
    let remaining: Double

    init(
      _ id: String, _ section: String, rows: [Int], _ lines: Lines, status: Int = 200,
      options: CachingOptions = CachingOptions(), delay: Double = 0, remaining: Double
    ) {
      self.id = id
      self.section = section
      self.rows = rows
      self.lines = lines
      self.status = status
      self.options = options
      self.delay = delay
      self.remaining = remaining
    }
  }

  static func lifetime(_ value: String) -> Lines { dated([("Cache-Control", value)]) }
  static let day = 86_400.0

  static let maxAge: [Case] = [
    Case("fresh-max-age", "9111 5.2.2.1", rows: [35], lifetime("max-age=60"), remaining: 60),
    Case("max-age-0", "9111 5.2.2.1", rows: [35], lifetime("max-age=0"), remaining: 0),
    Case("max-age-any-case", "9111 5.2", rows: [77], lifetime("MaX-aGe=60"), remaining: 60),
    Case("max-age-leading-zero", "9111 1.2.2", rows: [37], lifetime("max-age=0060"), remaining: 60),
    Case("max-age-2^31", "9111 1.2.2", rows: [37], lifetime("max-age=2147483648"), remaining: 2_147_483_648),
    Case(
      "max-age-overflow", "9111 1.2.2", rows: [37], lifetime("max-age=99999999999999999999999"),
      remaining: 2_147_483_648),
    Case("max-age-alpha", "9111 4.2.1", rows: [36], lifetime("max-age=60a"), remaining: 0),
    Case("max-age-space-before", "9111 4.2.1", rows: [36, 77], lifetime("max-age =60"), remaining: 0),
    Case("max-age-space-after", "9111 4.2.1", rows: [36, 77], lifetime("max-age= 60"), remaining: 0),
    Case("max-age-none", "9111 4.2.1", rows: [36], lifetime("max-age"), remaining: 0),
    Case("max-age-in-open-quote", "9111 4.2.1", rows: [36, 77], lifetime("x=\"a, max-age=60"), remaining: 0),
    Case("max-age-before-open-quote", "9111 5.2", rows: [77], lifetime("max-age=60, x=\"a"), remaining: 60),
    Case(
      "max-age-after-open-quote-in-line", "9111 4.2.1", rows: [36, 77],
      dated([("Cache-Control", "x=\"a"), ("Cache-Control", "max-age=60")]), remaining: 0),
    Case("max-age-twice", "9111 4.2.1", rows: [36], lifetime("max-age=1800, max-age=1"), remaining: 1),
    Case("max-age-inside-quotes", "9111 5.2", rows: [77], lifetime("x=\"max-age=3600\", max-age=1"), remaining: 1),
    Case("max-age-with-unknown", "9111 5.2.3", rows: [77], lifetime("foo, max-age=60, bar=\"x,y\""), remaining: 60),
    Case(
      "max-age-over-expires", "9111 5.3", rows: [35, 45], dated([("Cache-Control", "max-age=60"), ("Expires", "@-9")]),
      remaining: 60),
    Case("s-maxage-private", "9111 5.2.2.10", rows: [35], lifetime("s-maxage=3600, max-age=1"), remaining: 1),
    Case(
      "s-maxage-shared", "9111 5.2.2.10", rows: [35, 45],
      dated([("Cache-Control", "max-age=1, s-maxage=60"), ("Expires", "@9")]), options: shared(), remaining: 60),
    Case(
      "s-maxage-shorter", "9111 5.2.2.10", rows: [35], lifetime("max-age=60, s-maxage=1"), options: shared(),
      remaining: 1),
  ]

  static let expires: [Case] = [
    Case("expires-future", "9111 5.3", rows: [35], dated([("Expires", "@60")]), remaining: 60),
    Case("expires-equal", "9111 5.3", rows: [35], dated([("Expires", "@0")]), remaining: 0),
    Case("expires-0", "9111 5.3", rows: [44], dated([("Expires", "0")]), remaining: 0),
    Case("expires-empty", "9111 5.3", rows: [44], dated([("Expires", "")]), remaining: 0),
    Case(
      "expires-utc", "9111 4.2", rows: [41, 44], dated([("Expires", "Thu, 18 Aug 2050 02:01:18 UTC")]), remaining: 0),
    Case(
      "expires-contradicting-lines", "9111 4.2.1", rows: [36], dated([("Expires", "@60"), ("Expires", "@61")]),
      remaining: 0),
    Case(
      "expires-equal-lines", "9111 4.2.1", rows: [36], dated([("Expires", "@60"), ("Expires", "@60")]), remaining: 60),
    Case("expires-without-date", "9111 5.3", rows: [35, 20], [("Expires", "@60")], remaining: 60),
    Case(
      "expires-far", "9111 5.3", rows: [37], dated([("Expires", "Sun, 21 Nov 9999 04:46:39 GMT")]),
      remaining: 2_147_483_648),
    Case(
      "expires-no-heuristic", "9111 4.2.2", rows: [46], dated([("Expires", "0"), ("Last-Modified", "@-9000")]),
      remaining: 0),
    Case(
      "expires-wrong-case", "9111 4.2", rows: [38], [("Date", "FRI, 15 jan 2027 08:00:00 gmt"), ("Expires", "@60")],
      remaining: 60),
  ]

  static let heuristics: [Case] = [
    Case("heuristic-10-percent", "9111 4.2.2", rows: [47], dated([("Last-Modified", "@-86400")]), remaining: 8640),
    Case("heuristic-limit", "9111 4.2.2", rows: [47], dated([("Last-Modified", "@-864000000")]), remaining: 7 * day),
    Case("heuristic-modified-later", "9111 4.2.2", rows: [47], dated([("Last-Modified", "@60")]), remaining: 0),
    Case("heuristic-404", "9111 4.2.2", rows: [47], dated([("Last-Modified", "@-100")]), status: 404, remaining: 10),
    Case(
      "heuristic-302-private", "9111 4.2.2", rows: [47],
      dated([("Last-Modified", "@-100"), ("Cache-Control", "private")]), status: 302, remaining: 0),
    Case("heuristic-nothing", "9111 4.2.2", rows: [47], dated([]), remaining: 0),
    Case(
      "heuristic-default", "9111 4.2.2", rows: [47], dated([]), options: privately { $0.defaultLifetime = 30 },
      remaining: 30),
    Case(
      "heuristic-off", "9111 4.2.2", rows: [47], dated([("Last-Modified", "@-100")]),
      options: privately { $0.heuristicFraction = 0 }, remaining: 0),
    Case(
      "heuristic-nan-option", "9111 4.2.2", rows: [47], dated([("Last-Modified", "@-100")]),
      options: privately { $0.heuristicFraction = .nan }, remaining: 0),
  ]

  static func aged(_ values: String...) -> Lines { lifetime("max-age=3600") + values.map { ("Age", $0) } }

  static let ages: [Case] = [
    Case("age", "9111 4.2.3", rows: [48], aged("600"), remaining: 3000),
    Case("age-beyond", "9111 4.2.3", rows: [48], aged("7200"), remaining: 0),
    Case("age-and-delay", "9111 4.2.3", rows: [48], aged("600"), delay: 10, remaining: 2990),
    Case("age-delay-alone", "9111 4.2.3", rows: [48], aged(), delay: 10, remaining: 3590),
    Case(
      "age-apparent", "9111 4.2.3", rows: [48], [("Date", "@-100"), ("Cache-Control", "max-age=3600"), ("Age", "1")],
      remaining: 3500),
    Case(
      "age-fast-date", "9111 4.2.3", rows: [48], [("Date", "@100"), ("Cache-Control", "max-age=3600"), ("Age", "1")],
      remaining: 3599),
    Case(
      "age-slow-date", "9111 4.2.3", rows: [48], [("Date", "@-10"), ("Expires", "@10"), ("Age", "25")], remaining: 0),
    Case("age-overflow", "9111 1.2.2", rows: [37, 48], aged("99999999999999999999"), remaining: 0),
    Case("age-2^31", "9111 1.2.2", rows: [37], aged("2147483648"), remaining: 0),
    Case("age-two-lines-old-first", "9111 5.1", rows: [49], aged("7200", "0"), remaining: 0),
    Case("age-two-lines-new-first", "9111 5.1", rows: [49], aged("0", "7200"), remaining: 3600),
    Case("age-negative", "9111 5.1", rows: [50], aged("-7200"), remaining: 3600),
    Case("age-float", "9111 5.1", rows: [50], aged("7200.0"), remaining: 3600),
    Case("age-word", "9111 5.1", rows: [50], aged("abc"), remaining: 3600),
    Case("age-empty", "9111 5.1", rows: [50], aged(""), remaining: 3600),
    Case("age-parameter", "9111 5.1", rows: [50], aged("7200;foo=1"), remaining: 3600),
  ]

  @Test("The TTL at receipt follows from the fields and the options", arguments: maxAge + expires + heuristics + ages)
  func freshness(_ test: Case) throws {
    let exchange = Exchange(status: test.status, response: test.lines, delay: test.delay, options: test.options)
    let freshness = try #require(exchange.stored).freshness
    #expect(max(0, freshness.timeToLive(at: start)) == test.remaining)
    #expect(freshness.isFresh(at: start) == (test.remaining > 0))
  }

  static let targeted = shared { $0.targetedFieldNames = ["CDN-Cache-Control", "Edge-Cache-Control"] }

  static let targetedFields: [Case] = [
    Case(
      "targeted-wins", "9213 2.2", rows: [104],
      dated([("CDN-Cache-Control", "max-age=60"), ("Cache-Control", "max-age=1")]),
      options: targeted, remaining: 60),
    Case(
      "targeted-second-name", "9213 2.2", rows: [104],
      dated([("Edge-Cache-Control", "max-age=60"), ("Cache-Control", "max-age=1")]), options: targeted, remaining: 60),
    Case(
      "targeted-malformed", "9213 2.1", rows: [102],
      dated([("CDN-Cache-Control", "max-age=60, &&&"), ("Cache-Control", "max-age=1")]), options: targeted, remaining: 1
    ),
    Case(
      "targeted-upper-case-key", "9213 2.1", rows: [102],
      dated([("CDN-Cache-Control", "MAX-AGE=60"), ("Cache-Control", "max-age=1")]), options: targeted, remaining: 1),
    Case(
      "targeted-private-cache", "9213 2.2", rows: [102, 104],
      dated([("CDN-Cache-Control", "max-age=60"), ("Cache-Control", "max-age=1")]),
      options: privately { $0.targetedFieldNames = ["CDN-Cache-Control"] }, remaining: 60),
  ]

  @Test("Targeted fields determine the TTL", arguments: targetedFields)
  func targetedFreshness(_ test: Case) throws { try freshness(test) }

  /// Row 106; RFC 9213, 2.2.
  @Test(
    "Targeted directives prevent storing as those of Cache-Control do",
    arguments: [("no-store", "no-store"), ("private", "private"), ("no-store=?0, max-age=9", nil)]
      as [(String, String?)])
  func targetedRefusal(value: String, refusal: String?) {
    let lines = dated([("CDN-Cache-Control", value), ("Cache-Control", "max-age=60")])
    #expect(Exchange(response: lines, options: Self.targeted).refusal == refusal)
  }

  @Test(
    "A response can be used while it is fresh and in its longest stale window, unless a directive forbids it",
    arguments: [
      ("max-age=60", 60), ("max-age=60, stale-while-revalidate=100", 160), ("max-age=60, stale-if-error=100", 160),
      ("max-age=0, stale-if-error=100, stale-while-revalidate=7", 100), ("stale-if-error=100", 100),
      ("max-age=60, stale-if-error=100, must-revalidate", 60), ("max-age=60, stale-while-revalidate=9, no-cache", 60),
      ("max-age=60, stale-if-error=x", 60),
    ] as [(String, Double)])
  func remainingUse(value: String, expected: Double) throws {
    let freshness = try #require(Exchange(response: Self.lifetime(value)).stored).freshness
    let later = start.addingTimeInterval(10)
    #expect(freshness.remainingUse(at: start, options: CachingOptions()) == expected)
    #expect(freshness.remainingUse(at: later, options: CachingOptions()) == expected - 10)
    var outdated = freshness
    outdated.flags.insert(.stale)
    #expect(outdated.remainingUse(at: start, options: CachingOptions()) <= 0)
  }

  @Test("The options extend the time for which a response can be used")
  func remainingUseWithOptions() throws {
    func remaining(_ value: String, _ options: CachingOptions) throws -> Double {
      try #require(Exchange(response: Self.lifetime(value), options: options).stored).freshness
        .remainingUse(at: start, options: options)
    }
    let onError = privately { $0.staleIfErrorByDefault = 30 }
    #expect(try remaining("max-age=60", onError) == 90)
    #expect(try remaining("max-age=60, stale-if-error=5", onError) == 65)
    #expect(try remaining("max-age=60, must-revalidate", onError) == 60)
    let unreachable = privately { $0.servesStaleWhenUnreachable = true }
    #expect(try remaining("max-age=60", unreachable) == .infinity)
    #expect(try remaining("max-age=60, must-revalidate", unreachable) == 60)
    let proxy = "max-age=60, stale-if-error=5, proxy-revalidate"
    #expect(try remaining(proxy, shared()) == 60)
    #expect(try remaining(proxy, CachingOptions()) == 65)
  }

  @Test("A soft purge ends the lifetime for good, and the earliest of several counts")
  func softPurge() throws {
    let exchange = Exchange(response: dated([("Cache-Control", "max-age=60"), ("Age", "5")]))
    let freshness = try #require(exchange.stored).freshness
    let purged = freshness.softPurged(at: start.addingTimeInterval(10))
    #expect(purged.lifetime == 15)
    for seconds in [-1000.0, 0, 10, 100] { #expect(!purged.isFresh(at: start.addingTimeInterval(seconds))) }
    #expect(purged.timeToLive(at: start.addingTimeInterval(30)) == -20)
    #expect(purged.timeToLive(at: start) == 0)
    #expect(purged.softPurged(at: start.addingTimeInterval(20)) == purged)
    #expect(
      freshness.softPurged(at: start.addingTimeInterval(20)).softPurged(at: start.addingTimeInterval(10)) == purged)
    // The lifetime had ended before.
    #expect(freshness.softPurged(at: start.addingTimeInterval(500)).lifetime == 60)
    #expect(freshness.softPurged(at: start.addingTimeInterval(-500)).lifetime == 5)
  }

  @Test(
    "After a soft purge on suspicion every use requires validation, regardless of windows, policies and other purges",
    arguments: [
      RequestPolicy.useProtocolCachePolicy, .returnCacheDataElseLoad, .reloadRevalidatingCacheData,
    ], [[], [("Cache-Control", "max-stale")]] as [Lines])
  func suspicion(policy: RequestPolicy, request: Lines) throws {
    let value = "max-age=60, immutable, stale-while-revalidate=99, stale-if-error=99"
    let stored = try #require(Exchange(response: dated([("Cache-Control", value), ("ETag", "\"a\"")])).stored)
    let purge = start.addingTimeInterval(10)
    let freshness = stored.freshness.softPurged(at: FreshnessInfo.suspicionDate)
    #expect(freshness.softPurged(at: purge) == freshness)
    #expect(stored.freshness.softPurged(at: purge).softPurged(at: FreshnessInfo.suspicionDate) == freshness)
    var suspect = stored
    suspect.freshness = freshness
    let decision = Reuse.decide(
      request: RequestHead(url: target, fields: fields(request)), stored: suspect, policy: policy, now: start,
      options: CachingOptions())
    #expect(word(decision) == "revalidate:suspect")
    guard case .revalidate(_, let staleOnError, _) = decision else { return }
    #expect(!staleOnError.mayServe(after: .unreachable, now: start))
    #expect(!staleOnError.mayServe(after: .status(503), now: start))
  }

  @Test(
    "After a soft purge, stale windows count from it, and must-revalidate and the request still decide",
    arguments: [
      ("max-age=60", [], 1.0, "revalidate:soft-purged"),
      ("max-age=60, stale-while-revalidate=9", [], 9, "stale+:stale-while-revalidate"),
      ("max-age=60, stale-while-revalidate=9", [], 10, "revalidate:soft-purged"),
      ("max-age=60, stale-while-revalidate=9, must-revalidate", [], 1, "revalidate:must-revalidate"),
      ("max-age=60", [("Cache-Control", "max-stale=9")], 9, "stale:max-stale"),
      ("max-age=60", [("Cache-Control", "max-stale=9")], 10, "revalidate:soft-purged"),
      ("max-age=60, immutable", [("Cache-Control", "max-age=0")], 1, "revalidate:soft-purged"),
    ] as [(String, Lines, Double, String)])
  func softPurgeDecision(value: String, request: Lines, elapsed: Double, expected: String) throws {
    var stored = try #require(Exchange(response: dated([("Cache-Control", value), ("ETag", "\"a\"")])).stored)
    stored.freshness = stored.freshness.softPurged(at: start.addingTimeInterval(10))
    let decision = Reuse.decide(
      request: RequestHead(url: target, fields: fields(request)), stored: stored, policy: .useProtocolCachePolicy,
      now: start.addingTimeInterval(10 + elapsed), options: CachingOptions())
    #expect(word(decision) == expected)
  }

  @Test(
    "If the clock was ahead at a soft purge, stale windows do not extend by that time",
    arguments: [-1000.0, -5, -0.5, 0, 8, 10])
  func softPurgeWithAClockSetBack(elapsed: Double) throws {
    let value = "max-age=600, stale-while-revalidate=9, stale-if-error=9"
    var stored = try #require(Exchange(response: dated([("Cache-Control", value), ("ETag", "\"a\"")])).stored)
    let purged = start.addingTimeInterval(300)
    stored.freshness = stored.freshness.softPurged(at: purged)
    let now = purged.addingTimeInterval(elapsed)
    func decide(_ request: Lines) -> ReuseDecision {
      Reuse.decide(
        request: RequestHead(url: target, fields: fields(request)), stored: stored, policy: .useProtocolCachePolicy,
        now: now, options: CachingOptions())
    }
    let isInWindow = elapsed >= 0 && elapsed <= 9
    #expect(word(decide([])) == (isInWindow ? "stale+:stale-while-revalidate" : "revalidate:soft-purged"))
    guard case .revalidate(_, let staleOnError, _) = decide([("Cache-Control", "max-stale=x")]) else {
      Issue.record("not validated")
      return
    }
    #expect(staleOnError.mayServe(after: .unreachable, now: now) == isInWindow)
    #expect(staleOnError.mayServe(after: .status(500), now: now) == isInWindow)
  }

  @Test(
    "A response that was received after the present time is stale, for an unknown time",
    arguments: [
      ("max-age=600", [], .useProtocolCachePolicy, -0.001, "revalidate:clock-set-back"),
      ("max-age=600", [], .useProtocolCachePolicy, 0, "serve:fresh"),
      ("max-age=600", [], .useProtocolCachePolicy, -315_576_000, "revalidate:clock-set-back"),
      ("max-age=600, must-revalidate", [], .useProtocolCachePolicy, -1, "revalidate:must-revalidate"),
      ("max-age=600, stale-while-revalidate=900", [], .useProtocolCachePolicy, -1, "revalidate:clock-set-back"),
      (
        "max-age=600, immutable", [("Cache-Control", "max-age=0")], .useProtocolCachePolicy, -1,
        "revalidate:clock-set-back"
      ),
      ("max-age=600", [("Cache-Control", "max-stale=900")], .useProtocolCachePolicy, -1, "revalidate:clock-set-back"),
      ("max-age=600", [("Cache-Control", "max-stale")], .useProtocolCachePolicy, -1, "stale:max-stale"),
      ("max-age=600", [], .returnCacheDataElseLoad, -1, "stale:any-age"),
      ("max-age=600", [], .reloadRevalidatingCacheData, -1, "revalidate:revalidate"),
    ] as [(String, Lines, RequestPolicy, Double, String)])
  func receivedInFuture(
    value: String, request: Lines, policy: RequestPolicy, elapsed: Double, expected: String
  ) throws {
    let stored = try #require(Exchange(response: dated([("Cache-Control", value), ("ETag", "\"a\"")])).stored)
    let now = start.addingTimeInterval(elapsed)
    let decision = Reuse.decide(
      request: RequestHead(url: target, fields: fields(request)), stored: stored, policy: policy, now: now,
      options: CachingOptions())
    #expect(word(decision) == expected)
    #expect(stored.freshness.isFresh(at: now) == (elapsed >= 0))
    #expect((stored.freshness.timeToLive(at: now) > 0) == (elapsed >= 0))
  }

  @Test("A response that was received after the present time replaces no error, unless any age is accepted")
  func receivedInFutureAndError() throws {
    let fields: Lines = [("Cache-Control", "max-age=600, stale-if-error=900"), ("ETag", "\"a\"")]
    let stored = try #require(Exchange(response: dated(fields)).stored)
    let now = start.addingTimeInterval(-1)
    func mayServe(_ request: Lines, _ options: CachingOptions) -> Bool? {
      let decision = Reuse.decide(
        request: head(request), stored: stored, policy: .useProtocolCachePolicy, now: now, options: options)
      guard case .revalidate(_, let staleOnError, _) = decision else { return nil }
      return staleOnError.mayServe(after: .unreachable, now: now)
    }
    #expect(mayServe([], CachingOptions()) == false)
    #expect(mayServe([("Cache-Control", "stale-if-error=900")], CachingOptions()) == false)
    let anyAge = privately { $0.servesStaleWhenUnreachable = true }
    #expect(mayServe([], anyAge) == true)
    #expect(mayServe([("Cache-Control", "max-age=900")], anyAge) == false)
  }

  @Test("A time of receipt that is not a number is stale")
  func receivedAtNoTime() throws {
    var freshness = try #require(Exchange(response: Self.aged("5")).stored).freshness
    freshness.responseTime = Date(timeIntervalSinceReferenceDate: .nan)
    // Foundation cannot describe such a time in a failure.
    let isFresh = freshness.isFresh(at: start)
    #expect(!isFresh)
  }

  /// Row 48: the age never decreases; a clock that is set back cannot make a response younger.
  @Test func ageWithAClockSetBack() throws {
    let freshness = try #require(Exchange(response: Self.aged("5")).stored).freshness
    #expect(freshness.currentAge(at: start.addingTimeInterval(-1000)) == 5)
    #expect(freshness.currentAge(at: start.addingTimeInterval(10.5)) == 15.5)
    #expect(freshness.wholeAge(at: start.addingTimeInterval(10.5)) == 15)
    #expect(freshness.wholeAge(at: .distantFuture) == 2_147_483_648)
  }
}

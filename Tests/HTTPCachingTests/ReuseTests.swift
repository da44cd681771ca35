import Foundation
import HTTPCaching
import Testing

@Suite("Reuse of stored responses")
struct ReuseTests {
  typealias Case = DecisionCase

  static func entry(_ value: String, after elapsed: Double = 1, tag: Bool = true, options: CachingOptions = .init())
    -> Exchange
  {
    Exchange(
      response: dated([("Cache-Control", value)] + (tag ? [("ETag", "\"a\"")] : [])), elapsed: elapsed, options: options
    )
  }

  static func control(_ value: String) -> Lines { [("Cache-Control", value)] }

  static let fresh = entry("max-age=60")
  static let stale = entry("max-age=60", after: 61)

  static let plain: [Case] = [
    Case("fresh", "9111 4", rows: [22], fresh, gives: "serve:fresh"),
    Case("fresh-last-moment", "9111 4.2", rows: [22], entry("max-age=60", after: 59.9), gives: "serve:fresh"),
    Case("stale-at-lifetime", "9111 4.2", rows: [22, 52], entry("max-age=60", after: 60), gives: "revalidate:stale"),
    Case("stale", "9111 4.2.4", rows: [22, 52], stale, gives: "revalidate:stale"),
    Case(
      "stale-no-validator", "9111 4.3.1", rows: [22, 63], entry("max-age=60", after: 61, tag: false),
      gives: "fetch:stale"),
    Case(
      "no-cache-empty-list", "9111 5.2.2.4", rows: [12, 23], entry("max-age=60, no-cache=\"\""),
      gives: "revalidate:no-cache"),
    Case(
      "response-pragma", "9111 5.4", rows: [81],
      Exchange(response: dated([("Cache-Control", "max-age=60"), ("Pragma", "no-cache")])), gives: "serve:fresh"),
    Case(
      "cookie-and-set-cookie", "9111 7.3", rows: [22],
      Exchange(response: dated([("Cache-Control", "max-age=60"), ("Set-Cookie", "a=b")])), [("Cookie", "a=b")],
      gives: "serve:fresh"),
    Case("head-from-get", "9110 9.3.2", rows: [21, 22], fresh, method: "HEAD", gives: "serve:fresh"),
    Case("method-post", "9111 4", rows: [25], fresh, method: "POST", gives: "fetch:write-through"),
    Case("method-unknown", "9111 4", rows: [25], fresh, method: "M-SEARCH", gives: "fetch:write-through"),
    Case("mode-changed", "9111 3", rows: [5, 51], entry("max-age=60"), gives: "serve:fresh"),
  ]

  static let requestDirectives: [Case] = [
    Case("request-pragma-other", "9111 5.4", rows: [81], fresh, [("Pragma", "x")], gives: "serve:fresh"),
    Case(
      "request-pragma-with-cache-control", "9111 5.4", rows: [81], fresh,
      [("Pragma", "no-cache"), ("Cache-Control", "x")],
      gives: "serve:fresh"),
    Case(
      "request-max-age", "9111 5.2.1.1", rows: [78], entry("max-age=60", after: 20), control("max-age=10"),
      gives: "revalidate:request-max-age"),
    Case(
      "request-max-age-met", "9111 5.2.1.1", rows: [78], entry("max-age=60", after: 20), control("max-age=30"),
      gives: "serve:fresh"),
    Case(
      "request-max-age-malformed", "9111 4.2.1", rows: [36, 78], fresh, control("max-age=x"),
      gives: "revalidate:request-max-age"),
    Case(
      "request-max-age-and-stale", "9111 5.2.1.2", rows: [78], entry("max-age=60", after: 20),
      control("max-age=10, max-stale=10"), gives: "serve:max-stale"),
    Case(
      "request-max-age-and-min-fresh", "9111 5.2.1.3", rows: [78], entry("max-age=60", after: 20),
      control("max-age=10, max-stale=10, min-fresh=41"), gives: "revalidate:request-max-age"),
    Case(
      "request-max-age-and-min-fresh-met", "9111 5.2.1.3", rows: [78], entry("max-age=60", after: 20),
      control("max-age=10, max-stale=10, min-fresh=40"), gives: "serve:max-stale"),
    Case("min-fresh", "9111 5.2.1.3", rows: [78], fresh, control("min-fresh=60"), gives: "revalidate:min-fresh"),
    Case("min-fresh-met", "9111 5.2.1.3", rows: [78], fresh, control("min-fresh=59"), gives: "serve:fresh"),
    Case("max-stale-any", "9111 5.2.1.2", rows: [52, 78], stale, control("max-stale"), gives: "stale:max-stale"),
    Case("max-stale-enough", "9111 5.2.1.2", rows: [52, 78], stale, control("max-stale=1"), gives: "stale:max-stale"),
    Case(
      "max-stale-little", "9111 5.2.1.2", rows: [52, 78], entry("max-age=60", after: 70), control("max-stale=9"),
      gives: "revalidate:stale"),
    Case("max-stale-malformed", "9111 5.2.1.2", rows: [78], stale, control("max-stale=x"), gives: "revalidate:stale"),
    Case(
      "max-stale-in-open-quote", "9111 5.2.1.2", rows: [77, 78], stale, control("x=\"a, max-stale"),
      gives: "revalidate:stale"),
    Case(
      "max-stale-forbidden", "9111 5.2.2.2", rows: [51, 53], entry("max-age=60, must-revalidate", after: 61),
      control("max-stale"), gives: "revalidate:must-revalidate"),
    Case("only-if-cached-fresh", "9111 5.2.1.7", rows: [78], fresh, control("only-if-cached"), gives: "serve:fresh"),
    Case(
      "only-if-cached-stale", "9111 5.2.1.7", rows: [78], stale, control("only-if-cached"), gives: "504:only-if-cached"),
    Case(
      "only-if-cached-max-stale", "9111 5.2.1.7", rows: [78], stale, control("only-if-cached, max-stale"),
      gives: "stale:max-stale"),
    Case(
      "only-if-cached-no-background", "9111 5.2.1.7", rows: [57, 78],
      entry("max-age=60, stale-while-revalidate=9", after: 61), control("only-if-cached"),
      gives: "stale:stale-while-revalidate"),
    Case("request-immutable", "8246 2", rows: [93], stale, control("immutable"), gives: "revalidate:stale"),
  ]

  static let swr = "max-age=60, stale-while-revalidate=30"

  static let staleService: [Case] = [
    Case(
      "swr-twice", "9111 4.2.1", rows: [36, 59], entry(swr + ", stale-while-revalidate=5", after: 70),
      gives: "revalidate:stale"),
    Case(
      "swr-request-min-fresh", "9111 5.2.1.3", rows: [57, 78], entry(swr, after: 61), control("min-fresh=0"),
      gives: "revalidate:stale"),
    Case(
      "swr-request-max-stale-malformed", "9111 5.2.1.2", rows: [57, 78], entry(swr, after: 70),
      control("max-stale=x"), gives: "revalidate:stale"),
    Case(
      "swr-request-max-stale-past", "5861 3", rows: [59, 78], entry(swr, after: 95), control("max-stale=40"),
      gives: "stale:max-stale"),
    Case(
      "must-revalidate-malformed", "9111 5.2.2.2", rows: [53, 77], entry(swr + ", must-revalidate=x", after: 61),
      gives: "revalidate:must-revalidate"),
    Case(
      "swr-client-current", "5861 3", rows: [57, 65], entry(swr, after: 61), [("If-None-Match", "\"a\"")], gives: "304+"
    ),
    Case("swr-range", "5861 3", rows: [57, 75], entry(swr, after: 61), [("Range", "bytes=0-1")], gives: "206 0-1+"),
  ]

  static func secure(_ value: String, after elapsed: Double = 1, length: Bool = true, url: URL = target) -> Exchange {
    Exchange(
      url: url,
      response: dated([("Cache-Control", value), ("ETag", "\"a\"")] + (length ? [("Content-Length", "11")] : [])),
      elapsed: elapsed)
  }

  static let policies: [Case] = [
    Case("policy-reload", "9111 4", rows: [22], fresh, policy: .reloadIgnoringLocalCacheData, gives: "fetch:reload"),
    Case(
      "policy-reload-remote", "9111 4", rows: [22], fresh, policy: .reloadIgnoringLocalAndRemoteCacheData,
      gives: "fetch:reload"),
    Case(
      "policy-else-load-stale", "9111 4.2.4", rows: [52], stale, policy: .returnCacheDataElseLoad,
      gives: "stale:any-age"),
    Case(
      "policy-else-load-no-cache", "9111 4.2.4", rows: [52], entry("no-cache"), policy: .returnCacheDataElseLoad,
      gives: "stale:any-age"),
    Case(
      "policy-dont-load-stale", "9111 4.2.4", rows: [52], stale, policy: .returnCacheDataDontLoad,
      gives: "stale:any-age"),
    Case(
      "policy-dont-load-post", "9111 4", rows: [25], fresh, method: "POST", policy: .returnCacheDataDontLoad,
      gives: "504:do-not-load"),
    Case(
      "policy-dont-load-if-match", "9111 4.3.2", rows: [66], fresh, [("If-Match", "*")],
      policy: .returnCacheDataDontLoad, gives: "504:do-not-load"),
    Case(
      "policy-revalidate", "9111 4.3", rows: [63], fresh, policy: .reloadRevalidatingCacheData,
      gives: "revalidate:revalidate"),
    Case(
      "immutable-reload", "8246 2", rows: [92], secure("max-age=60, immutable"), policy: .reloadRevalidatingCacheData,
      gives: "serve:immutable"),
    Case(
      "immutable-max-age-0", "8246 2.1", rows: [92, 94], secure("max-age=60, immutable"), control("max-age=0"),
      gives: "serve:immutable"),
    Case(
      "immutable-no-cache", "8246 2.1", rows: [94], secure("max-age=60, immutable"), control("no-cache"),
      gives: "revalidate:request-no-cache"),
    Case(
      "immutable-argument", "8246 2", rows: [93], secure("max-age=60, immutable=x"), control("max-age=0"),
      gives: "serve:immutable"),
    Case(
      "immutable-in-open-quote", "8246 2", rows: [77, 92], secure("max-age=60, x=\"a, immutable"), control("max-age=0"),
      gives: "revalidate:request-max-age"),
    Case(
      "immutable-http", "8246 3", rows: [95], secure("max-age=60, immutable", url: URL(string: "http://example.com/")!),
      policy: .reloadRevalidatingCacheData, gives: "revalidate:revalidate"),
    Case(
      "immutable-no-length", "8246 3", rows: [95], secure("max-age=60, immutable", length: false),
      policy: .reloadRevalidatingCacheData, gives: "revalidate:revalidate"),
    Case(
      "immutable-force-reload", "8246 3", rows: [95], secure("max-age=60, immutable"),
      policy: .reloadIgnoringLocalCacheData, gives: "fetch:reload"),
  ]

  @Test("Each request gets the expected decision", arguments: plain + requestDirectives + staleService + policies)
  func decides(_ test: Case) {
    #expect(test.exchange.then(test.request, method: test.method, policy: test.policy) == test.expected)
  }

  /// Rows 5 and 51: a shared cache does not trust responses that a private cache stored, and the reverse.
  @Test func aChangedModeRequiresValidation() throws {
    let stored = try #require(Self.fresh.stored)
    let decision = Reuse.decide(
      request: RequestHead(url: target), stored: stored, policy: .useProtocolCachePolicy, now: start, options: shared())
    #expect(word(decision) == "revalidate:mode-changed")
  }

  /// Row 24; RFC 9111, 4 and 5.1.
  @Test func ageIsReplaced() throws {
    let exchange = Exchange(
      response: dated([("Cache-Control", "max-age=600"), ("Age", "30"), ("age", "7")]), elapsed: 3.9)
    let stored = try #require(exchange.stored)
    guard case .serve(let age, _)? = exchange.decision() else {
      Issue.record("not served")
      return
    }
    #expect(age == 33)
    #expect(Reuse.responseFields(for: stored, age: age).values(of: "Age") == ["33"])
  }

  struct MissCase: RequirementCase {
    let id: String
    let section: String
    let rows: [Int]
    var method = "GET"
    var request: Lines = []
    var policy = RequestPolicy.useProtocolCachePolicy
    let expected: MissDecision
  }

  static let misses: [MissCase] = [
    MissCase(id: "miss", section: "9111 4", rows: [22], expected: .fetch(.miss)),
    MissCase(
      id: "miss-only-if-cached", section: "9111 5.2.1.7", rows: [78], request: control("only-if-cached"),
      expected: .gatewayTimeout(.onlyIfCached)),
    MissCase(
      id: "miss-dont-load", section: "9111 4", rows: [22], policy: .returnCacheDataDontLoad,
      expected: .gatewayTimeout(.doNotLoad)),
    MissCase(
      id: "miss-else-load", section: "9111 4", rows: [22], policy: .returnCacheDataElseLoad, expected: .fetch(.miss)),
    MissCase(id: "miss-post", section: "9111 4", rows: [1, 25], method: "POST", expected: .bypass(.writeThrough)),
    MissCase(id: "miss-head", section: "9111 4.3.5", rows: [73], method: "HEAD", expected: .bypass(.headOnlyUpdates)),
    MissCase(
      id: "miss-no-store", section: "9111 5.2.1.5", rows: [8], request: control("no-store"),
      expected: .bypass(.requestNoStore)),
  ]

  @Test("Each request gets the expected decision if nothing is stored", arguments: misses)
  func nothingStored(_ test: MissCase) {
    let request = RequestHead(method: test.method, url: target, fields: fields(test.request))
    #expect(Reuse.decideMiss(request: request, policy: test.policy, options: CachingOptions()) == test.expected)
  }

  struct ErrorCase: RequirementCase {
    let id: String
    let section: String
    let rows: [Int]
    let control: String
    var request: Lines = []
    var options = CachingOptions()
    var policy = RequestPolicy.useProtocolCachePolicy
    let failure: StaleOnError.Failure
    /// Seconds between the response and the failure.
    var elapsed = 70.0
    let serves: Bool
  }

  static let errors: [ErrorCase] = [
    ErrorCase(
      id: "sie-503", section: "5861 4", rows: [60], control: "max-age=60, stale-if-error=20", failure: .status(503),
      serves: true),
    ErrorCase(
      id: "sie-unreachable", section: "5861 4", rows: [60], control: "max-age=60, stale-if-error=20",
      failure: .unreachable, serves: true),
    ErrorCase(
      id: "sie-404", section: "5861 4", rows: [60], control: "max-age=60, stale-if-error=20", failure: .status(404),
      serves: false),
    ErrorCase(
      id: "sie-501", section: "5861 4", rows: [60], control: "max-age=60, stale-if-error=20", failure: .status(501),
      serves: false),
    ErrorCase(
      id: "sie-past", section: "5861 4", rows: [61], control: "max-age=60, stale-if-error=9", failure: .status(500),
      serves: false),
    ErrorCase(
      id: "sie-none", section: "9111 4.2.4", rows: [52, 69], control: "max-age=60", failure: .status(500), serves: false
    ),
    ErrorCase(
      id: "sie-request", section: "5861 4", rows: [60], control: "max-age=60", request: control("stale-if-error=20"),
      failure: .status(502), serves: true),
    ErrorCase(
      id: "sie-request-past", section: "5861 4", rows: [61], control: "max-age=60, stale-if-error=99",
      request: control("stale-if-error=5"), failure: .status(504), serves: false),
    ErrorCase(
      id: "sie-default", section: "5861 4", rows: [60], control: "max-age=60",
      options: privately { $0.staleIfErrorByDefault = 20 }, failure: .status(500), serves: true),
    ErrorCase(
      id: "sie-must-revalidate", section: "9111 5.2.2.2", rows: [51, 53, 54],
      control: "max-age=60, stale-if-error=20, must-revalidate", failure: .unreachable, serves: false),
    ErrorCase(
      id: "sie-no-cache", section: "9111 5.2.2.4", rows: [23, 51], control: "max-age=60, stale-if-error=20, no-cache",
      failure: .status(500), serves: false),
    ErrorCase(
      id: "sie-s-maxage", section: "9111 5.2.2.10", rows: [56], control: "s-maxage=60, stale-if-error=20",
      options: shared(), failure: .status(500), serves: false),
    ErrorCase(
      id: "sie-proxy-revalidate", section: "9111 5.2.2.8", rows: [55],
      control: "max-age=60, stale-if-error=20, proxy-revalidate", options: shared(), failure: .status(500),
      serves: false),
    ErrorCase(
      id: "sie-request-no-cache", section: "9111 5.2.1.4", rows: [52, 78], control: "max-age=60, stale-if-error=20",
      request: control("no-cache"), failure: .status(500), serves: false),
    ErrorCase(
      id: "sie-request-max-age", section: "9111 5.2.1.1", rows: [52, 78], control: "max-age=60, stale-if-error=20",
      request: control("max-age=69"), failure: .status(500), serves: false),
    ErrorCase(
      id: "sie-request-max-age-unreachable", section: "9111 5.2.1.1", rows: [52, 78],
      control: "max-age=60, stale-if-error=20", request: control("max-age=69"), failure: .unreachable, serves: false),
    ErrorCase(
      id: "sie-request-max-age-met", section: "9111 5.2.1.1", rows: [60, 78], control: "max-age=60, stale-if-error=20",
      request: control("max-age=70"), failure: .status(500), serves: true),
    ErrorCase(
      id: "sie-request-min-fresh", section: "9111 5.2.1.3", rows: [52, 78], control: "max-age=60, stale-if-error=20",
      request: control("min-fresh=0"), failure: .status(500), serves: false),
    ErrorCase(
      id: "sie-request-and-its-max-age", section: "9111 5.2.1.1", rows: [52, 78], control: "max-age=60",
      request: control("max-age=0, stale-if-error=20"), failure: .status(500), serves: false),
    ErrorCase(
      id: "sie-request-and-its-min-fresh", section: "9111 5.2.1.3", rows: [52, 78], control: "max-age=60",
      request: control("min-fresh=1, stale-if-error=20"), failure: .unreachable, serves: false),
    ErrorCase(
      id: "sie-request-max-stale", section: "9111 5.2.1.2", rows: [60, 78], control: "max-age=60, stale-if-error=20",
      request: control("max-stale=5"), failure: .status(500), serves: true),
    ErrorCase(
      id: "disconnected-request-max-age", section: "9111 5.2.1.1", rows: [52, 78], control: "max-age=60",
      request: control("max-age=69"), options: privately { $0.servesStaleWhenUnreachable = true },
      failure: .unreachable, serves: false),
    ErrorCase(
      id: "disconnected-request-min-fresh", section: "9111 5.2.1.3", rows: [52, 78], control: "max-age=60",
      request: control("min-fresh=1"), options: privately { $0.servesStaleWhenUnreachable = true },
      failure: .unreachable, serves: false),
    ErrorCase(
      id: "disconnected", section: "9111 4.2.4", rows: [52], control: "max-age=60", failure: .unreachable, serves: false
    ),
    ErrorCase(
      id: "disconnected-option", section: "9111 4.2.4", rows: [52], control: "max-age=60",
      options: privately { $0.servesStaleWhenUnreachable = true }, failure: .unreachable, serves: true),
    ErrorCase(
      id: "disconnected-option-503", section: "9111 4.2.4", rows: [52], control: "max-age=60",
      options: privately { $0.servesStaleWhenUnreachable = true }, failure: .status(503), serves: false),
    ErrorCase(
      id: "disconnected-must-revalidate", section: "9111 5.2.2.2", rows: [53, 54],
      control: "max-age=60, must-revalidate", options: privately { $0.servesStaleWhenUnreachable = true },
      failure: .unreachable, serves: false),
  ]

  @Test("A stale response is served on failure only if stale-if-error or an option permits it", arguments: errors)
  func staleOnError(_ test: ErrorCase) {
    let exchange = Self.entry(test.control, after: test.elapsed, options: test.options)
    guard case .revalidate(_, let staleOnError, _)? = exchange.decision(test.request, policy: test.policy) else {
      Issue.record("not validated")
      return
    }
    #expect(staleOnError.mayServe(after: test.failure, now: start.addingTimeInterval(test.elapsed)) == test.serves)
  }

  /// Row 22: the policies that ignore or revalidate remote caches send directives to them.
  @Test func policiesSpeakToOtherCaches() {
    #expect(RequestPolicy.reloadIgnoringLocalAndRemoteCacheData.requestFields["cache-control"] == "no-cache")
    #expect(RequestPolicy.reloadRevalidatingCacheData.requestFields["cache-control"] == "max-age=0")
    #expect(RequestPolicy.useProtocolCachePolicy.requestFields.isEmpty)
  }
}

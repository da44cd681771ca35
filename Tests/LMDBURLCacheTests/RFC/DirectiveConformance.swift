/// Directives of responses and requests, and Pragma.
enum DirectiveConformance {
  private static let tag: FieldLines = [("ETag", "\"v\"")]

  static let responses: [ConformanceCase] = [
    ConformanceCase(
      "no-store", "9111 5.2.2.5", .required, rows: [4, 80], .origin(control("no-store")), .origin()),
    ConformanceCase(
      "no-store-with-max-age", "9111 5.2.2.5", .required, rows: [4], .origin(control("max-age=3600, no-store")),
      .origin()),
    ConformanceCase(
      "no-store-mixed-case", "9111 5.2", .required, rows: [4, 77], .origin(control("No-StOrE, max-age=3600")), .origin()
    ),
    ConformanceCase(
      "no-store-with-argument", "9111 5.2.2.5", .required, rows: [4, 77],
      .origin(control("no-store=\"x\", max-age=3600")), .origin()),
    ConformanceCase(
      "no-store-behind-open-quote", "9111 5.2", .required, rows: [4, 77],
      .origin(control("foo=\"a, no-store, max-age=3600")), .origin()),
    ConformanceCase(
      "no-store-second-line", "9110 5.3", .required, rows: [4, 77],
      .origin([("Cache-Control", "max-age=3600"), ("Cache-Control", "no-store")]), .origin()),
    ConformanceCase(
      "no-store-leaves-older-out", "9111 5.2.2.5", .recommended, rows: [4],
      .origin(control("max-age=60", tag)), .origin(control("no-store"), after: 61) { $0.expected = .validated },
      .origin(after: 1)),
    ConformanceCase(
      "no-store-in-a-quote-is-none", "9111 5.2", .recommended, rows: [77],
      .origin(control("max-age=3600, foo=\"a, no-store\"")), .stored()),
    ConformanceCase(
      "no-cache", "9111 5.2.2.4", .required, rows: [23, 80], .origin(control("no-cache, max-age=3600")), .origin()),
    ConformanceCase(
      "no-cache-mixed-case", "9111 5.2", .required, rows: [23, 77], .origin(control("No-CaChE, max-age=3600")),
      .origin()),
    ConformanceCase(
      "no-cache-validated", "9111 5.2.2.4", .recommended, rows: [23, 63],
      .origin(control("no-cache, max-age=3600", tag)), .validated(tag, sees: [("If-None-Match", "\"v\"")]),
      .validated(tag, after: 1)),
    ConformanceCase(
      "no-cache-last-modified", "9111 5.2.2.4", .recommended, rows: [23, 63],
      .origin(control("no-cache", [("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")])),
      .validated(sees: [("If-Modified-Since", "Thu, 01 Jan 2026 00:00:00 GMT")])),
    ConformanceCase(
      "no-cache-field", "9111 5.2.2.4", .required, rows: [12],
      .origin(control("max-age=3600, no-cache=\"x-a\"", [("X-A", "1"), ("X-B", "2")]), shows: [("X-A", "1")]),
      .stored(shows: [("X-A", nil), ("X-B", "2")])),
    ConformanceCase(
      "no-cache-fields", "9111 5.2.2.4", .required, rows: [12],
      .origin(control("no-cache=\"x-a, X-B\", max-age=3600", [("X-A", "1"), ("X-B", "2"), ("X-C", "3")])),
      .stored(shows: [("X-A", nil), ("X-B", nil), ("X-C", "3")])),
    ConformanceCase(
      "no-cache-field-token", "9111 5.2.2.4", .required, rows: [12, 77],
      .origin(control("max-age=3600, no-cache=x-a", [("X-A", "1")])), .stored(shows: [("X-A", nil)])),
    ConformanceCase(
      "no-cache-fields-own-line", "9111 5.2.2.4", .required, rows: [12, 77],
      .origin([
        ("Cache-Control", "no-cache=\"x-a\""), ("Cache-Control", "max-age=3600"), ("X-A", "1"), ("X-B", "2"),
      ]), .stored(shows: [("X-A", nil), ("X-B", "2")])),
    ConformanceCase(
      "private-field-in-private-cache", "9111 5.2.2.7", .recommended, rows: [13],
      .origin(control("max-age=3600, private=\"x-a\"", [("X-A", "1")])), .stored(shows: [("X-A", "1")])),
    ConformanceCase(
      "private-heuristic", "9111 5.2.2.7", .recommended, rows: [7],
      .origin(control("private", [("Last-Modified", "@-864000")])), .stored()),
    ConformanceCase(
      "immutable-fresh", "8246 2", .recommended, rows: [92], .origin(control("max-age=3600, immutable")),
      .stored(after: 10)),
    ConformanceCase(
      "immutable-stale", "8246 2", .required, rows: [93], .origin(control("max-age=60, immutable", tag)),
      .validated(tag, after: 61)),
    ConformanceCase(
      "immutable-over-http-revalidates", "8246 3", .recommended, rows: [95],
      .origin(control("max-age=3600, immutable", tag)),
      .validated(tag, control("max-age=0"))),
    ConformanceCase(
      "unknown-directive-stale", "9111 5.2.3", .required, rows: [77], .origin(control("max-age=1, forever")),
      .origin(after: 2)),
    ConformanceCase(
      "pragma-in-a-response", "9111 5.4", .optional, rows: [81],
      .origin(control("max-age=3600", [("Pragma", "no-cache")])), .stored()),
    ConformanceCase(
      "pragma-in-a-response-heuristic", "9111 5.4", .optional, rows: [81],
      .origin([("Pragma", "no-cache"), ("Last-Modified", "@-864000")]), .stored()),
    ConformanceCase(
      "pragma-unknown-in-a-response", "9111 5.4", .optional, rows: [81],
      .origin(control("max-age=3600", [("Pragma", "foo")])), .stored()),
    ConformanceCase(
      "attachment-heuristic", "9111 4.2.2", .optional, rows: [47],
      .origin([("Last-Modified", "@-864000"), ("Content-Disposition", "attachment; filename=a.txt")]), .stored()),
    ConformanceCase(
      "cookie-in-the-request", "9111 4.1", .recommended, rows: [29], .origin(control("max-age=3600")),
      .stored([("Cookie", "a=b")])),
    ConformanceCase(
      "no-store-newer-than-fresh", "9111 5.2.2.5", .optional, rows: [4], .origin(control("max-age=3600")),
      .origin(control("no-store"), control("no-cache")), .origin(after: 1)),
    ConformanceCase(
      "set-cookie-is-stored", "9111 7.3", .optional, rows: [9],
      .origin(control("max-age=3600", [("Set-Cookie", "a=b")])),
      .stored(shows: [("Set-Cookie", "a=b")])),
    ConformanceCase(
      "query-told-apart", "9111 2", .required, rows: [21], .origin(control("max-age=3600"), suffix: "?a=1"),
      .origin(control("max-age=3600"), suffix: "?a=2"), .stored(bodyOf: 0, suffix: "?a=1"),
      .stored(bodyOf: 1, suffix: "?a=2")),
    ConformanceCase(
      "fragment-plays-no-part", "9111 2", .recommended, rows: [21], .origin(control("max-age=3600"), suffix: "#a"),
      .stored(suffix: "#b"), .stored()),
    ConformanceCase(
      "head-does-not-serve-get", "9111 4", .required, rows: [21], .origin(control("max-age=3600"), method: "HEAD"),
      .origin()),
    ConformanceCase(
      "options-is-not-stored", "9111 3", .required, rows: [1], .origin(control("max-age=3600"), method: "OPTIONS"),
      .origin(control("max-age=3600"), method: "OPTIONS"), .origin()),
  ]

  static let requests: [ConformanceCase] = [
    request("request-max-age-0", "9111 5.2.1.1", rows: [78], control("max-age=0"), after: 1, reused: false),
    request("request-max-age-passed", "9111 5.2.1.1", rows: [78], control("max-age=10"), after: 20, reused: false),
    request("request-max-age-kept", "9111 5.2.1.1", rows: [78], control("max-age=30"), after: 20, reused: true),
    request(
      "request-max-age-and-age", "9111 5.2.1.1", rows: [78], [("Age", "1800")], control("max-age=600"), after: 1,
      reused: false),
    request("request-min-fresh", "9111 5.2.1.3", rows: [78], control("min-fresh=3600"), after: 1, reused: false),
    request("request-min-fresh-kept", "9111 5.2.1.3", rows: [78], control("min-fresh=60"), after: 1, reused: true),
    request(
      "request-min-fresh-and-age", "9111 5.2.1.3", rows: [78], [("Age", "1800")], control("min-fresh=2400"), after: 1,
      reused: false),
    request("request-max-stale", "9111 5.2.1.2", rows: [52, 78], control("max-stale=100"), after: 3650, reused: true),
    request(
      "request-max-stale-any", "9111 5.2.1.2", rows: [52, 78], control("max-stale"), after: 36_000, reused: true),
    request(
      "request-max-stale-passed", "9111 5.2.1.2", .required, rows: [52, 78], control("max-stale=100"), after: 3750,
      reused: false),
    request(
      "request-max-stale-and-age", "9111 5.2.1.2", rows: [78], [("Age", "3600")], control("max-stale=100"), after: 50,
      reused: true),
    request("request-no-cache", "9111 5.2.1.4", rows: [78], control("no-cache"), after: 1, reused: false),
    request("request-no-store", "9111 5.2.1.5", .optional, rows: [8], control("no-store"), after: 1, reused: false),
    request("request-only-if-cached", "9111 5.2.1.7", rows: [78], control("only-if-cached"), after: 1, reused: true),
    request("request-pragma", "9111 5.4", .optional, rows: [81], [("Pragma", "no-cache")], after: 1, reused: false),
    request(
      "request-pragma-with-control", "9111 5.4", .optional, rows: [81],
      [("Pragma", "no-cache"), ("Cache-Control", "max-age=60")], after: 1, reused: true),
    request("request-pragma-unknown", "9111 5.4", rows: [81], [("Pragma", "foo")], after: 1, reused: true),
    request(
      "request-unknown-directive", "9111 5.2.3", .required, rows: [77], control("foo=bar"), after: 1, reused: true),
    request("request-no-transform", "9111 5.2.1.6", rows: [79], control("no-transform"), after: 1, reused: true),
    request("request-max-age-quoted", "9111 5.2", rows: [77, 78], control("max-age=\"0\""), after: 1, reused: false),
    request(
      "request-directives-in-two-lines", "9110 5.3", rows: [77, 78],
      [("Cache-Control", "foo"), ("Cache-Control", "no-cache")], after: 1, reused: false),
    request("request-mixed-case", "9111 5.2", rows: [77, 78], control("MAX-AGE=0"), after: 1, reused: false),
    ConformanceCase(
      "request-no-cache-validates-etag", "9111 5.2.1.4", .recommended, rows: [63, 78],
      .origin(control("max-age=3600", tag)),
      .validated(tag, control("no-cache"), sees: [("If-None-Match", "\"v\"")])),
    ConformanceCase(
      "request-no-cache-validates-date", "9111 5.2.1.4", .recommended, rows: [63, 78],
      .origin(control("max-age=3600", [("Last-Modified", "@-1000")])),
      .validated(after: 1, control("no-cache"))),
    ConformanceCase(
      "request-only-if-cached-missing", "9111 5.2.1.7", .recommended, rows: [78],
      .stored(control("only-if-cached"), status: 504, body: "")),
    ConformanceCase(
      "request-only-if-cached-stale", "9111 5.2.1.7", .recommended, rows: [78], .origin(control("max-age=1")),
      .stored(after: 2, control("only-if-cached"), status: 504, body: "")),
    ConformanceCase(
      "request-no-store-keeps-nothing", "9111 5.2.1.5", .required, rows: [8],
      .origin(control("max-age=3600"), control("no-store")), .origin()),
    ConformanceCase(
      "request-max-stale-forbidden", "9111 5.2.2.2", .required, rows: [51, 53],
      .origin(control("max-age=1, must-revalidate")), .origin(after: 2, control("max-stale=100"))),
    ConformanceCase(
      "request-max-stale-no-cache", "9111 5.2.2.4", .required, rows: [23, 51],
      .origin(control("max-age=1, no-cache")), .origin(after: 2, control("max-stale=100"))),
  ]

  private static func request(
    _ id: String, _ section: String, _ kind: ConformanceCase.Kind = .recommended, rows: [Int], _ more: FieldLines,
    _ request: FieldLines, after: Double, reused: Bool
  ) -> ConformanceCase {
    ConformanceCase(
      id, section, kind, rows: rows, .origin(control("max-age=3600", more)),
      reused ? .stored(after: after, request) : .origin(after: after, request))
  }

  private static func request(
    _ id: String, _ section: String, _ kind: ConformanceCase.Kind = .recommended, rows: [Int], _ lines: FieldLines,
    after: Double, reused: Bool
  ) -> ConformanceCase {
    request(id, section, kind, rows: rows, [], lines, after: after, reused: reused)
  }

  static let all = responses + requests
}

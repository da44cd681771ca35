/// Returns a `Cache-Control` line with the given directives, and further lines.
func control(_ value: String, _ more: FieldLines = []) -> FieldLines { [("Cache-Control", value)] + more }

/// A response with the given lines and a lifetime of an hour: it is reused, or the origin is asked again.
private func lifetime(
  _ id: String, _ section: String = "9111 4.2.1", _ kind: ConformanceCase.Kind = .recommended, rows: [Int],
  _ reply: FieldLines, status: Int = 200, after: Double = 1, reused: Bool, sendsDate: Bool = true
) -> ConformanceCase {
  // Foundation drops the content of a redirect without Location; see `redirect-without-location`.
  let body: String? = [301, 302, 303, 307, 308].contains(status) ? "" : nil
  return ConformanceCase(
    id, section, kind, rows: rows, .origin(reply, status: status, body: body) { $0.sendsDate = sendsDate },
    reused ? .stored(after: after) : .origin(status: status, after: after, body: body))
}

/// Lifetimes from max-age, Expires and Age.
enum FreshnessConformance {
  static let maxAge: [ConformanceCase] = [
    lifetime("fresh-max-age", rows: [22, 35, 80], control("max-age=3600"), reused: true),
    lifetime("fresh-max-age-to-the-second", rows: [22, 35], control("max-age=60"), after: 59, reused: true),
    lifetime(
      "stale-at-max-age", "9111 4.2", .required, rows: [22, 52], control("max-age=60"), after: 60, reused: false),
    lifetime("stale-max-age", "9111 4.2", .required, rows: [22, 52], control("max-age=60"), after: 61, reused: false),
    lifetime("stale-max-age-0", "9111 4.2", .required, rows: [22, 52], control("max-age=0"), reused: false),
    lifetime("no-lifetime-at-all", "9111 4.2", .required, rows: [47], [], reused: false),
    lifetime("max-age-2^31-1", "9111 1.2.2", rows: [37], control("max-age=2147483647"), reused: true),
    lifetime("max-age-2^31", "9111 1.2.2", rows: [37], control("max-age=2147483648"), reused: true),
    lifetime("max-age-2^31+1", "9111 1.2.2", rows: [37], control("max-age=2147483649"), reused: true),
    lifetime(
      "max-age-beyond-64-bits", "9111 1.2.2", rows: [37], control("max-age=99999999999999999999999"), reused: true),
    lifetime("max-age-leading-zeros", rows: [35], control("max-age=003600"), reused: true),
    lifetime("max-age-mixed-case", "9111 5.2", .required, rows: [77], control("MaX-aGe=3600"), reused: true),
    lifetime("max-age-quoted", "9111 5.2", rows: [77], control("max-age=\"3600\""), reused: true),
    lifetime(
      "max-age-among-unknown", "9111 5.2.3", .required, rows: [77], control("foo, max-age=3600, bar=\"1\""),
      reused: true),
    lifetime("max-age-empty-elements", "9110 5.6.1", .required, rows: [77], control(",, max-age=3600 ,"), reused: true),
    lifetime("max-age-no-space", "9110 5.6.1", .required, rows: [77], control("public,max-age=3600"), reused: true),
    lifetime("max-age-tabs", "9110 5.6.1", .required, rows: [77], control("public\t,\tmax-age=3600"), reused: true),
    lifetime(
      "max-age-inside-a-quote", "9111 5.2", .required, rows: [77], control("foo=\"a, max-age=3600\", max-age=1"),
      after: 2, reused: false),
    lifetime(
      "max-age-inside-a-quote-behind", "9111 5.2", .required, rows: [77], control("max-age=1, foo=\"a, max-age=3600\""),
      after: 2, reused: false),
    lifetime(
      "max-age-escaped-quote", "9111 5.2", .required, rows: [77], control("foo=\"a\\\", max-age=3600\", max-age=1"),
      after: 2, reused: false),
    lifetime(
      "max-age-two-lines", "9110 5.3", .required, rows: [77],
      [("Cache-Control", "public"), ("Cache-Control", "max-age=3600")], reused: true),
    lifetime("max-age-single-quotes", "9111 4.2.1", .required, rows: [36], control("max-age='3600'"), reused: false),
    lifetime("max-age-negative", "9111 4.2.1", .required, rows: [36], control("max-age=-3600"), reused: false),
    lifetime("max-age-plus", "9111 4.2.1", .required, rows: [36], control("max-age=+3600"), reused: false),
    lifetime("max-age-decimal", "9111 4.2.1", .required, rows: [36], control("max-age=3600.5"), reused: false),
    lifetime("max-age-letters-before", "9111 4.2.1", .required, rows: [36], control("max-age=a3600"), reused: false),
    lifetime("max-age-letters-behind", "9111 4.2.1", .required, rows: [36], control("max-age=3600a"), reused: false),
    lifetime("max-age-hexadecimal", "9111 4.2.1", .required, rows: [36], control("max-age=0xe10"), reused: false),
    lifetime("max-age-no-value", "9111 4.2.1", .required, rows: [36], control("max-age"), reused: false),
    lifetime("max-age-empty-value", "9111 4.2.1", .required, rows: [36], control("max-age="), reused: false),
    lifetime("max-age-space-before-equals", "9111 5.2", .required, rows: [36], control("max-age =3600"), reused: false),
    lifetime("max-age-space-behind-equals", "9111 5.2", .required, rows: [36], control("max-age= 3600"), reused: false),
    lifetime("max-age-open-quote", "9111 5.2", .required, rows: [36, 77], control("max-age=\"3600"), reused: false),
    lifetime("max-age-semicolon", "9111 5.2", .required, rows: [36], control("max-age=3600;foo"), reused: false),
    lifetime(
      "max-age-decimal-zero", "9111 4.2.1", .required, rows: [36], control("max-age=3600.0"), reused: false),
    lifetime(
      "max-age-with-invalid-directives", "9110 5.6.1", rows: [77], control("max-age=3600, &&&&, =5, ;, \"a\""),
      reused: true
    ),
    lifetime(
      "max-age-quoted-with-a-quote", "9111 5.2", .required, rows: [77],
      control("foo=\"max-age=3600\", max-age=\"1\""), after: 2, reused: false),
    lifetime("max-age-thousands", "9111 5.2", .required, rows: [36], control("max-age=3.600"), reused: false),
    lifetime("max-age-longer-name", "9111 5.2", .required, rows: [77], control("x-max-age=3600"), reused: false),
    lifetime(
      "max-age-twice-strict-behind", "9111 4.2.1", rows: [36], control("max-age=3600, max-age=1"), after: 2,
      reused: false),
    lifetime(
      "max-age-twice-strict-first", "9111 4.2.1", rows: [36], control("max-age=1, max-age=3600"), after: 2,
      reused: false),
    lifetime(
      "max-age-twice-lines", "9111 4.2.1", rows: [36],
      [("Cache-Control", "max-age=3600"), ("Cache-Control", "max-age=1")], after: 2, reused: false),
    lifetime(
      "max-age-twice-lines-strict-first", "9111 4.2.1", rows: [36],
      [("Cache-Control", "max-age=1"), ("Cache-Control", "max-age=3600")], after: 2, reused: false),
    lifetime("max-age-twice-same", "9111 4.2.1", rows: [36], control("max-age=3600, max-age=3600"), reused: true),
    lifetime(
      "max-age-over-past-expires", "9111 5.3", .required, rows: [35, 45],
      control("max-age=3600", [("Expires", "@-60")]), reused: true),
    lifetime(
      "max-age-over-bad-expires", "9111 5.3", .required, rows: [35, 45], control("max-age=3600", [("Expires", "0")]),
      reused: true),
    lifetime(
      "max-age-0-over-expires", "9111 5.3", .required, rows: [35, 45], control("max-age=0", [("Expires", "@3600")]),
      reused: false),
    lifetime(
      "s-maxage-ignored-by-private", "9111 5.2.2.10", rows: [35], control("s-maxage=1, max-age=3600"), after: 2,
      reused: true),
    lifetime(
      "s-maxage-ignored-by-private-lines", "9111 5.2.2.10", .required, rows: [35],
      [("Cache-Control", "s-maxage=3600"), ("Cache-Control", "max-age=1")], after: 2, reused: false),
    lifetime(
      "s-maxage-0-ignored-by-private", "9111 5.2.2.10", rows: [35], control("max-age=3600, s-maxage=0"), reused: true),
    lifetime(
      "s-maxage-alone-private", "9111 5.2.2.10", .required, rows: [7, 35], control("s-maxage=3600"), reused: false),
    lifetime("private-max-age", "9111 5.2.2.7", rows: [5], control("private, max-age=3600"), reused: true),
    lifetime("public-max-age", "9111 5.2.2.9", rows: [7], control("public, max-age=3600"), reused: true),
    lifetime(
      "must-revalidate-fresh", "9111 5.2.2.2", rows: [53], control("max-age=3600, must-revalidate"), reused: true),
    lifetime(
      "must-revalidate-stale", "9111 5.2.2.2", .required, rows: [53], control("max-age=1, must-revalidate"), after: 2,
      reused: false),
    lifetime("no-transform-fresh", "9111 5.2.2.6", rows: [79], control("max-age=3600, no-transform"), reused: true),
    lifetime(
      "max-age-no-date", "9110 6.6.1", .required, rows: [20], control("max-age=3600"), reused: true, sendsDate: false),
    lifetime("max-age-bad-date", "9110 6.6.1", rows: [20], control("max-age=3600", [("Date", "never")]), reused: true),
  ]

  static let expires: [ConformanceCase] = [
    lifetime("expires-future", rows: [35], [("Expires", "@3600")], reused: true),
    lifetime("expires-past", "9111 5.3", .required, rows: [35], [("Expires", "@-3600")], reused: false),
    lifetime("expires-equals-date", "9111 4.2.1", .required, rows: [35], [("Expires", "@0")], reused: false),
    lifetime("expires-rfc850", "9110 5.6.7", .required, rows: [42], [("Expires", "@3600:rfc850")], reused: true),
    lifetime("expires-asctime", "9110 5.6.7", .required, rows: [42], [("Expires", "@3600:asctime")], reused: true),
    lifetime(
      "expires-year-9999", "9111 1.2.2", rows: [37], [("Expires", "Fri, 31 Dec 9999 23:59:59 GMT")], reused: true),
    lifetime(
      "expires-year-2106", "9111 1.2.2", rows: [37], [("Expires", "Sun, 07 Feb 2106 06:28:17 GMT")], reused: true),
    lifetime(
      "expires-lower-case", "9111 4.2", rows: [38], [("Expires", "fri, 31 dec 2100 23:59:59 gmt")], reused: true),
    lifetime(
      "expires-upper-case", "9111 4.2", rows: [38], [("Expires", "FRI, 31 DEC 2100 23:59:59 GMT")], reused: true),
    lifetime(
      "expires-wrong-weekday", "9110 5.6.7", .optional, rows: [42], [("Expires", "Mon, 31 Dec 2100 23:59:59 GMT")],
      reused: true),
    lifetime(
      "expires-two-digit-year-ahead", "9110 5.6.7", .required, rows: [43],
      [("Expires", "Friday, 31-Dec-60 23:59:59 GMT")], reused: true),
    lifetime(
      "expires-two-digit-year-past", "9110 5.6.7", .required, rows: [43],
      [("Expires", "Monday, 31-Dec-90 23:59:59 GMT")], reused: false),
    lifetime(
      "expires-no-date", "9110 6.6.1", .required, rows: [20, 35], [("Expires", "@3600")], reused: true, sendsDate: false
    ),
    lifetime(
      "expires-bad-date", "9110 6.6.1", rows: [20, 35], [("Date", "never"), ("Expires", "@10")], reused: true),
    lifetime(
      "expires-32-bits", "9111 1.2.2", rows: [37], [("Expires", "Tue, 19 Jan 2038 14:14:08 GMT")], reused: true),
    lifetime(
      "expires-before-date-both-ahead", "9111 4.2.1", .required, rows: [35], [("Date", "@400"), ("Expires", "@300")],
      reused: false),
    lifetime(
      "expires-and-date-both-ahead", "9111 4.2.1", .required, rows: [35], [("Date", "@7200"), ("Expires", "@7200")],
      reused: false),
    lifetime("expires-against-date", "9111 4.2.1", rows: [35], [("Date", "@-10"), ("Expires", "@60")], reused: true),
    lifetime(
      "expires-slow-date-and-age", "9111 4.2.3", .required, rows: [35, 48],
      [("Date", "@-10"), ("Expires", "@10"), ("Age", "25")], reused: false),
    lifetime(
      "expires-fast-date-and-age", "9111 4.2.3", .required, rows: [35, 48],
      [("Date", "@10"), ("Expires", "@20"), ("Age", "15")], reused: false),
    ConformanceCase(
      "expires-twice-same", "9111 4.2.1", .optional, rows: [36], settings: .init(isPure: false),
      .origin([("Expires", "@3600"), ("Expires", "@3600")]), .stored(after: 1)),
    lifetime(
      "expires-twice-differing", "9111 4.2.1", rows: [36], [("Expires", "@3600"), ("Expires", "@-3600")], reused: false),
  ]

  private static let badDates: [(String, String)] = [
    ("zero", "0"), ("minus-one", "-1"), ("empty", ""), ("word", "never"), ("number", "3600"),
    ("one-digit-hour", "Fri, 31 Dec 2100 3:59:59 GMT"), ("two-digit-year", "Fri, 31 Dec 99 23:59:59 GMT"),
    ("zone-offset", "Fri, 31 Dec 2100 23:59:59 +0000"), ("zone-AEST", "Fri, 31 Dec 2100 23:59:59 AEST"),
    ("zone-UTC", "Fri, 31 Dec 2100 23:59:59 UTC"), ("zone-missing", "Fri, 31 Dec 2100 23:59:59"),
    ("no-comma", "Fri 31 Dec 2100 23:59:59 GMT"), ("dashes", "Fri, 31-Dec-2100 23:59:59 GMT"),
    ("many-spaces", "Fri, 31  Dec  2100 23:59:59 GMT"), ("time-with-periods", "Fri, 31 Dec 2100 23.59.59 GMT"),
    ("no-weekday", "31 Dec 2100 23:59:59 GMT"), ("long-month", "Fri, 31 December 2100 23:59:59 GMT"),
    ("iso-8601", "2100-12-31T23:59:59Z"), ("32-December", "Fri, 32 Dec 2100 23:59:59 GMT"),
    ("30-February", "Tue, 30 Feb 2100 23:59:59 GMT"), ("hour-24", "Fri, 31 Dec 2100 24:00:00 GMT"),
    ("second-61", "Fri, 31 Dec 2100 23:59:61 GMT"), ("trailing-text", "Fri, 31 Dec 2100 23:59:59 GMT or so"),
  ]

  static let badExpires: [ConformanceCase] = badDates.map { name, value -> ConformanceCase in
    lifetime(
      "expires-bad-\(name)", "9111 5.3", .required, rows: name.hasPrefix("zone") ? [40, 41, 44] : [44],
      [("Expires", value), ("Last-Modified", "@-864000")], reused: false
    )
    .validating
  }

  static let age: [ConformanceCase] = [
    lifetime("age-below-max-age", "9111 4.2.3", rows: [48], control("max-age=3600", [("Age", "1800")]), reused: true),
    lifetime(
      "age-beyond-max-age", "9111 4.2.3", .required, rows: [48], control("max-age=3600", [("Age", "7200")]),
      reused: false),
    lifetime(
      "age-and-residence", "9111 4.2.3", .required, rows: [48], control("max-age=60", [("Age", "30")]), after: 31,
      reused: false),
    lifetime("age-0", "9111 4.2.3", rows: [48], control("max-age=60", [("Age", "0")]), reused: true),
    lifetime(
      "age-beyond-expires", "9111 4.2.3", .required, rows: [48], [("Expires", "@3600"), ("Age", "7200")], reused: false),
    lifetime(
      "age-from-date", "9111 4.2.3", .required, rows: [48], control("max-age=3600", [("Date", "@-7200")]), reused: false
    ),
    lifetime(
      "age-huge", "9111 1.2.2", .required, rows: [37, 48], control("max-age=3600", [("Age", "99999999999999999999")]),
      reused: false),
    lifetime(
      "age-2^31", "9111 1.2.2", .required, rows: [37, 48], control("max-age=3600", [("Age", "2147483648")]),
      reused: false),
    lifetime(
      "age-list-old-first", "9111 5.1", rows: [49], control("max-age=3600", [("Age", "7200, 0")]), reused: false),
    lifetime("age-list-new-first", "9111 5.1", rows: [49], control("max-age=3600", [("Age", "0, 7200")]), reused: true),
    lifetime(
      "age-lines-old-first", "9111 5.1", rows: [49], control("max-age=3600", [("Age", "7200"), ("Age", "0")]),
      reused: false),
    lifetime(
      "age-lines-new-first", "9111 5.1", rows: [49], control("max-age=3600", [("Age", "0"), ("Age", "7200")]),
      reused: true),
    lifetime(
      "age-list-old-twice", "9111 5.1", rows: [49], control("max-age=3600", [("Age", "7200, 7200")]), reused: false),
    lifetime(
      "age-lines-old-twice", "9111 5.1", rows: [49], control("max-age=3600", [("Age", "7200"), ("Age", "7200")]),
      reused: false),
    lifetime("age-list-same", "9111 5.1", rows: [49], control("max-age=3600", [("Age", "0, 0")]), reused: true),
  ]

  private static let badAges: [(String, String)] = [
    ("word", "abc"), ("negative", "-7200"), ("decimal", "7200.0"), ("parameter", "7200;foo=bar"), ("empty", ""),
    ("numeric-parameter", "7200;foo=111"), ("quoted", "\"7200\""), ("plus", "+7200"),
  ]

  static let agesIgnored: [ConformanceCase] = badAges.map { name, value -> ConformanceCase in
    lifetime("age-ignored-\(name)", "9111 5.1", rows: [50], control("max-age=3600", [("Age", value)]), reused: true)
  }

  static let reported: [ConformanceCase] = [
    ConformanceCase(
      "age-counts-the-delay", "9111 4.2.3", .required, rows: [48],
      .origin(control("max-age=60", [("Age", "10")])) { $0.delay = 20 },
      .stored(after: 5, shows: [("Age", "35")]), .origin(after: 25)),
    ConformanceCase(
      "date-in-whole-seconds", "9111 4.2.3", .recommended, rows: [48],
      .origin(control("max-age=1"), after: 0.9), .stored(after: 0.9, shows: [("Age", "0")]), .origin(after: 0.1)),
    ConformanceCase(
      "clock-set-back", "9111 4.2.3", .optional, rows: [27, 48],
      .origin(control("max-age=315576000")), .origin(control("max-age=60"), after: -1000),
      .stored(after: 59, bodyOf: 1),
      .origin(after: 1)),
    ConformanceCase(
      "age-reported", "9111 4", .required, rows: [24], .origin(control("max-age=3600")),
      .stored(after: 3, shows: [("Age", "3")]), .stored(after: 100, shows: [("Age", "103")])),
    ConformanceCase(
      "age-replaced", "9111 4", .required, rows: [24], .origin(control("max-age=3600", [("Age", "30")])),
      .stored(after: 12, shows: [("Age", "42")])),
    ConformanceCase(
      "date-kept", "9111 4", .required, rows: [9, 24], .origin(control("max-age=3600", [("Date", "@0")])),
      .stored(after: 100, shows: [("Date", "@-100")])),
    ConformanceCase(
      "expires-kept", "9111 4", .required, rows: [9], .origin([("Expires", "@3600")]),
      .stored(after: 100, shows: [("Expires", "@3500")])),
  ]

  static let guessed: [ConformanceCase] = [200, 203, 204, 300, 301, 308, 404, 405, 410, 414, 501].map {
    status -> ConformanceCase in
    lifetime(
      "heuristic-\(status)", "9111 4.2.2", rows: [47], [("Last-Modified", "@-864000")], status: status, reused: true)
  }

  static let notGuessed: [ConformanceCase] = [201, 202, 302, 303, 307, 400, 403, 429, 500, 502, 503, 504, 599].map {
    status -> ConformanceCase in
    lifetime(
      "no-heuristic-\(status)", "9111 4.2.2", .required, rows: [7, 47], [("Last-Modified", "@-864000")], status: status,
      reused: false)
  }

  static let heuristics: [ConformanceCase] = [
    lifetime(
      "heuristic-599-public", "9111 4.2.2", rows: [47], control("public", [("Last-Modified", "@-864000")]), status: 599,
      reused: true),
    lifetime(
      "heuristic-tenth-inside", "9111 4.2.2", rows: [47], [("Last-Modified", "@-1000")], after: 99, reused: true),
    lifetime("heuristic-tenth-past", "9111 4.2.2", rows: [47], [("Last-Modified", "@-1000")], after: 101, reused: false)
      .validating,
    lifetime(
      "heuristic-a-week-at-most", "9111 4.2.2", rows: [47], [("Last-Modified", "@-864000000")], after: 604_801,
      reused: false
    ).validating,
    lifetime(
      "heuristic-not-with-expires", "9111 4.2.2", .required, rows: [46],
      [("Last-Modified", "@-864000"), ("Expires", "@-1")], reused: false
    ).validating,
    lifetime(
      "heuristic-not-with-max-age", "9111 4.2.2", .required, rows: [46],
      control("max-age=0", [("Last-Modified", "@-864000")]), reused: false
    ).validating,
    lifetime(
      "heuristic-from-the-future", "9111 4.2.2", .required, rows: [47], [("Last-Modified", "@3600")], reused: false
    ).validating,
  ]

  private static let everyStatus = [
    200, 201, 202, 203, 204, 299, 301, 302, 303, 307, 308, 400, 403, 404, 405, 410, 414, 451, 499, 500, 501, 502, 503,
    504, 599,
  ]

  static let statuses: [ConformanceCase] = everyStatus.flatMap { status -> [ConformanceCase] in
    [
      lifetime("status-\(status)-fresh", "9111 3", rows: [7], control("max-age=3600"), status: status, reused: true),
      lifetime(
        "status-\(status)-stale", "9111 4.2", .required, rows: [22], [("Expires", "@-3600")], status: status,
        reused: false),
    ]
  }

  static let understanding: [ConformanceCase] = [
    lifetime(
      "status-206-unasked", "9111 3.3", .required, rows: [3, 15], control("max-age=3600"), status: 206, reused: false),
    lifetime(
      "must-understand-known", "9111 5.2.2.3", rows: [76], control("max-age=3600, no-store, must-understand"),
      reused: true),
    lifetime(
      "must-understand-unknown", "9111 5.2.2.3", .required, rows: [3, 76], control("max-age=3600, must-understand"),
      status: 599, reused: false),
    lifetime(
      "must-understand-unknown-299", "9111 5.2.2.3", .required, rows: [3, 76],
      control("max-age=3600, no-store, must-understand"), status: 299, reused: false),
  ]

  static let all: [ConformanceCase] = [
    maxAge, expires, badExpires, age, agesIgnored, reported, guessed, notGuessed, heuristics, statuses, understanding,
  ].flatMap { $0 }
}

extension ConformanceCase {
  /// The same case, but the origin gets a conditional request.
  fileprivate var validating: ConformanceCase {
    var steps = steps
    guard case .origin = steps[1].expected else { return self }
    steps[1].expected = .validated
    return ConformanceCase(id, section, kind, rows: rows, settings: settings, steps: steps)
  }
}

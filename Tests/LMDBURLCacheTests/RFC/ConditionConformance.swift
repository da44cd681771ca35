/// Validators, conditional requests of callers and of the cache, and updates by 304 and HEAD.
enum ConditionConformance {
  private static let modified = "Thu, 01 Jan 2026 00:00:00 GMT"

  /// A caller's own condition on a fresh response.
  private static func own(
    _ id: String, section: String = "9111 4.3.2", kind: ConformanceCase.Kind = .recommended, rows: [Int] = [65],
    _ stored: FieldLines, _ request: FieldLines, isCurrent: Bool
  ) -> ConformanceCase {
    ConformanceCase(
      id, section, kind, rows: rows, .origin(control("max-age=3600", stored)),
      .stored(after: 1, request, status: isCurrent ? 304 : 200))
  }

  static let ofTheCaller: [ConformanceCase] = [
    own("inm-strong", [("ETag", "\"a\"")], [("If-None-Match", "\"a\"")], isCurrent: true),
    own("inm-weak-stored", rows: [64, 65], [("ETag", "W/\"a\"")], [("If-None-Match", "W/\"a\"")], isCurrent: true),
    own("inm-weak-asked", rows: [64, 65], [("ETag", "\"a\"")], [("If-None-Match", "W/\"a\"")], isCurrent: true),
    own("inm-weak-held", rows: [64, 65], [("ETag", "W/\"a\"")], [("If-None-Match", "\"a\"")], isCurrent: true),
    own("inm-list-first", [("ETag", "\"a\"")], [("If-None-Match", "\"a\", \"b\"")], isCurrent: true),
    own("inm-list-second", [("ETag", "\"a\"")], [("If-None-Match", "\"b\", \"a\"")], isCurrent: true),
    own("inm-list-last", [("ETag", "\"a\"")], [("If-None-Match", "\"b\", \"c\", \"a\"")], isCurrent: true),
    own("inm-star", [("ETag", "\"a\"")], [("If-None-Match", "*")], isCurrent: true),
    own("inm-bytes-above-ascii", [("ETag", "\"a\u{fc}\"")], [("If-None-Match", "\"a\u{fc}\"")], isCurrent: true),
    own("inm-comma-inside", [("ETag", "\"a,b\"")], [("If-None-Match", "\"a,b\"")], isCurrent: true),
    own("inm-other", kind: .required, [("ETag", "\"a\"")], [("If-None-Match", "\"b\"")], isCurrent: false),
    own("inm-case-matters", kind: .required, [("ETag", "\"a\"")], [("If-None-Match", "\"A\"")], isCurrent: false),
    own(
      "inm-no-tag-stored", kind: .required, [("Last-Modified", modified)], [("If-None-Match", "\"a\"")],
      isCurrent: false),
    own(
      "inm-wins", section: "9110 13.1.3", kind: .required, rows: [64],
      [("ETag", "\"a\""), ("Last-Modified", modified)], [("If-None-Match", "\"b\""), ("If-Modified-Since", modified)],
      isCurrent: false),
    own(
      "inm-wins-the-other-way", section: "9110 13.1.3", kind: .required, rows: [64],
      [("ETag", "\"a\""), ("Last-Modified", modified)],
      [("If-None-Match", "\"a\""), ("If-Modified-Since", "Wed, 01 Jan 2025 00:00:00 GMT")], isCurrent: true),
    own("inm-unquoted-both", kind: .optional, [("ETag", "a")], [("If-None-Match", "a")], isCurrent: false),
    own("inm-unquoted-asked", kind: .optional, [("ETag", "\"a\"")], [("If-None-Match", "a")], isCurrent: false),
    own("inm-unquoted-stored", kind: .optional, [("ETag", "a")], [("If-None-Match", "\"a\"")], isCurrent: false),
    own(
      "inm-lower-case-weak", kind: .optional, [("ETag", "w/\"a\"")], [("If-None-Match", "w/\"a\"")], isCurrent: false),
    ConformanceCase(
      "inm-304-shows-the-tag", "9110 15.4.5", .required, rows: [65],
      .origin(control("max-age=3600", [("ETag", "\"a\"")])),
      .stored(after: 1, [("If-None-Match", "\"a\"")], status: 304, shows: [("ETag", "\"a\""), ("Age", "1")])),
    own("ims-same", [("Last-Modified", modified)], [("If-Modified-Since", modified)], isCurrent: true),
    own(
      "ims-later", [("Last-Modified", modified)], [("If-Modified-Since", "Fri, 02 Jan 2026 00:00:00 GMT")],
      isCurrent: true),
    own(
      "ims-earlier", kind: .required, [("Last-Modified", modified)],
      [("If-Modified-Since", "Wed, 31 Dec 2025 00:00:00 GMT")], isCurrent: false),
    own(
      "ims-rfc850", rows: [42, 65], [("Last-Modified", modified)],
      [("If-Modified-Since", "Thursday, 01-Jan-26 00:00:00 GMT")], isCurrent: true),
    own(
      "ims-malformed", kind: .required, [("Last-Modified", modified)], [("If-Modified-Since", "yesterday")],
      isCurrent: false),
    own("ims-date-stands-in", rows: [68], [], [("If-Modified-Since", "@1")], isCurrent: true),
    own("ims-date-stands-in-earlier", rows: [68], [], [("If-Modified-Since", "@-100")], isCurrent: false),
    ConformanceCase(
      "if-match-is-forwarded", "9111 4.3.2", .required, rows: [66],
      .origin(control("max-age=3600", [("ETag", "\"a\"")])),
      .origin(after: 1, [("If-Match", "\"a\"")], sees: [("If-Match", "\"a\"")])),
    ConformanceCase(
      "if-unmodified-since-is-forwarded", "9111 4.3.2", .required, rows: [66],
      .origin(control("max-age=3600", [("Last-Modified", modified)])),
      .origin(after: 1, [("If-Unmodified-Since", modified)], sees: [("If-Unmodified-Since", modified)])),
    ConformanceCase(
      "inm-forwarded-when-nothing-is-stored", "9111 4.3.2", .required, rows: [66],
      .origin(status: 304, [("If-None-Match", "\"a\"")], sees: [("If-None-Match", "\"a\"")])),
    ConformanceCase(
      "inm-304-is-not-stored", "9111 4.3.4", .required, rows: [3],
      .origin(control("max-age=3600", [("ETag", "\"a\"")]), status: 304, [("If-None-Match", "\"a\"")]), .origin()),
    ConformanceCase(
      "inm-of-another-tag-becomes-200", "9111 4.3.2", .required, rows: [67],
      .origin(control("max-age=1", [("ETag", "\"a\"")])),
      .validated([("ETag", "\"a\"")], after: 2, [("If-None-Match", "\"b\"")], bodyOf: 0)),
    ConformanceCase(
      "inm-of-the-same-tag-stays-304", "9111 4.3.2", .recommended, rows: [65, 67],
      .origin(control("max-age=1", [("ETag", "\"a\"")])),
      .validated([("ETag", "\"a\"")], after: 2, [("If-None-Match", "\"a\"")]) { step in
        step.expected = .origin
        step.expectedStatus = 304
      }),
    ConformanceCase(
      "ims-of-the-same-date-stays-304", "9111 4.3.2", .recommended, rows: [65, 67],
      .origin(control("max-age=1", [("Last-Modified", modified)])),
      .validated([("Last-Modified", modified)], after: 2, [("If-Modified-Since", modified)]) { step in
        step.expected = .origin
        step.expectedStatus = 304
      }),
  ]

  /// A 304 to the validators of the stored response, which makes it fresh and replaces its fields.
  private static func makesFresh(
    _ id: String, rows: [Int], _ stored: FieldLines, _ reply: FieldLines
  ) -> ConformanceCase {
    ConformanceCase(
      id, "9111 4.3.4", .required, rows: rows + [72],
      .origin(control("max-age=60", [("X-Limit", "9")] + stored)),
      .validated(control("max-age=60", [("X-Limit", "8")] + reply), after: 61, shows: [("X-Limit", "8")]),
      .stored(after: 59, shows: [("X-Limit", "8"), ("Age", "59")]), .validated(reply, after: 2))
  }

  static let ofTheCache: [ConformanceCase] = [
    ConformanceCase(
      "validates-by-strong-tag", "9111 4.3.1", .recommended, rows: [63],
      .origin(control("max-age=1", [("ETag", "\"a\"")])),
      .validated([("ETag", "\"a\"")], after: 2, sees: [("If-None-Match", "\"a\"")])),
    ConformanceCase(
      "validates-by-weak-tag", "9111 4.3.1", .recommended, rows: [63, 71],
      .origin(control("max-age=1", [("ETag", "W/\"a\"")])),
      .validated([("ETag", "W/\"a\"")], after: 2, sees: [("If-None-Match", "W/\"a\"")])),
    ConformanceCase(
      "validates-by-unquoted-tag", "9111 4.3.1", .optional, rows: [63], .origin(control("max-age=1", [("ETag", "a")])),
      .validated([("ETag", "a")], after: 2, sees: [("If-None-Match", "a")])),
    ConformanceCase(
      "validates-by-date", "9111 4.3.1", .recommended, rows: [63, 71],
      .origin(control("max-age=1", [("Last-Modified", modified)])),
      .validated(
        [("Last-Modified", modified)], after: 2, sees: [("If-Modified-Since", modified), ("If-None-Match", nil)])),
    ConformanceCase(
      "validates-by-both", "9111 4.3.1", .recommended, rows: [63],
      .origin(control("max-age=1", [("ETag", "\"a\""), ("Last-Modified", modified)])),
      .validated([("ETag", "\"a\"")], after: 2, sees: [("If-None-Match", "\"a\""), ("If-Modified-Since", modified)])),
    ConformanceCase(
      "validates-with-the-date-as-sent", "9111 4.3.1", .recommended, rows: [63],
      .origin(control("max-age=1", [("Last-Modified", "Thursday, 01-Jan-26 00:00:00 GMT")])),
      .validated(after: 2, sees: [("If-Modified-Since", "Thursday, 01-Jan-26 00:00:00 GMT")])),
    ConformanceCase(
      "validates-with-the-selecting-fields", "9111 4.3.1", .required, rows: [63],
      .origin(control("max-age=1", [("ETag", "\"a\""), ("Vary", "Foo")]), [("Foo", "1")]),
      .validated([("ETag", "\"a\"")], after: 2, [("Foo", "1")], sees: [("Foo", "1")])),
    ConformanceCase(
      "no-validator-no-condition", "9111 4.3.1", .required, rows: [63], .origin(control("max-age=1")),
      .origin(after: 2, sees: [("If-None-Match", nil), ("If-Modified-Since", nil)])),
    ConformanceCase(
      "full-answer-replaces", "9111 4.3.3", .required, rows: [69], .origin(control("max-age=1", [("ETag", "\"a\"")])),
      .validated(control("max-age=3600", [("ETag", "\"b\"")]), status: 200, after: 2), .stored(bodyOf: 1)),
    ConformanceCase(
      "server-error-is-passed-on", "9111 4.3.3", .optional, rows: [69],
      .origin(control("max-age=1", [("ETag", "\"a\"")])),
      .validated(status: 503, after: 2), .validated([("ETag", "\"a\"")], after: 1)),
    ConformanceCase(
      "304-makes-fresh", "9111 4.3.4", .required, rows: [71, 72], .origin(control("max-age=60", [("ETag", "\"a\"")])),
      .validated(control("max-age=60", [("ETag", "\"a\"")]), after: 61), .stored(after: 59, shows: [("Age", "59")]),
      .validated([("ETag", "\"a\"")], after: 2)),
    makesFresh("304-without-validator", rows: [71], [("ETag", "\"a\"")], []),
    makesFresh("304-without-validator-for-weak-tag", rows: [71], [("ETag", "W/\"a\"")], []),
    makesFresh("304-without-validator-for-date", rows: [71], [("Last-Modified", modified)], []),
    makesFresh("304-strong-for-weak-tag", rows: [70], [("ETag", "W/\"a\"")], [("ETag", "\"a\"")]),
    makesFresh("304-weak-for-strong-tag", rows: [71], [("ETag", "\"a\"")], [("ETag", "W/\"a\"")]),
    makesFresh("304-adds-a-tag", rows: [70], [("Last-Modified", modified)], [("ETag", "\"a\"")]),
    makesFresh(
      "304-of-the-same-tag-with-another-date", rows: [70], [("ETag", "\"a\""), ("Last-Modified", modified)],
      [("ETag", "\"a\""), ("Last-Modified", "Fri, 02 Jan 2026 00:00:00 GMT")]),
    ConformanceCase(
      "304-of-an-older-date", "9111 4.3.4", .required, rows: [71],
      .origin(control("max-age=1", [("Last-Modified", modified)])),
      .validated([("Last-Modified", "Wed, 31 Dec 2025 00:00:00 GMT")], after: 2) { step in
        // As in `304-of-another-tag`.
        step.expectedStatus = 304
      }),
    ConformanceCase(
      "304-alone-says-no-store", "9111 5.2.2.5", .recommended, rows: [4, 72],
      .origin(control("max-age=60", [("ETag", "W/\"a\"")])),
      .validated(control("no-store"), after: 61), .origin(after: 1)),
    ConformanceCase(
      "304-alone-says-private", "9111 5.2.2.7", .required, rows: [5, 72], settings: .shared,
      .origin(control("max-age=60", [("ETag", "W/\"a\"")])),
      .validated(control("private", [("ETag", "\"a\"")]), after: 61), .origin(after: 1)),
    ConformanceCase(
      "304-strong-tag-takes-no-range", "9111 3.4", .required, rows: [18, 75],
      .origin(control("max-age=60", [("ETag", "W/\"a\"")])),
      .validated(control("max-age=60", [("ETag", "\"a\"")]), after: 61, shows: [("ETag", "W/\"a\"")]),
      .stored(after: 1, [("Range", "bytes=0-1"), ("If-Range", "\"a\"")], status: 200)),
    ConformanceCase(
      "304-of-another-tag", "9111 4.3.4", .required, rows: [70], .origin(control("max-age=1", [("ETag", "\"a\"")])),
      .validated([("ETag", "\"b\"")], after: 2) { step in
        // The scripted origin replies 304 to the unconditional request, too. No stored response matches it.
        step.expectedStatus = 304
      }),
    ConformanceCase(
      "304-says-no-store", "9111 5.2.2.5", .recommended, rows: [4, 72],
      .origin(control("max-age=60", [("ETag", "\"a\"")])),
      .validated(control("no-store", [("ETag", "\"a\"")]), after: 61), .origin(after: 1)),
    ConformanceCase(
      "304-shortens-the-lifetime", "9111 4.3.4", .required, rows: [72],
      .origin(control("max-age=60", [("ETag", "\"a\"")])),
      .validated(control("max-age=10", [("ETag", "\"a\"")]), after: 61), .validated([("ETag", "\"a\"")], after: 11)),
    ConformanceCase(
      "304-with-an-age", "9111 4.2.3", .required, rows: [48, 72], .origin(control("max-age=60", [("ETag", "\"a\"")])),
      .validated(control("max-age=60", [("ETag", "\"a\""), ("Age", "50")]), after: 61),
      .validated([("ETag", "\"a\"")], after: 11)),
  ]

  /// Fields with their values in the stored response and in the 304, which replaces them.
  private static let updated: [(String, String, String)] = [
    ("X-Test", "a", "b"), ("Test-Header", "a", "b"), ("Content-Foo", "a", "b"), ("X-Content-Foo", "a", "b"),
    ("Content-Type", "text/plain", "text/html"), ("Content-Language", "en", "de"), ("Content-Location", "/a", "/b"),
    ("Content-Disposition", "inline", "attachment"), ("Content-Security-Policy", "default-src 'self'", "default-src *"),
    ("Content-MD5", "a", "b"), ("Clear-Site-Data", "\"cookies\"", "\"storage\""), ("Expires", "@7200", "@9000"),
    ("Link", "</a>", "</b>"), ("Location", "/x", "/y"), ("Public-Key-Pins", "a", "b"), ("Set-Cookie", "a=1", "a=2"),
    ("Set-Cookie2", "a=1", "a=2"), ("Server", "a", "b"), ("Strict-Transport-Security", "max-age=1", "max-age=2"),
    ("X-Frame-Options", "deny", "sameorigin"), ("X-XSS-Protection", "1", "0"), ("WWW-Authenticate", "Basic", "Digest"),
    ("Access-Control-Allow-Origin", "a", "b"), ("Allow", "GET", "HEAD"), ("Accept-Ranges", "none", "bytes"),
    ("P3P", "a", "b"), ("Timing-Allow-Origin", "a", "b"), ("Via", "1.1 a", "1.1 b"), ("Warning", "199 - a", "199 - b"),
    ("Alt-Svc", "clear", "h2=\":1\""), ("Retry-After", "1", "2"), ("Refresh", "1", "2"), ("Deprecation", "@1", "@2"),
  ]

  static let updates: [ConformanceCase] = updated.map { name, old, new -> ConformanceCase in
    ConformanceCase(
      "304-updates-\(name)", "9111 3.2", .required, rows: [9, 72],
      .origin(control("max-age=60", [("ETag", "\"a\""), (name, old)])),
      .validated(control("max-age=60", [("ETag", "\"a\""), (name, new)]), after: 61, shows: [(name, new)]) { step in
        if new.hasPrefix("@") { step.shows = [] }
      },
      .stored(after: 1, shows: new.hasPrefix("@") ? [] : [(name, new)]))
  }

  private static let updatedByDate = ["X-Test", "Content-Type", "Content-Location", "Set-Cookie", "Server", "Expires"]

  static let updatesByDate: [ConformanceCase] = updated.filter { updatedByDate.contains($0.0) }.map {
    name, old, new -> ConformanceCase in
    let isDate = new.hasPrefix("@")
    return ConformanceCase(
      "304-by-date-updates-\(name)", "9111 3.2", .required, rows: [9, 71, 72],
      .origin(control("max-age=60", [("Last-Modified", modified), (name, old)])),
      .validated(
        control("max-age=60", [("Last-Modified", modified), (name, new)]), after: 61,
        shows: isDate ? [] : [(name, new)]),
      .stored(after: 1, shows: isDate ? [] : [(name, new)]))
  }

  private static let unchanged: [(String, String, String)] = [
    ("Content-Length", "6", "99"), ("Content-Encoding", "identity", "br"),
    ("Content-Range", "bytes 0-5/6", "bytes 1-2/6"),
  ]

  static let keeps: [ConformanceCase] = unchanged.map { name, old, new -> ConformanceCase in
    ConformanceCase(
      "304-keeps-\(name)", "9111 3.2", .required, rows: [72], settings: .wired,
      .origin(control("max-age=60", [("ETag", "\"a\""), (name, old)])),
      .validated(control("max-age=60", [("ETag", "\"a\""), (name, new)]), after: 61, shows: [(name, old)]),
      .stored(after: 1, shows: [(name, old)]))
  }

  static let merges: [ConformanceCase] = [
    ConformanceCase(
      "304-adds-a-field", "9111 3.2", .required, rows: [72], .origin(control("max-age=60", [("ETag", "\"a\"")])),
      .validated(control("max-age=60", [("ETag", "\"a\""), ("X-New", "1")]), after: 61, shows: [("X-New", "1")]),
      .stored(after: 1, shows: [("X-New", "1")])),
    ConformanceCase(
      "304-leaves-what-it-does-not-name", "9111 3.2", .required, rows: [72],
      .origin(control("max-age=60", [("ETag", "\"a\""), ("X-Old", "1")])),
      .validated(control("max-age=60", [("ETag", "\"a\"")]), after: 61, shows: [("X-Old", "1")]),
      .stored(after: 1, shows: [("X-Old", "1")])),
    ConformanceCase(
      "304-hop-by-hop-stays-out", "9111 3.2", .required, rows: [10, 72],
      .origin(control("max-age=60", [("ETag", "\"a\""), ("X-Hop", "old")])),
      .validated(control("max-age=60", [("ETag", "\"a\""), ("Connection", "X-Hop"), ("X-Hop", "new")]), after: 61),
      .stored(after: 1, shows: [("X-Hop", "old")])),
  ]

  static let heads: [ConformanceCase] = [
    ConformanceCase(
      "head-answered-from-get", "9111 4", .recommended, rows: [21], .origin(control("max-age=3600", [("X-Test", "1")])),
      .stored(after: 1, method: "HEAD", shows: [("X-Test", "1"), ("Age", "1")])),
    ConformanceCase(
      "head-updates-fields", "9111 4.3.5", .recommended, rows: [73], settings: .wired,
      .origin(control("max-age=1", [("ETag", "\"a\""), ("X-Test", "old")])),
      .validated(
        control("max-age=3600", [("ETag", "\"a\""), ("X-Test", "new"), ("Content-Length", "6")]), status: 200, after: 2
      ) {
        $0.method = "HEAD"
      }, .stored(after: 1, bodyOf: 0, shows: [("X-Test", "new")])),
    ConformanceCase(
      "head-keeps-other-fields", "9111 4.3.5", .recommended, rows: [73], settings: .wired,
      .origin(control("max-age=1", [("ETag", "\"a\""), ("X-Test", "old")])),
      .validated(control("max-age=3600", [("ETag", "\"a\""), ("Content-Length", "6")]), status: 200, after: 2) {
        $0.method = "HEAD"
      }, .stored(after: 1, bodyOf: 0, shows: [("X-Test", "old")])),
    ConformanceCase(
      "head-of-another-tag-makes-stale", "9111 4.3.5", .recommended, rows: [74], settings: .wired,
      .origin(control("max-age=3600", [("ETag", "\"a\"")])),
      .origin(
        control("max-age=3600", [("ETag", "\"b\""), ("Content-Length", "6")]), control("no-cache"), method: "HEAD"
      ) {
        $0.expected = .validated
        $0.bodyOf = 1
      }, .validated([("ETag", "\"a\"")], after: 1)),
    ConformanceCase(
      "head-of-another-length-makes-stale", "9111 4.3.5", .recommended, rows: [74], settings: .wired,
      .origin(control("max-age=3600", [("ETag", "\"a\"")])),
      .origin(
        control("max-age=3600", [("ETag", "\"a\""), ("Content-Length", "60")]), control("no-cache"), method: "HEAD"
      ) {
        $0.expected = .validated
        $0.bodyOf = 1
      }, .validated([("ETag", "\"a\"")], after: 1)),
    ConformanceCase(
      "head-without-validators-updates", "9111 4.3.5", .recommended, rows: [73], settings: .wired,
      .origin(control("max-age=1", [("X-Test", "old"), ("X-Other", "1")])),
      .origin(control("max-age=3600", [("X-Test", "new")]), after: 2, method: "HEAD") { $0.expectedBody = "" },
      .stored(after: 1, bodyOf: 0, shows: [("X-Test", "new"), ("X-Other", "1")])),
    ConformanceCase(
      "head-of-another-date-makes-stale", "9111 4.3.5", .recommended, rows: [74], settings: .wired,
      .origin(control("max-age=3600", [("Last-Modified", modified)])),
      .origin(
        control("max-age=3600", [("Last-Modified", "Fri, 02 Jan 2026 00:00:00 GMT")]), control("no-cache"),
        method: "HEAD"
      ) {
        $0.expected = .validated
        $0.bodyOf = 1
      }, .validated([("Last-Modified", modified)], after: 1)),
    ConformanceCase(
      "head-410-updates-nothing", "9111 4.3.5", .optional, rows: [73], settings: .wired,
      .origin(control("max-age=3600", [("ETag", "\"a\"")])),
      .origin(status: 410, control("no-cache"), method: "HEAD") {
        $0.expected = .validated
        $0.bodyOf = 1
      }, .stored(after: 1)),
  ]

  static let all = ofTheCaller + ofTheCache + updates + updatesByDate + keeps + merges + heads
}

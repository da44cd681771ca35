/// Vary and Authorization: which stored response matches a request.
enum SelectionConformance {
  private static func vary(_ names: String, _ more: FieldLines = []) -> FieldLines {
    control("max-age=3600", [("Vary", names)] + more)
  }

  private static func pair(
    _ id: String, _ kind: ConformanceCase.Kind, rows: [Int], _ names: String, _ one: FieldLines, _ other: FieldLines,
    reused: Bool
  ) -> ConformanceCase {
    ConformanceCase(
      id, "9111 4.1", kind, rows: rows, .origin(vary(names), one), reused ? .stored(other) : .origin(vary(names), other)
    )
  }

  private static var manyVariants: [Step] {
    var steps: [Step] = []
    for number in 0..<30 { steps.append(.origin(vary("Foo"), [("Foo", String(number))])) }
    for number in 0..<30 { steps.append(.stored([("Foo", String(number))], bodyOf: number)) }
    return steps
  }

  static let vary: [ConformanceCase] = [
    pair("vary-same", .recommended, rows: [29], "Foo", [("Foo", "1")], [("Foo", "1")], reused: true),
    pair("vary-other", .required, rows: [29], "Foo", [("Foo", "1")], [("Foo", "2")], reused: false),
    pair("vary-now-absent", .required, rows: [29, 30], "Foo", [("Foo", "1")], [], reused: false),
    pair("vary-was-absent", .required, rows: [29, 30], "Foo", [], [("Foo", "1")], reused: false),
    pair("vary-both-absent", .recommended, rows: [30], "Foo", [], [], reused: true),
    pair(
      "vary-other-field-differs", .recommended, rows: [29], "Foo", [("Foo", "1"), ("Bar", "a")],
      [("Foo", "1"), ("Bar", "b")], reused: true),
    pair("vary-name-in-other-case", .required, rows: [29], "fOO", [("Foo", "1")], [("Foo", "2")], reused: false),
    pair(
      "vary-two-same", .recommended, rows: [29], "Foo, Bar", [("Foo", "1"), ("Bar", "a")],
      [("Bar", "a"), ("Foo", "1")], reused: true),
    pair(
      "vary-two-one-differs", .required, rows: [29], "Foo, Bar", [("Foo", "1"), ("Bar", "a")],
      [("Foo", "1"), ("Bar", "b")], reused: false),
    pair(
      "vary-two-one-absent", .required, rows: [29, 30], "Foo, Bar", [("Foo", "1"), ("Bar", "a")], [("Foo", "1")],
      reused: false),
    pair(
      "vary-three-same", .recommended, rows: [29], "Foo, Bar, Baz", [("Foo", "1"), ("Bar", "a"), ("Baz", "x")],
      [("Baz", "x"), ("Bar", "a"), ("Foo", "1")], reused: true),
    pair(
      "vary-three-one-differs", .required, rows: [29], "Foo, Bar, Baz", [("Foo", "1"), ("Bar", "a"), ("Baz", "x")],
      [("Foo", "1"), ("Bar", "b"), ("Baz", "x")], reused: false),
    pair(
      "vary-three-one-absent", .required, rows: [29, 30], "Foo, Bar, Baz", [("Foo", "1"), ("Baz", "x")],
      [("Foo", "1"), ("Bar", "b"), ("Baz", "x")], reused: false),
    pair("vary-empty", .recommended, rows: [29], "", [("Foo", "1")], [("Foo", "2")], reused: true),
    pair("vary-star", .required, rows: [31], "*", [], [], reused: false),
    pair("vary-star-and-name", .required, rows: [31], "*, Foo", [("Foo", "1")], [("Foo", "1")], reused: false),
    pair("vary-name-and-star", .required, rows: [31], "Foo, *", [("Foo", "1")], [("Foo", "1")], reused: false),
    pair("vary-empty-and-star", .required, rows: [31], ", *", [], [], reused: false),
    pair("vary-star-twice", .required, rows: [31], "*, *", [], [], reused: false),
    ConformanceCase(
      "vary-empty-line-and-star-line", "9111 4.1", .required, rows: [31],
      .origin(control("max-age=3600", [("Vary", ""), ("Vary", "*")]), [("Foo", "1")]),
      .origin(after: 1, [("Foo", "1")])),
    ConformanceCase(
      "vary-star-lines", "9111 4.1", .required, rows: [31],
      .origin(control("max-age=3600", [("Vary", "*"), ("Vary", "*")])), .origin(after: 1)),
    pair("vary-malformed", .required, rows: [31], "Foo; Bar", [("Foo", "1")], [("Foo", "1")], reused: false),
    pair(
      "vary-order-matters-by-default", .required, rows: [29], "Foo", [("Foo", "1, 2")], [("Foo", "2, 1")], reused: false
    ),
    pair(
      "vary-value-case-matters-by-default", .required, rows: [29], "Foo", [("Foo", "a")], [("Foo", "A")], reused: false),
    pair("vary-normalized-space", .recommended, rows: [32], "Foo", [("Foo", "1,2")], [("Foo", "1, 2")], reused: true),
    pair(
      "vary-normalized-lines", .recommended, rows: [32], "Foo", [("Foo", "1"), ("Foo", "2")], [("Foo", "1, 2")],
      reused: true),
    pair(
      "vary-language-order-matters", .required, rows: [29, 32], "Accept-Language", [("Accept-Language", "en, de")],
      [("Accept-Language", "de, en")], reused: false),
    pair(
      "vary-normalized-language-case", .recommended, rows: [32], "Accept-Language", [("Accept-Language", "en, de")],
      [("Accept-Language", "EN, De")], reused: true),
    pair(
      "vary-normalized-language-space", .recommended, rows: [32], "Accept-Language", [("Accept-Language", "en, de")],
      [("Accept-Language", " en ,   de")], reused: true),
    pair(
      "vary-normalized-weights", .recommended, rows: [32], "Accept-Language",
      [("Accept-Language", "en;q=1.0, de;q=0.50")], [("Accept-Language", "en, de; q=0.5")], reused: true),
    pair(
      "vary-weights-differ", .required, rows: [29], "Accept-Language", [("Accept-Language", "en;q=0.5, de")],
      [("Accept-Language", "en, de;q=0.5")], reused: false),
    pair(
      "vary-normalized-encoding-order", .recommended, rows: [32], "Accept-Encoding",
      [("Accept-Encoding", "gzip, br")], [("Accept-Encoding", "BR,gzip")], reused: true),
    pair(
      "vary-encoding-more", .required, rows: [29], "Accept-Encoding", [("Accept-Encoding", "gzip, br")],
      [("Accept-Encoding", "gzip, br, zstd")], reused: false),
    ConformanceCase(
      "vary-other-variant-not-validated", "9111 4.1", .recommended, rows: [29, 63],
      .origin(vary("Foo", [("ETag", "\"a\"")]), [("Foo", "1")]), .origin(vary("Foo"), [("Foo", "2")])),
    pair(
      "vary-accept-encoding", .required, rows: [29], "Accept-Encoding", [("Accept-Encoding", "identity")],
      [("Accept-Encoding", "gzip")], reused: false),
    // `data(for:)` uses the cookies of the process, which other cases set.
    ConformanceCase(
      "vary-cookie", "9111 4.1", .required, rows: [29], settings: .init(excluded: [.data]),
      .origin(vary("Cookie"), [("Cookie", "a=1")]), .origin(vary("Cookie"), [("Cookie", "a=2")])),
    ConformanceCase(
      "vary-cookie-order", "6265 4.2.2", .recommended, rows: [32], settings: .init(excluded: [.data]),
      .origin(vary("Cookie"), [("Cookie", "a=1; b=2")]), .stored([("Cookie", "b=2; a=1")])),
    pair(
      "vary-user-agent", .required, rows: [29], "User-Agent", [("User-Agent", "one")], [("User-Agent", "two")],
      reused: false),
    ConformanceCase(
      "vary-two-lines", "9110 5.3", .required, rows: [29],
      .origin(control("max-age=3600", [("Vary", "Foo"), ("Vary", "Bar")]), [("Foo", "1"), ("Bar", "a")]),
      .origin(control("max-age=3600"), [("Foo", "1"), ("Bar", "b")])),
    ConformanceCase(
      "vary-star-second-line", "9111 4.1", .required, rows: [31],
      .origin(control("max-age=3600", [("Vary", "Foo"), ("Vary", "*")]), [("Foo", "1")]),
      .origin(after: 1, [("Foo", "1")])),
    ConformanceCase(
      "vary-keeps-variants-apart", "9111 4.1", .recommended, rows: [29],
      .origin(vary("Foo"), [("Foo", "1")]), .origin(vary("Foo"), [("Foo", "2")]), .stored([("Foo", "1")], bodyOf: 0),
      .stored([("Foo", "2")], bodyOf: 1), .stored([("Foo", "1")], bodyOf: 0)),
    ConformanceCase(
      "vary-many-variants", "9111 4.1", .recommended, rows: [29],
      steps: manyVariants),
    ConformanceCase(
      "vary-newest-by-date", "9111 4", .required, rows: [26],
      .origin(vary("Foo", [("Date", "@-5")]), [("Foo", "1"), ("Bar", "a")]),
      .origin(control("max-age=3600", [("Vary", "Bar")]), [("Foo", "2"), ("Bar", "b")]),
      .stored([("Foo", "1"), ("Bar", "b")], bodyOf: 1)),
    ConformanceCase(
      "vary-error-keeps-other-variants", "9111 4.1", .recommended, rows: [29],
      .origin(vary("Foo"), [("Foo", "1")]), .origin(status: 500, [("Foo", "2")]), .stored([("Foo", "1")])),
    ConformanceCase(
      "vary-validates-the-right-variant", "9111 4.3.1", .required, rows: [29, 63],
      .origin(control("max-age=1", [("Vary", "Foo"), ("ETag", "\"1\"")]), [("Foo", "1")]),
      .origin(control("max-age=1", [("Vary", "Foo"), ("ETag", "\"2\"")]), [("Foo", "2")]),
      .validated(
        [("ETag", "\"1\"")], after: 2, [("Foo", "1")], bodyOf: 0, sees: [("If-None-Match", "\"1\""), ("Foo", "1")])),
    ConformanceCase(
      "vary-before-a-newer-without", "9111 4.1", .recommended, rows: [33],
      .origin(vary("Foo", [("Date", "@-5")]), [("Foo", "1")]), .origin(control("max-age=3600"), [("Foo", "2")]),
      .stored([("Foo", "1")], bodyOf: 0), .stored([("Foo", "2")], bodyOf: 1)),
    ConformanceCase(
      "vary-gained-later", "9111 4.1", .recommended, rows: [33],
      .origin(control("max-age=3600", [("Date", "@-60")])),
      .origin(vary("Foo"), [("Foo", "1"), ("Cache-Control", "max-age=0")]),
      .stored([("Foo", "1")], bodyOf: 1)),
  ]

  static let authorization: [ConformanceCase] = [
    ConformanceCase(
      "authorization-same", "9111 3.5", .optional, rows: [34],
      .origin(control("max-age=3600"), [("Authorization", "a")]),
      .stored([("Authorization", "a")])),
    ConformanceCase(
      "authorization-other", "9111 3.5", .required, rows: [34, 85],
      .origin(control("max-age=3600"), [("Authorization", "a")]),
      .origin(control("max-age=3600"), [("Authorization", "b")]), .stored([("Authorization", "a")], bodyOf: 0),
      .stored([("Authorization", "b")], bodyOf: 1)),
    ConformanceCase(
      "authorization-none", "9111 3.5", .required, rows: [34, 85],
      .origin(control("public, max-age=3600"), [("Authorization", "a")]),
      .origin()),
    ConformanceCase(
      "authorization-after-anonymous", "9111 3.5", .required, rows: [34, 85], .origin(control("max-age=3600")),
      .origin(after: 1, [("Authorization", "a")])),
    shared("shared-authorization-refused", .required, "max-age=3600", reused: false),
    shared("shared-authorization-public", .recommended, "max-age=3600, public", reused: true),
    shared("shared-authorization-s-maxage", .recommended, "s-maxage=3600", reused: true),
    shared("shared-authorization-must-revalidate", .recommended, "max-age=3600, must-revalidate", reused: true),
    malformed("public-argument", "max-age=3600, public=x"), malformed("public-no-argument", "max-age=3600, public ="),
    malformed("public-surplus", "max-age=3600, public\u{a0}"), malformed("s-maxage", "max-age=3600, s-maxage=x"),
    malformed("must-revalidate", "max-age=3600, must-revalidate=1"),
    malformed("open-quote", "max-age=3600, x=\"a, public"),
    ConformanceCase(
      "shared-authorization-for-others", "9111 3.5", .optional, rows: [34], settings: .shared,
      .origin(control("max-age=3600, public"), [("Authorization", "a")]), .stored([("Authorization", "b")]), .stored()),
    ConformanceCase(
      "shared-authorization-vary", "9111 3.5", .required, rows: [29, 34, 85], settings: .shared,
      .origin(control("max-age=3600, public") + [("Vary", "Authorization")], [("Authorization", "a")]),
      .origin([("Authorization", "b")]), .origin()),
    ConformanceCase(
      "partitions-see-nothing-of-each-other", "9111 7", .required, rows: [85],
      settings: .init(partition: { $0.value(forHTTPHeaderField: "X-Tenant") ?? "" }, isPure: false),
      .origin(control("max-age=3600"), [("X-Tenant", "a")]), .origin(control("max-age=3600"), [("X-Tenant", "b")]),
      .stored([("X-Tenant", "a")], bodyOf: 0), .stored([("X-Tenant", "b")], bodyOf: 1), .origin()),
  ]

  private static func shared(
    _ id: String, _ kind: ConformanceCase.Kind, _ value: String, reused: Bool
  ) -> ConformanceCase {
    ConformanceCase(
      id, "9111 3.5", kind, rows: [6, 34], settings: .shared, .origin(control(value), [("Authorization", "a")]),
      reused ? .stored([("Authorization", "a")]) : .origin(after: 1, [("Authorization", "a")]))
  }

  /// A directive that would share the response if it were well-formed.
  private static func malformed(_ name: String, _ value: String) -> ConformanceCase {
    ConformanceCase(
      "shared-authorization-malformed-\(name)", "9111 3.5", .required, rows: [6, 34, 77], settings: .shared,
      .origin(control(value, [("ETag", "\"a\"")]), [("Authorization", "a")]),
      .origin(after: 1, [("Authorization", "b")]))
  }

  static let all = vary + authorization
}

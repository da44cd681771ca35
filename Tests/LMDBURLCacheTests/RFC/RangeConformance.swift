import LoopbackOrigin

/// Ranges served from the cache, and incomplete responses that are stored and completed.
enum RangeConformance {
  private static let digits = "0123456789"

  /// A range of a stored complete response.
  private static func cut(
    _ id: String, kind: ConformanceCase.Kind = .recommended, rows: [Int] = [17, 75], _ request: FieldLines,
    stored: FieldLines = [("ETag", "\"a\"")], gives body: String?, range: String? = nil
  ) -> ConformanceCase {
    ConformanceCase(
      id, "9110 14.2", kind, rows: rows, .origin(control("max-age=3600", stored), body: digits),
      .stored(
        after: 1, request, status: body == nil ? 416 : range == nil ? 200 : 206, body: body ?? "",
        shows: range.map { [("Content-Range", $0), ("Content-Length", String((body ?? "").utf8.count))] } ?? []))
  }

  static let fromComplete: [ConformanceCase] = [
    cut("range-of-stored", [("Range", "bytes=2-4")], gives: "234", range: "bytes 2-4/10"),
    cut("range-of-stored-open-end", [("Range", "bytes=7-")], gives: "789", range: "bytes 7-9/10"),
    cut("range-of-stored-suffix", [("Range", "bytes=-3")], gives: "789", range: "bytes 7-9/10"),
    cut("range-of-stored-first-byte", [("Range", "bytes=0-0")], gives: "0", range: "bytes 0-0/10"),
    cut("range-beyond-end-is-cut", [("Range", "bytes=8-99")], gives: "89", range: "bytes 8-9/10"),
    cut("range-suffix-beyond-all", [("Range", "bytes=-99")], gives: digits, range: "bytes 0-9/10"),
    cut(
      "range-numbers-huge", kind: .required, rows: [86], [("Range", "bytes=5-99999999999999999999999")], gives: "56789",
      range: "bytes 5-9/10"),
    cut("range-start-huge", kind: .required, rows: [86], [("Range", "bytes=99999999999999999999999-")], gives: nil),
    cut("range-outside", [("Range", "bytes=10-12")], gives: nil),
    cut("range-unit-in-capitals", [("Range", "BYTES=2-4")], gives: "234", range: "bytes 2-4/10"),
    cut("range-other-unit", kind: .required, [("Range", "lines=1-2")], gives: digits),
    cut("range-malformed", kind: .required, [("Range", "bytes=a-b")], gives: digits),
    cut("range-backwards", kind: .required, [("Range", "bytes=4-2")], gives: digits),
    cut("range-several-whole-instead", kind: .optional, rows: [17], [("Range", "bytes=0-1, 4-5")], gives: digits),
    cut("if-range-same-tag", [("Range", "bytes=2-4"), ("If-Range", "\"a\"")], gives: "234", range: "bytes 2-4/10"),
    cut(
      "if-range-other-tag", kind: .required, rows: [75], [("Range", "bytes=2-4"), ("If-Range", "\"b\"")], gives: digits),
    cut(
      "if-range-weak-tag", kind: .required, rows: [75], [("Range", "bytes=2-4"), ("If-Range", "W/\"a\"")],
      stored: [("ETag", "W/\"a\"")], gives: digits),
    cut(
      "if-range-date", rows: [75], [("Range", "bytes=2-4"), ("If-Range", "Thu, 01 Jan 2026 00:00:00 GMT")],
      stored: [("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")], gives: "234", range: "bytes 2-4/10"),
    cut(
      "if-range-other-date", kind: .required, rows: [75],
      [("Range", "bytes=2-4"), ("If-Range", "Fri, 02 Jan 2026 00:00:00 GMT")],
      stored: [("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")], gives: digits),
    cut(
      "if-range-recent-date", kind: .required, rows: [75], [("Range", "bytes=2-4"), ("If-Range", "@-1")],
      stored: [("Last-Modified", "@0")], gives: digits),
  ]

  static let fields: [ConformanceCase] = [
    ConformanceCase(
      "range-shows-the-stored-fields", "9110 15.3.7", .required, rows: [17],
      .origin(control("max-age=3600", [("ETag", "\"a\""), ("X-A", "1")]), body: digits),
      .stored(
        after: 1, [("Range", "bytes=2-4")], status: 206, body: "234",
        shows: [("X-A", "1"), ("ETag", "\"a\""), ("Age", "1")]))
  ]

  private static func part(
    _ first: Int, _ last: Int, tag: String? = "\"a\"", length: String = "10", _ more: FieldLines = []
  ) -> FieldLines {
    control(
      "max-age=3600",
      [("Content-Range", "bytes \(first)-\(last)/\(length)")] + (tag.map { [("ETag", $0)] } ?? []) + more)
  }

  private static func asked(_ range: String) -> FieldLines { [("Range", "bytes=\(range)")] }

  private static func partial(_ range: String, _ reply: FieldLines, _ body: String) -> Step {
    .origin(reply, status: 206, asked(range), body: body)
  }

  /// A request for the complete representation when a part is stored: the origin gets a request for the rest.
  private static func rest(
    _ reply: FieldLines, _ range: String, body: String, gives whole: String, status: Int = 206,
    ifRange: String = "\"a\""
  ) -> Step {
    .origin(reply, status: status, after: 1, body: body, sees: [("Range", "bytes=\(range)"), ("If-Range", ifRange)]) {
      $0.expectedStatus = 200
      $0.expectedBody = whole
    }
  }

  static let parts: [ConformanceCase] = [
    ConformanceCase(
      "part-answers-its-range", "9111 3.3", .recommended, rows: [15, 16, 88], partial("0-4", part(0, 4), "01234"),
      .stored(after: 1, asked("0-4"), status: 206, body: "01234", shows: [("Content-Range", "bytes 0-4/10")])),
    ConformanceCase(
      "part-answers-a-range-inside", "9111 3.3", .recommended, rows: [15, 16], partial("0-4", part(0, 4), "01234"),
      .stored(after: 1, asked("1-2"), status: 206, body: "12", shows: [("Content-Range", "bytes 1-2/10")])),
    ConformanceCase(
      "part-answers-a-suffix-inside", "9111 3.3", .recommended, rows: [15, 16], partial("5-9", part(5, 9), "56789"),
      .stored(after: 1, asked("-2"), status: 206, body: "89", shows: [("Content-Range", "bytes 8-9/10")])),
    ConformanceCase(
      "part-answers-an-open-end", "9111 3.3", .recommended, rows: [15, 16], partial("5-9", part(5, 9), "56789"),
      .stored(after: 1, asked("7-"), status: 206, body: "789")),
    ConformanceCase(
      "part-does-not-answer-beyond", "9111 3.3", .required, rows: [16], partial("0-4", part(0, 4), "01234"),
      .origin(part(3, 7), status: 206, asked("3-7"), body: "34567", sees: [("Range", "bytes=3-7")])),
    ConformanceCase(
      "part-is-not-the-whole", "9111 3.3", .required, rows: [16, 17], partial("0-4", part(0, 4, tag: nil), "01234"),
      .origin(control("max-age=3600"), after: 1, body: digits, sees: [("Range", nil)]), .stored(after: 1, bodyOf: 1)),
    ConformanceCase(
      "part-completed-behind", "9111 3.4", .recommended, rows: [18, 19, 89], partial("0-4", part(0, 4), "01234"),
      rest(part(5, 9), "5-", body: "56789", gives: digits),
      .stored(after: 1, status: 200, body: digits, shows: [("Content-Range", nil), ("Content-Length", "10")])),
    ConformanceCase(
      "part-completed-in-front", "9111 3.4", .recommended, rows: [18, 89], partial("-5", part(5, 9), "56789"),
      rest(part(0, 4), "0-4", body: "01234", gives: digits), .stored(after: 1, status: 200, body: digits)),
    ConformanceCase(
      "part-joined-by-ranges", "9111 3.4", .recommended, rows: [18, 89], partial("0-4", part(0, 4), "01234"),
      partial("5-9", part(5, 9), "56789"), .stored(after: 1, status: 200, body: digits)),
    ConformanceCase(
      "part-joined-updates-fields", "9111 3.4", .required, rows: [19],
      partial("0-4", part(0, 4, [("X-A", "old")]), "01234"),
      partial("5-9", part(5, 9, [("X-A", "new")]), "56789"),
      .stored(after: 1, status: 200, body: digits, shows: [("X-A", "new")])),
    ConformanceCase(
      "part-keeps-older-fields", "9111 3.4", .required, rows: [9, 19],
      partial("0-4", part(0, 4, [("X-A", "old")]), "01234"),
      partial("5-9", part(5, 9), "56789"), .stored(after: 1, status: 200, body: digits, shows: [("X-A", "old")])),
    ConformanceCase(
      "part-not-joined-by-another-tag", "9111 3.4", .required, rows: [18], partial("0-4", part(0, 4), "01234"),
      partial("5-9", part(5, 9, tag: "\"b\""), "vwxyz"),
      rest(part(0, 4, tag: "\"b\""), "0-4", body: "qrstu", gives: "qrstuvwxyz", ifRange: "\"b\"")),
    ConformanceCase(
      "part-not-joined-by-a-weak-tag", "9111 3.4", .required, rows: [18],
      partial("0-4", part(0, 4, tag: "W/\"a\""), "01234"),
      partial("5-9", part(5, 9, tag: "W/\"a\""), "56789"),
      .origin(control("max-age=3600"), after: 1, body: digits, sees: [("Range", nil)])),
    ConformanceCase(
      "part-not-joined-by-a-date", "9111 3.4", .required, rows: [18],
      partial("0-4", part(0, 4, tag: nil, [("Last-Modified", "@-1")]), "01234"),
      .origin(control("max-age=3600"), after: 1, body: digits, sees: [("Range", nil)])),
    ConformanceCase(
      "part-shorter-than-it-says", "9110 14.4", .required, rows: [16, 87],
      partial("0-4", part(0, 5), "01234"),
      .stored(after: 1, asked("0-4"), status: 206, body: "01234", shows: [("Content-Range", "bytes 0-4/10")]),
      .origin(part(5, 9), status: 206, after: 1, asked("5-5"), body: "5")),
    ConformanceCase(
      "part-not-joined-without-a-tag", "9111 3.4", .required, rows: [18], partial("0-4", part(0, 4, tag: nil), "01234"),
      partial("5-9", part(5, 9, tag: nil), "56789"),
      .origin(control("max-age=3600"), after: 1, body: digits, sees: [("Range", nil)])),
    ConformanceCase(
      "part-replaced-by-a-new-whole", "9111 3.4", .required, rows: [16, 69], partial("0-4", part(0, 4), "01234"),
      rest(control("max-age=3600", [("ETag", "\"b\"")]), "5-", body: "abcdefghij", gives: "abcdefghij", status: 200),
      .stored(after: 1, bodyOf: 1)),
    ConformanceCase(
      "part-stale-is-not-served", "9111 4", .required, rows: [22], partial("0-4", part(0, 4), "01234"),
      .validated(part(0, 4), status: 206, after: 3601, asked("0-4")) {
        $0.replyBody = "vwxyz"
      }),
    ConformanceCase(
      "part-without-content-range", "9111 3.3", .required, rows: [15, 87, 88],
      .origin(control("max-age=3600"), status: 206, asked("0-4"), body: "01234"),
      .origin(part(0, 4), status: 206, asked("0-4"), body: "01234")),
    ConformanceCase(
      "part-with-bad-content-range", "9110 14.4", .required, rows: [15, 87],
      .origin(control("max-age=3600", [("Content-Range", "bytes 4-0/10")]), status: 206, asked("0-4"), body: "01234"),
      .origin(part(0, 4), status: 206, asked("0-4"), body: "01234")),
    ConformanceCase(
      "part-in-another-unit", "9110 14.4", .required, rows: [15, 87],
      .origin(control("max-age=3600", [("Content-Range", "lines 0-4/10")]), status: 206, asked("0-4"), body: "01234"),
      .origin(part(0, 4), status: 206, asked("0-4"), body: "01234")),
    ConformanceCase(
      "part-of-several-pieces", "9110 15.3.7.2", .required, rows: [15, 88],
      .origin(
        control("max-age=3600", [("Content-Type", "multipart/byteranges; boundary=x")]), status: 206, asked("0-1, 4-5"),
        body: "--x--"),
      .origin(control("max-age=3600"), after: 1, body: digits)),
    ConformanceCase(
      "part-of-unknown-length", "9111 3.3", .recommended, rows: [15, 16],
      partial("0-4", part(0, 4, length: "*"), "01234"),
      .stored(after: 1, asked("1-2"), status: 206, body: "12")),
    ConformanceCase(
      "part-no-store", "9111 5.2.2.5", .required, rows: [4],
      partial("0-4", part(0, 4, [("Cache-Control", "no-store")]), "01234"),
      .origin(part(0, 4), status: 206, asked("0-4"), body: "01234")),
    ConformanceCase(
      "part-does-not-replace-a-fresh-whole", "9111 3.4", .required, rows: [18, 19],
      .origin(control("max-age=1", [("ETag", "\"a\"")]), body: digits),
      .validated(part(0, 4), status: 206, after: 2, asked("0-4")) { $0.replyBody = "01234" },
      .stored(after: 1, status: 200, body: digits)),
    ConformanceCase(
      "whole-answer-to-a-range-is-stored", "9110 14.2", .recommended, rows: [17, 75],
      .origin(control("max-age=3600"), asked("2-4"), body: digits), .stored(after: 1, status: 200, body: digits),
      .stored(after: 1, asked("2-4"), status: 206, body: "234")),
  ]

  static let all = fromComplete + fields + parts
}

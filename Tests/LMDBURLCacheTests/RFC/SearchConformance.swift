import LoopbackOrigin

/// No-Vary-Search: a stored response answers requests for equivalent URLs.
enum SearchConformance {
  private static func searching(_ value: String, _ cacheControl: String = "max-age=10000", _ more: FieldLines = [])
    -> FieldLines
  {
    control(cacheControl, [("No-Vary-Search", value)] + more)
  }

  // MARK: - The public web platform tests

  /// A case of `fetch/http-cache/no-vary-search`: a response for one query, then requests for others.
  ///
  /// All URLs of the suite have two parameters of its own, which the cases keep apart or name.
  private static func web(
    _ id: String, rows: [Int], _ value: String?, _ first: String, reused: [String] = [], fetched: [String] = []
  ) -> ConformanceCase {
    func suffix(_ query: String) -> String { "?dispatch=test&uuid=7" + (query.isEmpty ? "" : "&" + query) }
    return ConformanceCase(
      id, "No-Vary-Search 7", fetched.isEmpty ? .recommended : .required, rows: rows, settings: .wired,
      steps: [.origin(value.map { searching($0) } ?? control("max-age=10000"), suffix: suffix(first))]
        + reused.map { .stored(suffix: suffix($0)) } + fetched.map { .origin(suffix: suffix($0)) })
  }

  static let web: [ConformanceCase] = [
    web(
      "nvs-web-all-parameters", rows: [113, 115], #"params, except=("dispatch" "uuid")"#, "a=1&b=2", reused: [""]),
    web("nvs-web-no-field", rows: [112, 115], nil, "a=1&b=2", fetched: ["b=2&a=1"]),
    web("nvs-web-key-order", rows: [110, 115], "key-order", "a=1&b=2", reused: ["b=2&a=1"]),
    web(
      "nvs-web-key-order-other-parameters", rows: [112, 115], "key-order", "a=1&b=2",
      fetched: ["b=2", "a=2&b=2", "a=1&b=2&c=3"]),
    web("nvs-web-one-parameter", rows: [110, 115], #"params=("a")"#, "a=1&b=2", reused: ["a=99&b=2"]),
    web("nvs-web-one-parameter-not-named", rows: [112, 115], #"params=("a")"#, "a=1&b=2", fetched: ["a=1&b=99"]),
    web("nvs-web-two-parameters", rows: [110, 115], #"params=("a" "b")"#, "a=1&b=2&c=3", reused: ["a=9&b=8&c=3"]),
    web(
      "nvs-web-all-parameters-explicitly", rows: [113, 115], #"params=?1, except=("dispatch" "uuid")"#, "a=1&b=2",
      reused: [""]),
    web(
      "nvs-web-kept-parameter", rows: [113, 115], #"params, except=("dispatch" "uuid" "id")"#, "id=42&noise=abc",
      fetched: ["id=99&noise=xyz"]),
    web(
      "nvs-web-parameter-and-order", rows: [110, 115], #"params=("utm"), key-order"#, "utm=x&b=2&a=1",
      reused: ["a=1&b=2&utm=y"]),
    web(
      "nvs-web-parameter-and-order-not-named", rows: [112, 115], #"params=("utm"), key-order"#, "utm=x&b=2&a=1",
      fetched: ["a=1&b=99&utm=y"]),
    web("nvs-web-list-with-except", rows: [110, 115], #"params=("a"), except=("b")"#, "a=1", fetched: ["a=2"]),
    web("nvs-web-except-alone", rows: [110, 115], #"except=("a")"#, "a=1", fetched: ["a=2"]),
  ]

  // MARK: - More

  private static func search(
    _ id: String, _ kind: ConformanceCase.Kind, rows: [Int], shared: Bool = false, _ steps: Step...
  ) -> ConformanceCase {
    var settings = ConformanceCase.Settings.wired
    settings.caching = shared ? .shared : .private
    return ConformanceCase(id, "No-Vary-Search 7", kind, rows: rows, settings: settings, steps: steps)
  }

  static let reuse: [ConformanceCase] = [
    search(
      "nvs-except-alone-reused", .recommended, rows: [110, 115],
      .origin(searching(#"except=("a")"#), suffix: "?a=1&b=1"),
      .stored(suffix: "?c&a=1"), .stored(suffix: "?a=1")),
    search(
      "nvs-spelled-otherwise", .recommended, rows: [112, 115], .origin(searching("key-order"), suffix: "?a=%20x&b"),
      .stored(suffix: "?%62=&&a=+x&"), .origin(suffix: "?a=%2Bx&b")),
    search(
      "nvs-without-query", .recommended, rows: [112, 115], .origin(searching("params")), .stored(suffix: "?a"),
      .stored(suffix: "?")),
    search(
      "nvs-other-path", .required, rows: [112], .origin(searching("params"), suffix: "/a?x=1"),
      .origin(suffix: "/b?x=1"),
      .origin(suffix: "/a/?x=1")),
    search(
      "nvs-shared-cache", .recommended, rows: [115], shared: true,
      .origin(searching("params", "s-maxage=60"), suffix: "?a=1"), .stored(suffix: "?a=2"),
      .origin(after: 90, suffix: "?a=3")),
    search(
      "nvs-private-in-shared-cache", .required, rows: [115], shared: true,
      .origin(searching("params", "private, max-age=60"), suffix: "?a=1"), .origin(suffix: "?a=2")),
    search(
      "nvs-not-stored", .required, rows: [115], .origin(searching("params", "no-store"), suffix: "?a=1"),
      .origin(suffix: "?a=2")),
    search(
      "nvs-stale", .required, rows: [115], .origin(searching("params", "max-age=60"), suffix: "?a=1"),
      .origin(after: 90, suffix: "?a=2")),
    search(
      "nvs-validated", .recommended, rows: [115],
      .origin(searching("params", "max-age=60", [("ETag", "\"1\"")]), suffix: "?a=1"),
      .validated(
        searching("params", "max-age=60", [("ETag", "\"1\"")]), after: 90, suffix: "?a=2",
        sees: [("If-None-Match", "\"1\"")]),
      .stored(suffix: "?a=3", shows: [("ETag", "\"1\"")])),
    search(
      "nvs-stale-while-revalidate", .recommended, rows: [115],
      .origin(searching("params", "max-age=60, stale-while-revalidate=60"), suffix: "?a=1"),
      .origin(searching("params", "max-age=60"), after: 90, suffix: "?a=2") {
        $0.expected = .background
        $0.bodyOf = 0
      },
      .stored(bodyOf: 1, suffix: "?a=3")),
    search(
      "nvs-stale-if-error", .recommended, rows: [115],
      .origin(searching("params", "max-age=60, stale-if-error=60"), suffix: "?a=1"),
      .origin(status: 503, after: 90, suffix: "?a=2") { $0.bodyOf = 0 }),
    search(
      "nvs-selecting-field", .required, rows: [29, 115],
      .origin(searching("params", "max-age=60", [("Vary", "Foo")]), [("Foo", "1")], suffix: "?a=1"),
      .stored([("Foo", "1")], suffix: "?a=2"), .origin([], [("Foo", "2")], suffix: "?a=2")),
    search(
      "nvs-credentials", .required, rows: [34, 115],
      .origin(searching("params"), [("Authorization", "Basic QTpC")], suffix: "?user=a"),
      .stored([("Authorization", "Basic QTpC")], suffix: "?user=b"), .origin(suffix: "?user=b")),
    search(
      "nvs-range", .recommended, rows: [115], .origin(searching("params"), suffix: "?a=1", body: "0123456789"),
      .stored([("Range", "bytes=2-4")], status: 206, suffix: "?a=2", body: "234")),
    search(
      "nvs-condition", .recommended, rows: [115],
      .origin(searching("params", "max-age=60", [("ETag", "\"1\"")]), suffix: "?a=1"),
      .stored([("If-None-Match", "\"1\"")], status: 304, suffix: "?a=2")),
    search(
      "nvs-head", .recommended, rows: [115], .origin(searching("params"), suffix: "?a=1"),
      .stored(method: "HEAD", suffix: "?a=2")),
  ]

  static let changes: [ConformanceCase] = [
    search(
      "nvs-several-values", .optional, rows: [116], .origin(searching(#"params=("a")"#), suffix: "?a=1"),
      .origin(searching(#"params=("b")"#), suffix: "?b=1&c"), .stored(bodyOf: 1, suffix: "?b=2&c"),
      .stored(bodyOf: 0, suffix: "?a=2")),
    search(
      "nvs-field-ends", .required, rows: [117], .origin(searching("params"), suffix: "?a=1"),
      .origin(control("max-age=60"), suffix: "?a=2") { $0.policy = .reloadIgnoringLocalCacheData },
      .stored(bodyOf: 1, suffix: "?a=2"), .origin(suffix: "?a=1"), .origin(suffix: "?a=3")),
    search(
      "nvs-field-begins", .required, rows: [117], .origin(control("max-age=60"), suffix: "?a=1"),
      .origin(searching("params"), suffix: "?a=1") { $0.policy = .reloadIgnoringLocalCacheData },
      .stored(bodyOf: 1, suffix: "?a=1"), .stored(bodyOf: 1, suffix: "?a=2")),
    search(
      "nvs-field-ends-by-304", .required, rows: [117],
      .origin(searching("params", "max-age=60", [("ETag", "\"1\"")]), suffix: "?a=1"),
      .validated(
        control("max-age=60", [("ETag", "\"1\""), ("No-Vary-Search", "key-order")]), after: 90, suffix: "?a=2"),
      .origin(suffix: "?a=3")),
    search(
      "nvs-invalidated", .required, rows: [82, 118], .origin(searching("params"), suffix: "?a=1"),
      .origin(method: "POST", suffix: "?a=2"), .origin(suffix: "?a=1"), .origin(suffix: "?a=3")),
    search(
      "nvs-not-invalidated-by-failure", .recommended, rows: [84, 118], .origin(searching("params"), suffix: "?a=1"),
      .origin(status: 500, method: "POST", suffix: "?a=2"), .stored(suffix: "?a=3")),
    search(
      "nvs-invalidated-by-location", .optional, rows: [83, 118], .origin(searching("params"), suffix: "/made?a=1"),
      .origin([("Location", "nvs-invalidated-by-location/made?a=2")], status: 201, method: "POST"),
      .origin(suffix: "/made?a=1"), .origin(suffix: "/made?a=3")),
    search(
      "nvs-group-invalidated", .optional, rows: [109, 118],
      .origin(searching("params", "max-age=60", [("Cache-Groups", "\"g\"")]), suffix: "?a=1"),
      .origin([("Cache-Group-Invalidation", "\"g\"")], method: "POST", suffix: "/other"), .origin(suffix: "?a=2")),
  ]

  static let all = web + reuse + changes
}

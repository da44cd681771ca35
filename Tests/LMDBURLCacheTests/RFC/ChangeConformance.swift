import LoopbackOrigin

/// Invalidation by unsafe methods, and cache groups.
enum ChangeConformance {
  private static let kept = control("max-age=3600")

  private static func byMethod(_ method: String) -> [ConformanceCase] {
    let content: String? = method == "DELETE" || method == "M-SEARCH" ? nil : "x"
    return [
      ConformanceCase(
        "invalidated-by-\(method)", "9111 4.4", .required, rows: [25, 82], .origin(kept),
        .origin(method: method) { $0.content = content }, .origin()),
      ConformanceCase(
        "not-invalidated-by-failed-\(method)", "9111 4.4", .recommended, rows: [84], .origin(kept),
        .origin(status: 500, method: method) { $0.content = content },
        .stored()),
      ConformanceCase(
        "location-invalidated-by-\(method)", "9111 4.4", .optional, rows: [83], .origin(kept, suffix: "/made"),
        .origin([("Location", "location-invalidated-by-\(method)/made")], status: 201, method: method),
        .origin(suffix: "/made")),
      ConformanceCase(
        "content-location-invalidated-by-\(method)", "9111 4.4", .optional, rows: [83], .origin(kept, suffix: "/made"),
        .origin([("Content-Location", "/content-location-invalidated-by-\(method)/made")], method: method),
        .origin(suffix: "/made")),
    ]
  }

  static let methods: [ConformanceCase] = ["POST", "PUT", "DELETE", "PATCH", "M-SEARCH"].flatMap(byMethod)

  static let invalidation: [ConformanceCase] = [
    ConformanceCase(
      "invalidated-by-a-redirected-post", "9111 4.4", .required, rows: [84], .origin(kept),
      .origin(status: 303, method: "POST", body: ""), .origin()),
    ConformanceCase(
      "not-invalidated-by-404", "9111 4.4", .required, rows: [84], .origin(kept), .origin(status: 404, method: "POST"),
      .stored()),
    ConformanceCase(
      "not-invalidated-by-options", "9111 4.4", .recommended, rows: [82], .origin(kept), .origin(method: "OPTIONS"),
      .stored()),
    ConformanceCase(
      "not-invalidated-by-get", "9111 4.4", .recommended, rows: [82], .origin(kept),
      .origin([("Location", "/not-invalidated-by-get")], control("no-store"), suffix: "?other"), .stored()),
    ConformanceCase(
      "other-origin-not-invalidated", "9111 4.4", .required, rows: [83], .origin(kept, suffix: "/made"),
      .origin([("Location", "http://example.com/other-origin-not-invalidated/made")], status: 201, method: "POST"),
      .stored(suffix: "/made")),
    ConformanceCase(
      "other-port-not-invalidated", "9111 4.4", .required, rows: [83], .origin(kept, suffix: "/made"),
      .origin([("Content-Location", "http://127.0.0.1:1/other-port-not-invalidated/made")], method: "PUT"),
      .stored(suffix: "/made")),
    ConformanceCase(
      "other-url-not-invalidated", "9111 4.4", .recommended, rows: [82], .origin(kept, suffix: "?a"),
      .origin(method: "POST", suffix: "?b"), .stored(suffix: "?a")),
    ConformanceCase(
      "every-variant-invalidated", "9111 4.4", .required, rows: [84],
      .origin(control("max-age=3600", [("Vary", "Foo")]), [("Foo", "1")]),
      .origin(control("max-age=3600", [("Vary", "Foo")]), [("Foo", "2")]), .origin(method: "PUT"),
      .origin(after: 1, [("Foo", "1")]), .origin(after: 1, [("Foo", "2")])),
    ConformanceCase(
      "unsafe-methods-reach-the-origin", "9111 4", .required, rows: [25], .origin(kept), .origin(method: "DELETE"),
      .origin(method: "DELETE")),
  ]

  /// 32 names of 32 characters.
  private static var manyGroups: String {
    let names: [String] = (10..<42).map { number in "\"\(String(repeating: "g", count: 30))\(number)\"" }
    return names.joined(separator: ", ")
  }

  private static func grouped(_ groups: String) -> FieldLines { control("max-age=3600", [("Cache-Groups", groups)]) }

  static let groups: [ConformanceCase] = [
    ConformanceCase(
      "group-invalidated", "9875 3", .optional, rows: [107, 109], .origin(grouped("\"a\""), suffix: "?1"),
      .origin(grouped("\"b\""), suffix: "?2"),
      .origin([("Cache-Group-Invalidation", "\"a\"")], method: "POST", suffix: "?3"), .stored(bodyOf: 1, suffix: "?2"),
      .origin(suffix: "?1")),
    ConformanceCase(
      "group-one-of-several", "9875 3", .optional, rows: [107, 109], .origin(grouped("\"a\", \"b\""), suffix: "?1"),
      .origin([("Cache-Group-Invalidation", "\"c\", \"b\"")], method: "POST", suffix: "?3"), .origin(suffix: "?1")),
    ConformanceCase(
      "group-not-by-get", "9875 3", .required, rows: [109], .origin(grouped("\"a\""), suffix: "?1"),
      .origin([("Cache-Group-Invalidation", "\"a\"")], suffix: "?3"), .stored(suffix: "?1")),
    ConformanceCase(
      "group-not-by-an-error", "9875 3", .optional, rows: [109], .origin(grouped("\"a\""), suffix: "?1"),
      .origin([("Cache-Group-Invalidation", "\"a\"")], status: 500, method: "POST", suffix: "?3"), .stored(suffix: "?1")
    ),
    ConformanceCase(
      "group-case-matters", "9875 2", .required, rows: [107], .origin(grouped("\"a\""), suffix: "?1"),
      .origin([("Cache-Group-Invalidation", "\"A\"")], method: "POST", suffix: "?3"), .stored(suffix: "?1")),
    ConformanceCase(
      "group-no-cascade", "9875 2.2.2", .optional, rows: [108], .origin(grouped("\"a\", \"b\""), suffix: "?1"),
      .origin(grouped("\"b\""), suffix: "?2"),
      .origin([("Cache-Group-Invalidation", "\"a\"")], method: "POST", suffix: "?3"), .stored(bodyOf: 1, suffix: "?2")),
    ConformanceCase(
      "group-not-with-its-member", "9875 2.2.1", .optional, rows: [108], .origin(grouped("\"a\""), suffix: "?1"),
      .origin(grouped("\"a\""), suffix: "?2"), .origin(method: "POST", suffix: "?1"), .stored(bodyOf: 1, suffix: "?2")),
    ConformanceCase(
      "group-malformed", "9875 2", .required, rows: [107], .origin(grouped("a, \"b\""), suffix: "?1"),
      .origin([("Cache-Group-Invalidation", "\"b\"")], method: "POST", suffix: "?3"), .stored(suffix: "?1")),
    ConformanceCase(
      "group-32-of-32", "9875 2.1", .required, rows: [107],
      .origin(grouped(manyGroups), suffix: "?1"),
      .origin(
        [("Cache-Group-Invalidation", "\"\(String(repeating: "g", count: 30))41\"")], method: "POST", suffix: "?3"),
      .origin(suffix: "?1")),
  ]

  /// Returns a POST to the case's URL. `location` is the Content-Location of its response.
  private static func post(
    _ reply: FieldLines, location: String? = nil, status: Int = 200, _ request: FieldLines = []
  ) -> Step {
    .origin(reply + (location.map { [("Content-Location", $0)] } ?? []), status: status, request, method: "POST") {
      $0.content = "x"
    }
  }

  static let posts: [ConformanceCase] = [
    ConformanceCase(
      "post-is-not-reused-for-get", "9110 9.3.3", .required, rows: [1, 90], post(kept), .origin(after: 1)),
    ConformanceCase(
      "post-answers-a-later-get", "9110 9.3.3", .optional, rows: [90],
      post(kept, location: "/post-answers-a-later-get"), .stored(after: 1, shows: [("Age", "1")]),
      .stored(after: 1, method: "HEAD")),
    ConformanceCase(
      "post-with-expires-answers-a-later-get", "9110 9.3.3", .optional, rows: [90],
      post([("Expires", "@3600")], location: "post-with-expires-answers-a-later-get"), .stored(after: 1)),
    ConformanceCase(
      "post-replaces-what-get-brought", "9110 9.3.3", .optional, rows: [82, 90], .origin(kept),
      post(kept, location: "/post-replaces-what-get-brought"), .stored(after: 1, bodyOf: 1)),
    ConformanceCase(
      "post-is-not-answered-by-post", "9110 9.3.3", .required, rows: [25, 90],
      post(kept, location: "/post-is-not-answered-by-post"), post(kept)),
    ConformanceCase(
      "post-of-another-location", "9110 9.3.3", .required, rows: [90],
      post(kept, location: "/post-of-another-location?2"), .origin(after: 1), .origin(suffix: "?2")),
    ConformanceCase(
      "post-of-another-origin", "9110 9.3.3", .required, rows: [90],
      post(kept, location: "http://127.0.0.1:1/post-of-another-origin"), .origin(after: 1)),
    ConformanceCase(
      "post-without-lifetime", "9110 9.3.3", .required, rows: [90],
      post([("Last-Modified", "@-864000")], location: "/post-without-lifetime"), .origin(after: 1)),
    ConformanceCase(
      "post-failed", "9110 9.3.3", .required, rows: [84, 90], .origin(kept),
      post(kept, location: "/post-failed", status: 400), .stored(after: 1, bodyOf: 0)),
    ConformanceCase(
      "post-no-store", "9111 5.2.2.5", .required, rows: [4, 90],
      post(control("no-store, max-age=60"), location: "/post-no-store"), .origin(after: 1)),
    ConformanceCase(
      "post-varies", "9111 4.1", .required, rows: [29, 90],
      post(control("max-age=60", [("Vary", "Foo")]), location: "/post-varies", [("Foo", "1")]),
      .stored(after: 1, [("Foo", "1")]), .origin([("Foo", "2")])),
    ConformanceCase(
      "post-stale-is-validated", "9111 4.3.1", .recommended, rows: [63, 90],
      post(control("max-age=1", [("ETag", "\"a\"")]), location: "/post-stale-is-validated"),
      .validated([("ETag", "\"a\"")], after: 2, sees: [("If-None-Match", "\"a\"")])),
  ]

  static let all = methods + invalidation + groups + posts
}

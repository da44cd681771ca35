import LoopbackOrigin

/// Stale responses: during revalidation, on errors, and never if they are forbidden.
enum StaleConformance {
  private static let tag: FieldLines = [("ETag", "\"a\"")]

  /// The connection closes before the head.
  private static func broken(after: Double, _ request: FieldLines = [], expecting expected: Step.Expectation) -> Step {
    .origin(after: after, request) { step in
      step.shape = { $0.cut(.beforeHead) }
      step.expected = expected
      if expected != .failure { step.bodyOf = 0 }
    }
  }

  /// The origin replies with an error; the stored response is served, or not.
  private static func error(
    _ status: Int, after: Double, _ request: FieldLines = [], standsIn: Bool, validating: Bool = false
  ) -> Step {
    .origin(status: status, after: after, request) { step in
      if validating { step.expected = .validated }
      step.bodyOf = standsIn ? 0 : nil
      if !standsIn { step.expectedStatus = status }
    }
  }

  private static func background(
    after: Double, _ reply: FieldLines = [], status: Int = 200, _ request: FieldLines = [],
    shows: [(String, String?)] = []
  ) -> Step {
    .origin(reply, status: status, after: after, request, shows: shows) {
      $0.expected = .background
      $0.bodyOf = 0
    }
  }

  static let whileRevalidating: [ConformanceCase] = [
    ConformanceCase(
      "swr-inside", "5861 3", .recommended, rows: [57, 58], settings: .wired,
      .origin(control("max-age=60, stale-while-revalidate=60")),
      background(after: 90, control("max-age=60"), shows: [("Age", "90")]), .stored(after: 1, bodyOf: 1)),
    ConformanceCase(
      "swr-validates", "5861 3", .recommended, rows: [57, 58, 63], settings: .wired,
      .origin(control("max-age=60, stale-while-revalidate=60", tag)),
      background(after: 90, control("max-age=60", tag), status: 304), .stored(after: 1, shows: [("Age", "1")])),
    ConformanceCase(
      "swr-from-the-start", "5861 3", .recommended, rows: [57, 58], settings: .wired,
      .origin(control("max-age=0, stale-while-revalidate=3600", tag)),
      background(after: 0, control("max-age=3600", [("ETag", "\"b\"")]), shows: [("ETag", "\"a\"")]),
      .stored(after: 1, bodyOf: 1, shows: [("ETag", "\"b\"")])),
    ConformanceCase(
      "swr-past", "5861 3", .required, rows: [59], .origin(control("max-age=60, stale-while-revalidate=30")),
      .origin(after: 91)),
    ConformanceCase(
      "swr-at-its-end", "5861 3", .recommended, rows: [57], settings: .wired,
      .origin(control("max-age=60, stale-while-revalidate=30")), background(after: 90)),
    ConformanceCase(
      "swr-failing-keeps", "5861 3", .recommended, rows: [57], settings: .wired,
      .origin(control("max-age=60, stale-while-revalidate=60")), background(after: 70, status: 503),
      background(after: 10)),
    ConformanceCase(
      "swr-must-revalidate", "9111 5.2.2.2", .required, rows: [51, 53],
      .origin(control("max-age=60, stale-while-revalidate=60, must-revalidate")), .origin(after: 70)),
    ConformanceCase(
      "swr-no-cache", "9111 5.2.2.4", .required, rows: [23, 51],
      .origin(control("no-cache, stale-while-revalidate=60")), .origin(after: 1)),
    ConformanceCase(
      "swr-request-max-age", "9111 5.2.1.1", .recommended, rows: [78],
      .origin(control("max-age=60, stale-while-revalidate=60")), .origin(after: 70, control("max-age=10"))),
    ConformanceCase(
      "swr-request-max-age-met", "9111 5.2.1.1", .optional, rows: [57, 78], settings: .wired,
      .origin(control("max-age=60, stale-while-revalidate=60")), background(after: 70, [], control("max-age=100"))),
    ConformanceCase(
      "swr-request-max-stale", "9111 5.2.1.2", .required, rows: [52, 78],
      .origin(control("max-age=60, stale-while-revalidate=60")), .origin(after: 70, control("max-stale=5"))),
    ConformanceCase(
      "swr-request-max-stale-met", "9111 5.2.1.2", .optional, rows: [52, 78],
      .origin(control("max-age=60, stale-while-revalidate=60")), .stored(after: 70, control("max-stale=20"))),
    ConformanceCase(
      "swr-malformed", "9111 4.2.1", .required, rows: [36, 59],
      .origin(control("max-age=60, stale-while-revalidate=a")),
      .origin(after: 61)),
    ConformanceCase(
      "swr-proxy-revalidate-private", "9111 5.2.2.8", .optional, rows: [55], settings: .wired,
      .origin(control("max-age=60, stale-while-revalidate=60, proxy-revalidate")), background(after: 70)),
    ConformanceCase(
      "swr-proxy-revalidate-shared", "9111 5.2.2.8", .required, rows: [51, 55], settings: .shared,
      .origin(control("max-age=60, stale-while-revalidate=60, proxy-revalidate")), .origin(after: 70)),
    ConformanceCase(
      "swr-s-maxage-shared", "9111 5.2.2.10", .required, rows: [51, 56], settings: .shared,
      .origin(control("s-maxage=60, stale-while-revalidate=60")), .origin(after: 70)),
  ]

  static let standsIn: [ConformanceCase] = [500, 502, 503, 504].map { status -> ConformanceCase in
    ConformanceCase(
      "sie-\(status)", "5861 4", .recommended, rows: [60], .origin(control("max-age=60, stale-if-error=60")),
      error(status, after: 70, standsIn: true))
  }

  static let doesNotStandIn: [ConformanceCase] = [404, 501, 429].map { status -> ConformanceCase in
    ConformanceCase(
      "sie-not-\(status)", "5861 4", .required, rows: [60], .origin(control("max-age=60, stale-if-error=60")),
      error(status, after: 70, standsIn: false))
  }

  static let onErrors: [ConformanceCase] = [
    ConformanceCase(
      "sie-closed", "5861 4", .recommended, rows: [60, 62], .origin(control("max-age=60, stale-if-error=60")),
      broken(after: 70, expecting: .origin)),
    ConformanceCase(
      "sie-shows-its-age", "5861 4", .recommended, rows: [62], .origin(control("max-age=60, stale-if-error=60")),
      .origin(status: 503, after: 70, shows: [("Age", "70")]) { $0.bodyOf = 0 }),
    ConformanceCase(
      "sie-validating-503", "5861 4", .recommended, rows: [60, 69],
      .origin(control("max-age=60, stale-if-error=60", tag)),
      error(503, after: 70, standsIn: true, validating: true)),
    ConformanceCase(
      "sie-from-the-start", "5861 4", .recommended, rows: [60], .origin(control("max-age=0, stale-if-error=3600")),
      error(500, after: 1, standsIn: true)),
    ConformanceCase(
      "sie-in-the-request-past", "5861 4", .required, rows: [61], .origin(control("max-age=0")),
      error(500, after: 3, control("stale-if-error=1"), standsIn: false)),
    ConformanceCase(
      "sie-past-503", "5861 4", .required, rows: [61], .origin(control("max-age=60, stale-if-error=10")),
      error(503, after: 71, standsIn: false)),
    ConformanceCase(
      "sie-past-closed", "5861 4", .required, rows: [61], .origin(control("max-age=60, stale-if-error=10")),
      broken(after: 71, expecting: .failure)),
    ConformanceCase(
      "sie-in-the-request", "5861 4", .recommended, rows: [60], .origin(control("max-age=60")),
      error(503, after: 70, control("stale-if-error=60"), standsIn: true), error(503, after: 1, standsIn: false)),
    ConformanceCase(
      "sie-in-the-request-closed", "5861 4", .recommended, rows: [60], .origin(control("max-age=60")),
      broken(after: 70, control("stale-if-error=60"), expecting: .origin)),
    ConformanceCase(
      "sie-request-max-age", "9111 5.2.1.1", .required, rows: [52, 78],
      .origin(control("max-age=60, stale-if-error=60")),
      error(503, after: 70, control("max-age=10"), standsIn: false),
      error(503, after: 1, control("max-age=100"), standsIn: true)),
    ConformanceCase(
      "sie-request-max-age-closed", "9111 5.2.1.1", .required, rows: [52, 78],
      .origin(control("max-age=60, stale-if-error=60")),
      broken(after: 70, control("max-age=10"), expecting: .failure)),
    ConformanceCase(
      "sie-request-min-fresh", "9111 5.2.1.3", .required, rows: [52, 78],
      .origin(control("max-age=60, stale-if-error=60")),
      error(503, after: 70, control("min-fresh=5"), standsIn: false)),
    ConformanceCase(
      "sie-in-the-request-with-max-age", "9111 5.2.1.1", .optional, rows: [52, 78], .origin(control("max-age=60")),
      error(503, after: 70, control("max-age=10, stale-if-error=60"), standsIn: false)),
    ConformanceCase(
      "503-passed-on", "9111 4.2.4", .required, rows: [52, 69], .origin(control("max-age=60")),
      error(503, after: 70, standsIn: false)),
    ConformanceCase(
      "closed-is-an-error", "9111 4.2.4", .required, rows: [52], .origin(control("max-age=60")),
      broken(after: 70, expecting: .failure)),
    ConformanceCase(
      "fresh-needs-no-origin", "9111 4.2", .recommended, rows: [22], .origin(control("max-age=60")),
      broken(after: 30, expecting: .stored)),
  ]

  static let forbidden: [ConformanceCase] = ["must-revalidate", "no-cache"].flatMap { directive -> [ConformanceCase] in
    [
      ConformanceCase(
        "closed-\(directive)", "9111 5.2.2.2", .required, rows: [23, 51, 53, 54],
        .origin(control("max-age=1, stale-if-error=60, \(directive)")), broken(after: 2, expecting: .failure)),
      ConformanceCase(
        "503-\(directive)", "9111 5.2.2.2", .required, rows: [23, 51, 53],
        .origin(control("max-age=1, stale-if-error=60, \(directive)")), error(503, after: 2, standsIn: false)),
      ConformanceCase(
        "closed-\(directive)-asked-for", "9111 5.2.2.2", .required, rows: [51, 53],
        .origin(control("max-age=1, \(directive)")),
        broken(after: 2, control("max-stale=60, stale-if-error=60"), expecting: .failure)),
    ]
  }

  static let forbiddenToShared: [ConformanceCase] = ["proxy-revalidate, max-age=1", "s-maxage=1"].flatMap {
    value -> [ConformanceCase] in
    let name = String(value.prefix { $0 != "," && $0 != "=" })
    return [
      ConformanceCase(
        "shared-closed-\(name)", "9111 5.2.2.8", .required, rows: [51, 55, 56], settings: .shared,
        .origin(control("stale-if-error=60, \(value)")), broken(after: 2, expecting: .failure)),
      ConformanceCase(
        "shared-503-\(name)", "9111 5.2.2.8", .required, rows: [51, 55, 56], settings: .shared,
        .origin(control("stale-if-error=60, \(value)")), error(503, after: 2, standsIn: false)),
    ]
  }

  static let all: [ConformanceCase] = [
    whileRevalidating, standsIn, doesNotStandIn, onErrors, forbidden, forbiddenToShared,
  ].flatMap { $0 }
}

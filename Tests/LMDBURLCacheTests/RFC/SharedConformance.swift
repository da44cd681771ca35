import Foundation
import FoundationNetworking

/// Shared mode, targeted fields and Cache-Status, which are options, and Foundation's cache policies.
enum SharedConformance {
  private typealias Settings = ConformanceCase.Settings

  private static func shared(
    _ id: String, _ section: String, _ kind: ConformanceCase.Kind, rows: [Int], _ reply: FieldLines, after: Double = 1,
    reused: Bool, shows: [(String, String?)] = []
  ) -> ConformanceCase {
    ConformanceCase(
      id, section, kind, rows: rows, settings: .shared, .origin(reply),
      reused ? .stored(after: after, shows: shows) : .origin(after: after))
  }

  static let mode: [ConformanceCase] = [
    shared("shared-private", "9111 5.2.2.7", .required, rows: [5], control("private, max-age=3600"), reused: false),
    shared(
      "shared-private-field", "9111 5.2.2.7", .required, rows: [13],
      control("private=\"x-a\", max-age=3600", [("X-A", "1"), ("X-B", "2")]), reused: true,
      shows: [("X-A", nil), ("X-B", "2")]),
    shared(
      "shared-private-malformed-field", "9111 5.2.2.7", .required, rows: [5], control("private=\"x a\", max-age=3600"),
      reused: false),
    shared("shared-s-maxage", "9111 5.2.2.10", .recommended, rows: [35], control("s-maxage=3600"), reused: true),
    shared(
      "shared-s-maxage-first", "9111 4.2.1", .required, rows: [35], control("max-age=3600, s-maxage=1"), after: 2,
      reused: false),
    shared(
      "shared-s-maxage-longer", "9111 4.2.1", .recommended, rows: [35], control("max-age=1, s-maxage=3600"), after: 2,
      reused: true),
    shared(
      "shared-s-maxage-over-expires", "9111 5.3", .required, rows: [45], control("s-maxage=3600", [("Expires", "@-1")]),
      reused: true),
    shared(
      "shared-s-maxage-malformed", "9111 4.2.1", .required, rows: [36], control("s-maxage=a, max-age=3600"),
      reused: false),
    shared("shared-s-maxage-quoted", "9111 5.2", .recommended, rows: [77], control("s-maxage=\"3600\""), reused: true),
    shared(
      "shared-set-cookie-stays-out", "9111 7.3", .recommended, rows: [85],
      control("max-age=3600", [("Set-Cookie", "a=b")]), reused: true, shows: [("Set-Cookie", nil)]),
    shared(
      "shared-proxy-revalidate-fresh", "9111 5.2.2.8", .recommended, rows: [55],
      control("max-age=60, proxy-revalidate"), reused: true),
    shared(
      "shared-no-transform", "9111 5.2.2.6", .required, rows: [79], control("max-age=60, no-transform"), reused: true,
      shows: [("Cache-Control", "max-age=60, no-transform")]),
    shared("shared-heuristic", "9111 4.2.2", .recommended, rows: [47], [("Last-Modified", "@-864000")], reused: true),
    ConformanceCase(
      "shared-immutable-asked-for", "8246 2.1", .recommended, rows: [94], settings: .shared,
      .origin(control("max-age=3600, immutable")), .origin(after: 1, control("no-cache"))),
  ]

  private static func targeted(
    _ id: String, _ section: String, _ kind: ConformanceCase.Kind, rows: [Int], _ reply: FieldLines, after: Double = 1,
    reused: Bool, names: [String] = ["CDN-Cache-Control"]
  ) -> ConformanceCase {
    ConformanceCase(
      id, section, kind, rows: rows, settings: Settings(caching: .shared, targetedFieldNames: names), .origin(reply),
      reused ? .stored(after: after) : .origin(after: after))
  }

  private static func cdn(_ value: String, _ more: FieldLines = []) -> FieldLines {
    [("CDN-Cache-Control", value)] + more
  }

  static let targets: [ConformanceCase] = [
    targeted("targeted-max-age", "9213 2.2", .required, rows: [104, 106], cdn("max-age=3600"), reused: true),
    targeted(
      "targeted-over-cache-control", "9213 2.2", .required, rows: [104], cdn("max-age=3600", control("max-age=1")),
      after: 2, reused: true),
    targeted(
      "targeted-over-no-store", "9213 2.2", .required, rows: [104], cdn("max-age=3600", control("no-store")),
      reused: true),
    targeted(
      "targeted-no-store", "9213 2.2", .required, rows: [106], cdn("no-store", control("max-age=3600")), reused: false),
    targeted(
      "targeted-no-cache", "9213 2.2", .required, rows: [106], cdn("no-cache", control("max-age=3600")), reused: false),
    targeted("targeted-private", "9213 2.2", .required, rows: [106], cdn("private, max-age=3600"), reused: false),
    targeted(
      "targeted-over-expires", "9213 2.2", .required, rows: [104], cdn("must-revalidate", [("Expires", "@3600")]),
      reused: false),
    targeted("targeted-empty", "9213 2.1", .required, rows: [102], cdn("", control("max-age=3600")), reused: true),
    targeted(
      "targeted-unparsable", "9213 2.1", .required, rows: [102], cdn("max-age=1, &", control("max-age=3600")), after: 2,
      reused: true),
    targeted("targeted-decimal", "9213 2.1", .recommended, rows: [103], cdn("max-age=3600.0"), reused: false),
    targeted("targeted-string", "9213 2.1", .recommended, rows: [103], cdn("max-age=\"3600\""), reused: false),
    targeted("targeted-parameters", "9213 2.1", .recommended, rows: [103], cdn("max-age=3600;a=b"), reused: true),
    targeted(
      "targeted-repeated-last-counts", "9213 2.1", .required, rows: [102], cdn("max-age=1, max-age=3600"), after: 2,
      reused: true),
    targeted(
      "targeted-two-lines", "9213 2.1", .required, rows: [102],
      [("CDN-Cache-Control", "foo"), ("CDN-Cache-Control", "max-age=3600")], reused: true),
    targeted(
      "targeted-first-of-list", "9213 2.2", .required, rows: [104],
      cdn("max-age=1", [("Mine-Cache-Control", "max-age=3600")]), after: 2, reused: true,
      names: ["Mine-Cache-Control", "CDN-Cache-Control"]),
    targeted(
      "targeted-not-listed", "9213 2.2", .required, rows: [105], cdn("max-age=3600", control("max-age=1")), after: 2,
      reused: false, names: []),
    ConformanceCase(
      "targeted-passes-through", "9213 2.2", .required, rows: [105],
      .origin(control("max-age=3600", [("CDN-Cache-Control", "no-store")]), shows: [("CDN-Cache-Control", "no-store")]),
      .stored(after: 1, shows: [("CDN-Cache-Control", "no-store")])),
  ]

  private static let named = Settings(cacheStatusName: "mine", isPure: false)

  static let cacheStatus: [ConformanceCase] = [
    ConformanceCase(
      "cache-status-miss-and-hit", "9211 2", .required, rows: [96, 99, 100], settings: named,
      .origin(control("max-age=3600"), shows: [("Cache-Status", "mine; fwd=uri-miss; stored")]),
      .stored(after: 10, shows: [("Cache-Status", "mine; hit; ttl=3590")])),
    ConformanceCase(
      "cache-status-not-stored", "9211 2.4", .required, rows: [100], settings: named,
      .origin(control("no-store"), shows: [("Cache-Status", "mine; fwd=uri-miss")])),
    ConformanceCase(
      "cache-status-stale", "9211 2.2", .required, rows: [99, 100], settings: named,
      .origin(control("max-age=1", [("ETag", "\"a\"")])),
      .validated(
        control("max-age=1", [("ETag", "\"a\"")]), after: 2,
        shows: [("Cache-Status", "mine; fwd=stale; fwd-status=304; stored")])),
    ConformanceCase(
      "cache-status-request", "9211 2.2", .recommended, rows: [99], settings: named, .origin(control("max-age=3600")),
      .origin(
        control("max-age=3600"), after: 1, control("no-cache"), shows: [("Cache-Status", "mine; fwd=request; stored")])),
    ConformanceCase(
      "cache-status-vary-miss", "9211 2.2", .recommended, rows: [99], settings: named,
      .origin(control("max-age=3600", [("Vary", "Foo")]), [("Foo", "1")]),
      .origin(
        control("max-age=3600", [("Vary", "Foo")]), [("Foo", "2")],
        shows: [("Cache-Status", "mine; fwd=vary-miss; stored")])),
    ConformanceCase(
      "cache-status-partial", "9211 2.2", .recommended, rows: [99], settings: named,
      .origin(
        control("max-age=3600", [("Content-Range", "bytes 0-1/6")]), status: 206, [("Range", "bytes=0-1")], body: "bo"),
      .origin(control("max-age=3600"), after: 1, shows: [("Cache-Status", "mine; fwd=partial; stored")])),
    ConformanceCase(
      "cache-status-stale-hit", "9211 2.1", .required, rows: [100], settings: named, .origin(control("max-age=60")),
      .stored(after: 70, control("max-stale"), shows: [("Cache-Status", "mine; hit; ttl=-10")])),
    ConformanceCase(
      "cache-status-on-error", "9211 2", .required, rows: [99, 100], settings: named,
      .origin(control("max-age=60, stale-if-error=60")),
      .origin(status: 503, after: 70, shows: [("Cache-Status", "mine; fwd=stale; fwd-status=503")]) { $0.bodyOf = 0 }),
    ConformanceCase(
      "cache-status-appended", "9211 2", .recommended, rows: [97], settings: named,
      .origin(
        control("max-age=3600", [("Cache-Status", "far; hit")]),
        shows: [("Cache-Status", "far; hit, mine; fwd=uri-miss; stored")]),
      .stored(after: 1, shows: [("Cache-Status", "far; hit, mine; hit; ttl=3599")])),
    ConformanceCase(
      "cache-status-not-made-up", "9211 2", .recommended, rows: [98], settings: named,
      .stored(control("only-if-cached"), status: 504, body: "", shows: [("Cache-Status", nil)])),
    ConformanceCase(
      "cache-status-method", "9211 2.2", .recommended, rows: [99],
      settings: Settings(cacheStatusName: "mine", isPure: false),
      .origin(method: "POST", shows: [("Cache-Status", "mine; fwd=method")])),
    ConformanceCase(
      "cache-status-bypass", "9211 2.2", .recommended, rows: [99], settings: named,
      .origin(after: 0, control("no-store"), shows: [("Cache-Status", "mine; fwd=bypass")])),
    ConformanceCase(
      "cache-status-304-to-the-caller", "9211 2", .recommended, rows: [98], settings: named,
      .origin(control("max-age=3600", [("ETag", "\"a\"")])),
      .stored(after: 1, [("If-None-Match", "\"a\"")], status: 304, shows: [("Cache-Status", "mine; hit; ttl=3599")])),
    ConformanceCase(
      "cache-status-quoted-name", "9211 2", .required, rows: [96],
      settings: Settings(cacheStatusName: "my cache", isPure: false),
      .origin(shows: [("Cache-Status", "\"my cache\"; fwd=uri-miss; stored")])),
    ConformanceCase(
      "cache-status-off-by-default", "9211 6", .recommended, rows: [101],
      .origin(control("max-age=3600"), shows: [("Cache-Status", nil)]),
      .stored(shows: [("Cache-Status", nil)])),
    ConformanceCase(
      "cache-status-no-detail", "9211 6", .recommended, rows: [101], settings: named, .origin(control("max-age=3600")),
      .stored(shows: [("Cache-Status", "mine; hit; ttl=3600")])),
  ]

  private static func policy(
    _ id: String, rows: [Int], _ policy: URLRequest.CachePolicy, _ first: FieldLines, _ step: Step
  ) -> ConformanceCase {
    var step = step
    step.policy = policy
    return ConformanceCase(id, "9111 4", .optional, rows: rows, .origin(first), step)
  }

  static let policies: [ConformanceCase] = [
    policy(
      "policy-reload-ignores", rows: [22], .reloadIgnoringLocalCacheData, control("max-age=3600"),
      .origin(sees: [("Cache-Control", nil)])),
    policy(
      "policy-reload-tells-others", rows: [22], .reloadIgnoringLocalAndRemoteCacheData, control("max-age=3600"),
      .origin(sees: [("Cache-Control", "no-cache"), ("Pragma", "no-cache")])),
    policy("policy-else-load-fresh", rows: [22], .returnCacheDataElseLoad, control("max-age=3600"), .stored(after: 1)),
    policy(
      "policy-else-load-stale", rows: [52], .returnCacheDataElseLoad, control("max-age=1"),
      .stored(after: 100, shows: [("Age", "100")])),
    policy("policy-else-load-no-cache", rows: [52], .returnCacheDataElseLoad, control("no-cache"), .stored(after: 1)),
    policy("policy-dont-load-stale", rows: [52], .returnCacheDataDontLoad, control("max-age=1"), .stored(after: 100)),
    policy(
      "policy-dont-load-nothing", rows: [22], .returnCacheDataDontLoad, control("no-store"), Step(expected: .failure)),
    policy(
      "policy-revalidates", rows: [63], .reloadRevalidatingCacheData, control("max-age=3600", [("ETag", "\"a\"")]),
      .validated([("ETag", "\"a\"")], sees: [("Cache-Control", "max-age=0")])),
  ]

  static let all = mode + targets + cacheStatus + policies
}

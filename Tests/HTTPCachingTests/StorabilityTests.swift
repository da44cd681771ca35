import Foundation
import HTTPCaching
import Testing

@Suite("Storability of responses")
struct StorabilityTests {
  @Test("A response that is stored manually has an explicit lifetime if it declares one for this cache")
  func explicitLifetime() {
    func declares(_ lines: Lines, _ options: CachingOptions = CachingOptions()) -> Bool {
      ManualStorage(
        request: head([]), response: ResponseHead(status: 200, fields: fields(lines)), responseTime: start,
        options: options
      ).hasExplicitLifetime
    }
    let forAll: Lines = [("Cache-Control", "s-maxage=60")]
    #expect(declares(forAll, shared()))
    #expect(!declares(forAll))
    let targeted: Lines = [("Expires", "@60"), ("CDN-Cache-Control", "public")]
    #expect(declares(targeted))
    #expect(!declares(targeted, shared { $0.targetedFieldNames = ["CDN-Cache-Control"] }))
    #expect(declares([("Cache-Control", "no-cache")]))
    #expect(declares([("Cache-Control", "max-age=60")]))
    #expect(!declares([("ETag", "\"1\"")]))
  }

  struct Case: RequirementCase {
    let id: String
    let section: String
    let rows: [Int]
    let exchange: Exchange
    /// The rule that prevents storing; nil if the response is stored.
    let refusal: String?

    init(_ id: String, _ section: String, rows: [Int], _ exchange: Exchange, refused refusal: String? = nil) {
      self.id = id
      self.section = section
      self.rows = rows
      self.exchange = exchange
      self.refusal = refusal
    }
  }

  static let fresh: Lines = dated([("Cache-Control", "max-age=60")])
  static let secret: Lines = [("Authorization", "Basic x")]
  static let part: Lines = fresh + [("Content-Range", "bytes 0-10/20"), ("ETag", "\"a\"")]

  static let methodsAndStatuses: [Case] = [
    Case("method-get", "9111 3", rows: [1], Exchange(response: fresh)),
    Case("method-put", "9111 3", rows: [1], Exchange(method: "PUT", response: fresh), refused: "method-not-cached"),
    Case("method-query", "9111 3", rows: [1], Exchange(method: "QUERY", response: fresh), refused: "method-not-cached"),
    Case(
      "method-lower-case", "9110 9.1", rows: [1], Exchange(method: "get", response: fresh), refused: "method-not-cached"
    ),
    Case(
      "method-head", "9111 4.3.5", rows: [1, 73], Exchange(method: "HEAD", response: fresh),
      refused: "head-only-updates"),
    Case(
      "method-post", "9110 9.3.3", rows: [90],
      Exchange(method: "POST", response: fresh + [("Content-Location", "/a?b=1")])),
    Case(
      "method-post-other-location", "9110 9.3.3", rows: [90],
      Exchange(method: "POST", response: fresh + [("Content-Location", "/a?b=2")]), refused: "post-not-cached"),
    Case(
      "method-post-two-locations", "9110 9.3.3", rows: [90],
      Exchange(method: "POST", response: fresh + [("Content-Location", "/a?b=1"), ("Content-Location", "/a")]),
      refused: "post-not-cached"),
    Case(
      "method-post-no-location", "9110 9.3.3", rows: [90], Exchange(method: "POST", response: fresh),
      refused: "post-not-cached"),
    Case(
      "method-post-no-lifetime", "9110 9.3.3", rows: [90],
      Exchange(method: "POST", response: dated([("Content-Location", "/a?b=1")])), refused: "post-not-cached"),
    Case(
      "method-post-error", "9110 9.3.3", rows: [90],
      Exchange(method: "POST", status: 404, response: fresh + [("Content-Location", "/a?b=1")]),
      refused: "post-not-cached"),
    Case("status-103", "9111 3", rows: [2], Exchange(status: 103, response: fresh), refused: "interim"),
    Case("status-100", "9111 3", rows: [2], Exchange(status: 100, response: fresh), refused: "interim"),
    Case("status-304", "9111 3", rows: [3], Exchange(status: 304, response: fresh), refused: "304-not-stored"),
    Case("status-299", "9111 3", rows: [3], Exchange(status: 299, response: fresh)),
    Case("status-302", "9111 3", rows: [7], Exchange(status: 302, response: fresh)),
    Case("status-429", "6585 4", rows: [3], Exchange(status: 429, response: fresh), refused: "status-not-cached"),
    Case("status-416", "9110 15.5.17", rows: [3], Exchange(status: 416, response: fresh), refused: "status-not-cached"),
    Case("status-412", "9110 15.5.13", rows: [3], Exchange(status: 412, response: fresh), refused: "status-not-cached"),
    Case("status-700", "9110 15", rows: [3], Exchange(status: 700, response: fresh), refused: "status-not-cached"),
    Case(
      "206-asked", "9111 3.3", rows: [3, 15, 88],
      Exchange(request: [("Range", "bytes=0-10")], status: 206, response: part)),
    Case(
      "206-not-asked", "9111 3.3", rows: [15, 88], Exchange(status: 206, response: part), refused: "part-not-usable"),
    Case(
      "206-no-content-range", "9110 15.3.7", rows: [15, 88],
      Exchange(request: [("Range", "bytes=0-10")], status: 206, response: fresh), refused: "part-not-usable"),
    Case(
      "206-other-unit", "9110 14.4", rows: [15, 87],
      Exchange(request: [("Range", "x=0-10")], status: 206, response: fresh + [("Content-Range", "x 0-10/20")]),
      refused: "part-not-usable"),
    Case(
      "206-multipart", "9110 15.3.7.2", rows: [15, 88],
      Exchange(
        request: [("Range", "bytes=0-1,3-4")], status: 206,
        response: part + [("Content-Type", "Multipart/Byteranges; boundary=x")]), refused: "part-not-usable"),
    Case(
      "206-switched-off", "9111 3.3", rows: [3, 15],
      Exchange(
        request: [("Range", "bytes=0-10")], status: 206, response: part,
        options: privately { $0.storesPartialContent = false }), refused: "part-not-usable"),
    Case(
      "url-file", "9110 4.2", rows: [21], Exchange(url: URL(string: "file:///a")!, response: fresh), refused: "not-http"
    ),
    Case(
      "value-with-newline", "9110 5.5", rows: [91], Exchange(response: fresh + [("X", "a\r\nSet-Cookie: b")]),
      refused: "malformed-field"),
    Case(
      "value-with-nul", "9110 5.5", rows: [91], Exchange(response: fresh + [("X", "a\0")]), refused: "malformed-field"),
    Case("bad-name", "9110 5.1", rows: [91], Exchange(response: fresh + [("X Y", "a")]), refused: "malformed-field"),
    Case("vary-star", "9111 4.1", rows: [31], Exchange(response: fresh + [("Vary", "Foo, *")]), refused: "vary-star"),
  ]

  static let directives: [Case] = [
    Case(
      "no-store-any-case", "9111 5.2", rows: [4, 77], Exchange(response: [("Cache-Control", "No-StOrE")]),
      refused: "no-store"),
    Case(
      "no-store-quoted-is-not", "9111 5.2", rows: [4, 77],
      Exchange(response: [("Cache-Control", "max-age=60, x=\"no-store\"")])),
    Case(
      "private-in-private", "9111 5.2.2.7", rows: [5, 7],
      Exchange(status: 201, response: [("Cache-Control", "private")])),
    Case(
      "private-in-shared", "9111 5.2.2.7", rows: [5],
      Exchange(response: [("Cache-Control", "private, max-age=60")], options: shared()), refused: "private"),
    Case(
      "private-fields-in-shared", "9111 5.2.2.7", rows: [5, 13],
      Exchange(response: [("Cache-Control", "private=\"x\", max-age=60")], options: shared())),
    Case(
      "private-vary-in-shared", "9111 5.2.2.7", rows: [13],
      Exchange(response: [("Cache-Control", "private=\"vary\", max-age=60")], options: shared()), refused: "private"),
    Case("authorization-in-private", "9111 3.5", rows: [6], Exchange(request: secret, response: fresh)),
    Case(
      "authorization-in-shared", "9111 3.5", rows: [6], Exchange(request: secret, response: fresh, options: shared()),
      refused: "authorization"),
    Case(
      "authorization-public", "9111 3.5", rows: [6, 34],
      Exchange(request: secret, response: [("Cache-Control", "max-age=60, public")], options: shared())),
    Case(
      "authorization-s-maxage", "9111 3.5", rows: [6, 34],
      Exchange(request: secret, response: [("Cache-Control", "s-maxage=60")], options: shared())),
    Case(
      "authorization-must-revalidate", "9111 3.5", rows: [6, 34],
      Exchange(request: secret, response: [("Cache-Control", "max-age=60, must-revalidate")], options: shared())),
    Case("ground-none", "9111 3", rows: [7], Exchange(status: 202, response: dated([])), refused: "no-ground"),
    Case("ground-status", "9111 3", rows: [7], Exchange(status: 404, response: dated([]))),
    Case("ground-expires", "9111 3", rows: [7], Exchange(status: 202, response: dated([("Expires", "@60")]))),
    Case("ground-public", "9111 3", rows: [7], Exchange(status: 202, response: [("Cache-Control", "public")])),
    Case(
      "ground-s-maxage-private", "9111 3", rows: [7],
      Exchange(status: 202, response: [("Cache-Control", "s-maxage=60")]), refused: "no-ground"),
    Case(
      "ground-s-maxage-shared", "9111 3", rows: [7],
      Exchange(status: 202, response: [("Cache-Control", "s-maxage=60")], options: shared())),
    Case(
      "ground-private-shared", "9111 3", rows: [7],
      Exchange(status: 202, response: [("Cache-Control", "private=\"x\"")], options: shared()), refused: "no-ground"),
  ]

  /// Well-formed directives that permit a shared cache to store a response to a request with credentials.
  static let grants: [Case] = [
    "public", "PUBLIC", "s-maxage=60", "s-maxage=\"60\"", "must-revalidate", "public ", " public", "x=\"a\", public",
    "public, x=\"a", "public=x, public", "foo bar, public",
  ].map { value in
    Case(
      "authorization-granted: \(value)", "9111 3.5", rows: [6, 34],
      Exchange(request: secret, response: fresh + [("Cache-Control", value)], options: shared()))
  }

  /// Malformed directives, which permit nothing.
  static let malformedGrants: [Case] = [
    "public=x", "public=", "public =", "public =x", "public=\"x\"", "public\u{a0}", "public; foo", "public foo",
    "must-revalidate=x", "must-revalidate=", "must-revalidate =", "must-revalidate\u{a0}", "s-maxage", "s-maxage=",
    "s-maxage=x", "s-maxage=-1", "s-maxage =60", "s-maxage=60\u{a0}", "x=\"a, public", "x=\"a, must-revalidate",
    "x=\"a, s-maxage=60", "x \"a, public", "\"public", "x=\"public\\\", y",
  ].map { value in
    Case(
      "authorization-malformed: \(value)", "9111 3.5", rows: [6, 77],
      Exchange(request: secret, response: fresh + [("Cache-Control", value)], options: shared()),
      refused: "authorization")
  }

  static let malformed: [Case] = [
    Case(
      "authorization-after-open-quote-in-line", "9111 3.5", rows: [6, 77],
      Exchange(
        request: secret, response: fresh + [("Cache-Control", "x=\"a"), ("Cache-Control", "public")],
        options: shared()), refused: "authorization"),
    Case(
      "authorization-targeted-number", "9213 2.1", rows: [6, 103],
      Exchange(
        request: secret, response: [("CDN-Cache-Control", "max-age=60, public=1")],
        options: shared { $0.targetedFieldNames = ["CDN-Cache-Control"] }), refused: "authorization"),
    Case(
      "authorization-targeted", "9213 2.2", rows: [6, 106],
      Exchange(
        request: secret, response: [("CDN-Cache-Control", "max-age=60, public;a=b")],
        options: shared { $0.targetedFieldNames = ["CDN-Cache-Control"] })),
    Case(
      "targeted-no-store-number", "9213 2.1", rows: [103, 106],
      Exchange(
        response: [("CDN-Cache-Control", "max-age=60, no-store=1")],
        options: shared { $0.targetedFieldNames = ["CDN-Cache-Control"] }), refused: "no-store"),
    Case(
      "ground-public-malformed", "9111 3", rows: [7], Exchange(status: 202, response: [("Cache-Control", "public=x")]),
      refused: "no-ground"),
    Case(
      "no-store-argument", "9111 5.2.2.5", rows: [4, 77],
      Exchange(response: [("Cache-Control", "max-age=60, no-store=x")]),
      refused: "no-store"),
    Case(
      "no-store-no-argument", "9111 5.2.2.5", rows: [4, 77],
      Exchange(response: [("Cache-Control", "max-age=60, no-store=")]), refused: "no-store"),
    Case(
      "no-store-surplus", "9111 5.2.2.5", rows: [4, 77],
      Exchange(response: [("Cache-Control", "max-age=60, no-store\u{a0}")]), refused: "no-store"),
    Case(
      "private-no-argument-shared", "9111 5.2.2.7", rows: [5, 77],
      Exchange(response: [("Cache-Control", "max-age=60, private=")], options: shared()), refused: "private"),
    Case(
      "private-behind-open-quote", "9111 5.2.2.7", rows: [5, 77],
      Exchange(response: [("Cache-Control", "max-age=60, x=\"a, private=b")], options: shared()), refused: "private"
    ),
    Case(
      "must-understand-malformed", "9111 5.2.2.3", rows: [76, 77],
      Exchange(response: [("Cache-Control", "max-age=60, no-store, must-understand=x")]), refused: "no-store"),
    Case(
      "must-understand-behind-open-quote", "9111 5.2.2.3", rows: [76, 77],
      Exchange(response: [("Cache-Control", "max-age=60, no-store, x=\"a, must-understand")]), refused: "no-store"),
    Case(
      "must-understand-malformed-unknown", "9111 5.2.2.3", rows: [76, 77],
      Exchange(status: 599, response: [("Cache-Control", "max-age=60, must-understand=x")]), refused: "must-understand"),
  ]

  @Test("A malformed directive restricts and permits nothing", arguments: grants + malformedGrants + malformed)
  func malformedDirective(_ test: Case) { decides(test) }

  @Test("Each response is stored or refused by the expected rule", arguments: methodsAndStatuses + directives)
  func decides(_ test: Case) {
    #expect(test.exchange.refusal == test.refusal)
    // So `urlcache explain` knows the text of each.
    if let refusal = test.refusal { #expect(Rule.refusals.contains { $0.id == refusal }) }
  }

  struct FieldCase: RequirementCase {
    let id: String
    let section: String
    let rows: [Int]
    let response: Lines
    var options = CachingOptions()
    let kept: [String]
    let dropped: [String]
  }

  static let keptFields: [FieldCase] = [
    FieldCase(
      id: "keep-unknown", section: "9111 3.1", rows: [9],
      response: [("X-New", "1"), ("Set-Cookie", "a"), ("Age", "1")],
      kept: ["X-New", "Set-Cookie", "Age"], dropped: []),
    FieldCase(
      id: "drop-hop-by-hop", section: "9111 3.1", rows: [10, 11],
      response: [
        ("Connection", "a, b"), ("a", "1"), ("B", "2"), ("c", "3"), ("Keep-Alive", "x"), ("TE", "x"), ("Upgrade", "x"),
        ("Transfer-Encoding", "chunked"), ("Proxy-Authenticate", "x"), ("Proxy-Authentication-Info", "x"),
        ("Proxy-Authorization", "x"), ("Proxy-Connection", "x"), ("Trailer", "x"),
      ],
      kept: ["c"],
      dropped: [
        "Connection", "a", "b", "Keep-Alive", "TE", "Upgrade", "Transfer-Encoding", "Proxy-Authenticate",
        "Proxy-Authentication-Info", "Proxy-Authorization", "Proxy-Connection", "Trailer",
      ]),
    FieldCase(
      id: "connection-cannot-drop-vary", section: "9110 7.6.1", rows: [10, 29],
      response: [("Connection", "Vary, cache-control"), ("Vary", "Foo")], kept: ["Vary", "Cache-Control"], dropped: []),
    FieldCase(
      id: "qualified-no-cache", section: "9111 5.2.2.4", rows: [12],
      response: [("Cache-Control", "no-cache=\"A, b\""), ("a", "1"), ("b", "2"), ("c", "3")], kept: ["c"],
      dropped: ["a", "b"]),
    FieldCase(
      id: "qualified-private-shared", section: "9111 5.2.2.7", rows: [13],
      response: [("Cache-Control", "private=\"a\""), ("a", "1"), ("b", "2")], options: shared(), kept: ["b"],
      dropped: ["a"]),
    FieldCase(
      id: "qualified-private-private", section: "9111 5.2.2.7", rows: [13],
      response: [("Cache-Control", "private=\"a\""), ("a", "1")], kept: ["a"], dropped: []),
    FieldCase(
      id: "targeted-passes", section: "9213 2.2", rows: [105], response: [("CDN-Cache-Control", "max-age=1")],
      kept: ["CDN-Cache-Control"], dropped: []),
  ]

  @Test("A stored response keeps all fields except those that a cache must drop", arguments: keptFields)
  func keeps(_ test: FieldCase) throws {
    let exchange = Exchange(response: Self.fresh + test.response, options: test.options)
    let stored = try #require(exchange.stored).fields
    for name in test.kept { #expect(stored.contains(name), "\(name)") }
    for name in test.dropped { #expect(!stored.contains(name), "\(name)") }
  }

  /// Row 20; RFC 9110, 6.6.1.
  @Test("The time of receipt replaces a missing or invalid Date", arguments: [nil, "yesterday"] as [String?])
  func addsDate(date: String?) throws {
    let lines: Lines = [("Cache-Control", "max-age=60")] + (date.map { [("Date", $0)] } ?? [])
    let stored = try #require(Exchange(response: lines).stored)
    #expect(stored.fields.values(of: "Date") == ["Fri, 15 Jan 2027 08:00:00 GMT"])
    #expect(stored.freshness.date == start)
    #expect(stored.freshness.flags.contains(.dateAssumed))
  }

  /// Row 12; RFC 9111, 5.2.2.4: if a named field cannot be dropped, the whole response requires validation.
  @Test func qualifiedNoCacheOnVaryAppliesToTheResponse() {
    let exchange = Exchange(response: [("Cache-Control", "max-age=60, no-cache=\"Vary\""), ("ETag", "\"a\"")])
    #expect(exchange.then() == "revalidate:no-cache")
  }

  @Test("A response with more than 1,000 fields or 256 KiB of fields is not stored")
  func limits() {
    func decide(_ fields: Lines) -> Storability {
      Storability.decide(
        request: RequestHead(method: "GET", url: URL(string: "http://a.example/")!, fields: HeaderFields()),
        response: ResponseHead(status: 200, fields: HeaderFields(fields)), requestTime: Date(), responseTime: Date(),
        options: CachingOptions())
    }
    func isStored(_ fields: Lines) -> Bool {
      if case .store = decide(fields) { return true }
      return false
    }
    let lines = Self.fresh
    let byteCount = lines.reduce(0) { $0 + $1.0.utf8.count + $1.1.utf8.count }
    let maximum = lines + (lines.count..<1000).map { ("x-\($0)", "v") }
    #expect(isStored(maximum))
    #expect(decide(maximum + [("x", "v")]) == .refuse(.tooManyFields))
    let longest = lines + [("x", String(repeating: "v", count: (256 << 10) - byteCount - 1))]
    #expect(isStored(longest))
    #expect(decide(longest + [("y", "")]) == .refuse(.tooManyFields))
  }
}

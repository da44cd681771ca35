import FoundationEssentials
import HTTPCaching
import Testing

@Suite("Vary keys")
struct VaryKeyTests {
  struct Case: RequirementCase {
    let id: String
    let section: String
    let rows: [Int]
    /// The lines of `Vary`.
    let vary: [String]
    let first: Lines
    let second: Lines
    let matches: Bool

    init(
      _ id: String, _ section: String = "9111 4.1", rows: [Int], vary: [String], _ first: Lines, _ second: Lines,
      matches: Bool
    ) {
      self.id = id
      self.section = section
      self.rows = rows
      self.vary = vary
      self.first = first
      self.second = second
      self.matches = matches
    }
  }

  static let en: Lines = [("Accept-Language", "en, de")]

  static let cases: [Case] = [
    Case("vary-none", rows: [29], vary: [], [("Foo", "1")], [("Foo", "2")], matches: true),
    Case(
      "vary-match", rows: [29], vary: ["Foo"], [("Foo", "1"), ("X", "1")], [("foo", "1"), ("X", "2")], matches: true),
    Case("vary-no-match", rows: [29], vary: ["Foo"], [("Foo", "1")], [("Foo", "2")], matches: false),
    Case("vary-value-case", rows: [29, 32], vary: ["Foo"], [("Foo", "a")], [("Foo", "A")], matches: false),
    Case("vary-omit-second", rows: [30], vary: ["Foo"], [("Foo", "1")], [], matches: false),
    Case("vary-omit-first", rows: [30], vary: ["Foo"], [], [("Foo", "1")], matches: false),
    Case("vary-omit-both", rows: [30], vary: ["Foo"], [], [], matches: true),
    Case("vary-empty-is-not-absent", rows: [30], vary: ["Foo"], [("Foo", "")], [], matches: false),
    Case(
      "vary-two-names", rows: [29], vary: ["Foo, Bar"], [("Foo", "1"), ("Bar", "2")], [("Foo", "1"), ("Bar", "3")],
      matches: false),
    Case(
      "vary-two-lines", rows: [29], vary: ["Foo", "Bar"], [("Foo", "1"), ("Bar", "2")], [("Bar", "2"), ("Foo", "1")],
      matches: true),
    Case("vary-star", rows: [31], vary: ["*"], [], [], matches: false),
    Case("vary-star-in-list", rows: [31], vary: ["Foo, *"], [], [], matches: false),
    Case("vary-star-second-line", rows: [31], vary: ["", "*"], [], [], matches: false),
    Case("vary-empty-star", rows: [31], vary: [", *"], [], [], matches: false),
    Case("vary-no-name", rows: [29, 31], vary: ["F oo"], [], [], matches: false),
    Case("normalize-comma-space", rows: [32], vary: ["Foo"], [("Foo", "1,2")], [("Foo", " 1, 2 ")], matches: true),
    Case("normalize-lines", rows: [32], vary: ["Foo"], [("Foo", "1, 2")], [("Foo", "1"), ("Foo", "2")], matches: true),
    Case("normalize-order-unknown", rows: [32], vary: ["Foo"], [("Foo", "1, 2")], [("Foo", "2, 1")], matches: false),
    Case(
      "normalize-not-in-quotes", rows: [32], vary: ["Foo"], [("Foo", "\"1,2\"")], [("Foo", "\"1, 2\"")], matches: false),
    Case(
      "language-order-is-preference", "9110 12.5.4", rows: [29, 32], vary: ["Accept-Language"], en,
      [("Accept-Language", "de, en")], matches: false),
    Case(
      "language-order-is-preference-weighted", "9110 12.5.4", rows: [29, 32], vary: ["Accept-Language"],
      [("Accept-Language", "en;q=0.5, de;q=0.50")], [("Accept-Language", "de;q=0.5, en;q=0.5")], matches: false),
    Case(
      "normalize-language-case", rows: [32], vary: ["Accept-Language"], en, [("Accept-Language", "eN, De")],
      matches: true),
    Case(
      "normalize-language-space", rows: [32], vary: ["Accept-Language"], en, [("Accept-Language", " en ,   de")],
      matches: true),
    Case(
      "normalize-weight", "9110 12.4.2", rows: [32], vary: ["Accept-Language"], en,
      [("Accept-Language", "en;q=1.0, de ; q=1")], matches: true),
    Case(
      "normalize-weight-zeros", "9110 12.4.2", rows: [32], vary: ["accept"], [("Accept", "a/b;q=0.50,c/d")],
      [("Accept", "c/d, a/b; q=0.5")], matches: true),
    Case(
      "normalize-weight-differs", "9110 12.4.2", rows: [32], vary: ["Accept-Language"], en,
      [("Accept-Language", "en, de;q=0.9")], matches: false),
    Case(
      "normalize-weight-malformed", "9110 12.4.2", rows: [32], vary: ["Accept-Language"],
      [("Accept-Language", "en;q=2, de")], [("Accept-Language", "de, en;q=2")], matches: false),
    Case(
      "normalize-encoding", rows: [32], vary: ["Accept-Encoding"], [("Accept-Encoding", "gzip, br")],
      [("Accept-Encoding", "BR,GZIP")], matches: true),
    Case(
      "normalize-cookie-not", rows: [32], vary: ["Cookie"], [("Cookie", "a=b, c")], [("Cookie", "a=b,c")],
      matches: false),
    Case(
      "normalize-cookie-order", "6265 4.2.2", rows: [32], vary: ["Cookie"], [("Cookie", "a=1; b=\"2\"; c=")],
      [("Cookie", "c=;b=\"2\"; a=1")], matches: true),
    Case(
      "normalize-cookie-case", "6265 4.2.2", rows: [32], vary: ["Cookie"], [("Cookie", "a=1; B=2")],
      [("Cookie", "A=1; B=2")], matches: false),
    Case(
      "normalize-cookie-pairs", "6265 4.2.2", rows: [32], vary: ["Cookie"], [("Cookie", "a=1; b=2")],
      [("Cookie", "a=2; b=1")], matches: false),
    Case(
      "normalize-cookie-duplicates-moved", "6265 4.2.2", rows: [32], vary: ["Cookie"], [("Cookie", "a=1; b=2; a=3")],
      [("Cookie", "a=1; a=3; b=2")], matches: true),
    Case(
      "normalize-cookie-duplicates-swapped", "6265 4.2.2", rows: [32], vary: ["Cookie"], [("Cookie", "a=1; a=3; b=2")],
      [("Cookie", "a=3; b=2; a=1")], matches: false),
    Case(
      "normalize-cookie-malformed", "6265 4.2.1", rows: [32], vary: ["Cookie"], [("Cookie", "a=1; b")],
      [("Cookie", "b; a=1")], matches: false),
    Case(
      "normalize-cookie-quoted", "6265 4.2.1", rows: [32], vary: ["Cookie"], [("Cookie", "a=\"x; b=y\"")],
      [("Cookie", "b=y\"; a=\"x")], matches: false),
    Case(
      "normalize-cookie-commas", "6265 4.2.1", rows: [32], vary: ["Cookie"], [("Cookie", "a=1, b=2; b=3")],
      [("Cookie", "b=3; a=1, b=2")], matches: false),
    Case("authorization-to-none", "9111 3.5", rows: [6, 34], vary: [], [("Authorization", "a")], [], matches: false),
    Case("authorization-from-none", "9111 3.5", rows: [6, 34], vary: [], [], [("Authorization", "a")], matches: false),
    Case(
      "authorization-in-vary", "9111 3.5", rows: [6, 29, 34], vary: ["Authorization"], [], [("Authorization", "a")],
      matches: false),
  ]

  static func digest(_ value: String) -> String {
    "digest(\(value.utf8.count), \(value.utf8.reduce(0) { $0 &* 31 &+ Int($1) }))"
  }

  @Test("A request matches a stored response if their Vary keys are equal", arguments: cases)
  func matches(_ test: Case) {
    let varyKey = VaryKey(
      request: head(test.first), response: fields(test.vary.map { ("Vary", $0) }), credentialDigest: Self.digest)
    #expect(varyKey.matches(head(test.second), credentialDigest: Self.digest) == test.matches)
    let restored = VaryKey(fields: varyKey.fields)
    #expect(restored.matches(head(test.second), credentialDigest: Self.digest) == test.matches)
  }

  /// Row 34: only the directives of row 6 permit this; `Vary: Authorization` and the options can prevent it.
  @Test("In a shared cache an authorized response serves all users, in a private cache only its own")
  func suitsAllCredentials() {
    let (ann, bob) = (head([("Authorization", "a"), ("Foo", "1")]), head([("Authorization", "b"), ("Foo", "1")]))
    func varyKey(_ options: CachingOptions, _ request: RequestHead, _ vary: String = "Foo") -> VaryKey {
      let made = VaryKey(
        request: request, response: fields([("Vary", vary)]), options: options, credentialDigest: Self.digest)
      return VaryKey(fields: made.fields)
    }
    func matches(_ varyKey: VaryKey, _ request: RequestHead) -> Bool {
      varyKey.matches(request, credentialDigest: Self.digest)
    }
    var options = CachingOptions()
    #expect(!matches(varyKey(options, ann), bob))
    #expect(!varyKey(options, ann).suitsAllCredentials)
    options.mode = .shared
    let shared = varyKey(options, ann)
    #expect(shared.suitsAllCredentials)
    for request in [ann, bob, head([("Foo", "1")])] { #expect(matches(shared, request)) }
    #expect(!matches(shared, head([("Authorization", "a"), ("Foo", "2")])))
    // The origin permitted nothing for a response to a request without credentials.
    #expect(!matches(varyKey(options, head([("Foo", "1")])), ann))
    #expect(!matches(varyKey(options, ann, "Foo, Authorization"), bob))
    options.reusesAuthorizedResponses = false
    #expect(!matches(varyKey(options, ann), bob))
    #expect(matches(varyKey(options, ann), ann))
  }

  /// Rows 6 and 34: a Vary key contains only a digest of the credentials.
  @Test func credentialsAreDigested() {
    let varyKey = VaryKey(
      request: head([("Authorization", "Bearer secret"), ("Foo", "1")]), response: fields([("Vary", "Accept, Foo")]),
      credentialDigest: { "digest of " + $0 })
    #expect(
      varyKey.fields == [
        .init(name: "accept", value: nil), .init(name: "authorization", value: "digest of Bearer secret"),
        .init(name: "foo", value: "digest of 1"),
      ])
  }

  @Test("A Vary key has only the values of six fields in clear, and digests of all others")
  func valuesInClear() {
    let clear = ["Accept", "Accept-Charset", "Accept-Encoding", "Accept-Language", "Origin", "User-Agent"]
    let secret = [
      "Cookie", "X-Api-Key", "Referer", "X-Tenant", "Proxy-Authorization", "From", "Accept-Profile", "Foo",
      "X-User-Agent", "Sec-Token",
    ]
    let request = head((clear + secret).map { ($0, "a=1") })
    let varyKey = VaryKey(
      request: request, response: fields([("Vary", (clear + secret).joined(separator: ","))]),
      credentialDigest: { _ in "d" })
    let inClear = varyKey.fields.filter { $0.value == "a=1" }
    #expect(inClear.map(\.name) == clear.map { $0.lowercased() })
    #expect(varyKey.fields.filter { $0.value == "d" }.map(\.name) == secret.map { $0.lowercased() }.sorted())
    #expect(varyKey.fields.allSatisfy { $0.isSecret == ($0.value == "d") })
  }

  @Test("A value that an earlier release stored in clear matches no request")
  func valuesOfEarlierReleases() {
    let varyKey = VaryKey(fields: [.init(name: "cookie", value: "a=1")])
    for value in ["a=1", "a=2", Self.digest("a=1")] {
      #expect(!varyKey.matches(head([("Cookie", value)]), credentialDigest: Self.digest))
    }
    #expect(varyKey.fields[0].isSecret)
  }

  /// Rows 6 and 34: HTTP clients send the user information of a URL as credentials.
  @Test("The user information of a URL is part of the Vary key and differs from every Authorization value")
  func userOfURL() throws {
    func request(_ user: String, _ lines: Lines = []) throws -> RequestHead {
      RequestHead(url: try #require(URL(string: "http://\(user)a.example/x@y?z@")), fields: fields(lines))
    }
    let requests = try [
      request(""), request("ann@"), request("ann:1@"), request("ann:2@"), request("", [("Authorization", "ann:1")]),
      request("ann:1@", [("Authorization", "ann:1")]), request(":@"),
    ]
    for (index, one) in requests.enumerated() {
      let varyKey = VaryKey(request: one, response: HeaderFields(), credentialDigest: Self.digest)
      #expect(varyKey.fields.map(\.name) == (index == 0 ? [] : ["authorization"]))
      for (other, request) in requests.enumerated() {
        #expect(varyKey.matches(request, credentialDigest: Self.digest) == (index == other), "\(index) \(other)")
      }
    }
    // An `@` in the path or query is not user information.
    let empty = try request("@")
    #expect(VaryKey(request: empty, response: HeaderFields(), credentialDigest: Self.digest).fields.isEmpty)
  }

  @Test("A Vary key uses the transport's User-Agent if the request has none")
  func defaultUserAgent() {
    var (one, other, explicit) = (head([]), head([]), head([("User-Agent", "one")]))
    one.defaultUserAgent = "one"
    other.defaultUserAgent = "other"
    explicit.defaultUserAgent = "other"
    let varyKey = VaryKey(
      request: one, response: fields([("Vary", "User-Agent")]), credentialDigest: Self.digest)
    #expect([one, other, explicit, head([])].map { varyKey.matches($0) { $0 } } == [true, false, true, false])
  }

  @Test("A Vary key uses the transport's Accept-Language if the request has none")
  func defaultLanguage() {
    var absent = head([])
    absent.defaultLanguage = "en"
    let varyKey = VaryKey(
      request: absent, response: fields([("Vary", "Accept-Language")]), credentialDigest: Self.digest)
    let others = [head([("Accept-Language", "en")]), head([("Accept-Language", "de")]), head([])]
    #expect(([absent] + others).map { varyKey.matches($0) { $0 } } == [true, true, false, false])
  }

  /// Row 33; RFC 9111, 4.1: with several matches, the store prefers a variant that has a `Vary` field.
  @Test func knowsWhetherItVaries() {
    func varyKey(_ vary: Lines) -> VaryKey {
      VaryKey(request: head([("Authorization", "a")]), response: fields(vary), credentialDigest: Self.digest)
    }
    #expect(!varyKey([]).hasVaryFields)
    #expect(varyKey([("Vary", "Foo")]).hasVaryFields)
  }
}

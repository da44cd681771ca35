import FoundationEssentials
import HTTPCaching
import Testing

@Suite("Vary and selection")
struct SelectionTests {
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
    Case("normalise-comma-space", rows: [32], vary: ["Foo"], [("Foo", "1,2")], [("Foo", " 1, 2 ")], matches: true),
    Case("normalise-lines", rows: [32], vary: ["Foo"], [("Foo", "1, 2")], [("Foo", "1"), ("Foo", "2")], matches: true),
    Case("normalise-order-unknown", rows: [32], vary: ["Foo"], [("Foo", "1, 2")], [("Foo", "2, 1")], matches: false),
    Case(
      "normalise-not-in-quotes", rows: [32], vary: ["Foo"], [("Foo", "\"1,2\"")], [("Foo", "\"1, 2\"")], matches: false),
    // Issue 15, item 7.
    Case(
      "language-order-is-preference", "9110 12.5.4", rows: [29, 32], vary: ["Accept-Language"], en,
      [("Accept-Language", "de, en")], matches: false),
    Case(
      "language-order-is-preference-weighted", "9110 12.5.4", rows: [29, 32], vary: ["Accept-Language"],
      [("Accept-Language", "en;q=0.5, de;q=0.50")], [("Accept-Language", "de;q=0.5, en;q=0.5")], matches: false),
    Case(
      "normalise-language-case", rows: [32], vary: ["Accept-Language"], en, [("Accept-Language", "eN, De")],
      matches: true),
    Case(
      "normalise-language-space", rows: [32], vary: ["Accept-Language"], en, [("Accept-Language", " en ,   de")],
      matches: true),
    Case(
      "normalise-weight", "9110 12.4.2", rows: [32], vary: ["Accept-Language"], en,
      [("Accept-Language", "en;q=1.0, de ; q=1")], matches: true),
    Case(
      "normalise-weight-zeros", "9110 12.4.2", rows: [32], vary: ["accept"], [("Accept", "a/b;q=0.50,c/d")],
      [("Accept", "c/d, a/b; q=0.5")], matches: true),
    Case(
      "normalise-weight-differs", "9110 12.4.2", rows: [32], vary: ["Accept-Language"], en,
      [("Accept-Language", "en, de;q=0.9")], matches: false),
    Case(
      "normalise-weight-malformed", "9110 12.4.2", rows: [32], vary: ["Accept-Language"],
      [("Accept-Language", "en;q=2, de")], [("Accept-Language", "de, en;q=2")], matches: false),
    Case(
      "normalise-encoding", rows: [32], vary: ["Accept-Encoding"], [("Accept-Encoding", "gzip, br")],
      [("Accept-Encoding", "BR,GZIP")], matches: true),
    Case(
      "normalise-cookie-not", rows: [32], vary: ["Cookie"], [("Cookie", "a=b, c")], [("Cookie", "a=b,c")],
      matches: false),
    Case(
      "authorization-same", "9111 3.5", rows: [6, 34], vary: [], [("Authorization", "a")], [("Authorization", "a")],
      matches: true),
    Case(
      "authorization-other", "9111 3.5", rows: [6, 34], vary: [], [("Authorization", "a")], [("Authorization", "b")],
      matches: false),
    Case("authorization-to-none", "9111 3.5", rows: [6, 34], vary: [], [("Authorization", "a")], [], matches: false),
    Case("authorization-from-none", "9111 3.5", rows: [6, 34], vary: [], [], [("Authorization", "a")], matches: false),
    Case(
      "authorization-in-vary", "9111 3.5", rows: [6, 29, 34], vary: ["Authorization"], [], [("Authorization", "a")],
      matches: false),
  ]

  static func digest(_ value: String) -> String {
    "digest(\(value.utf8.count), \(value.utf8.reduce(0) { $0 &* 31 &+ Int($1) }))"
  }

  @Test("Selection", arguments: cases)
  func selects(_ test: Case) {
    let selection = VarySelection(
      request: head(test.first), response: fields(test.vary.map { ("Vary", $0) }), credentialDigest: Self.digest)
    #expect(selection.matches(head(test.second), credentialDigest: Self.digest) == test.matches)
    let restored = VarySelection(selectors: selection.selectors)
    #expect(restored.matches(head(test.second), credentialDigest: Self.digest) == test.matches)
  }

  /// Rows 6 and 34: no credential is kept.
  @Test func credentialsAreDigested() {
    let selection = VarySelection(
      request: head([("Authorization", "Bearer secret"), ("Foo", "1")]), response: fields([("Vary", "Foo")]),
      credentialDigest: { _ in "d" })
    #expect(selection.selectors == [.init(name: "authorization", value: "d"), .init(name: "foo", value: "1")])
  }

  /// Rows 6 and 34: clients send the user of a URL as credentials.
  @Test("The user of a URL selects as Authorization does, apart from every value of that")
  func userOfURL() throws {
    func request(_ user: String, _ lines: Lines = []) throws -> RequestHead {
      RequestHead(url: try #require(URL(string: "http://\(user)a.example/x@y?z@")), fields: fields(lines))
    }
    let requests = try [
      request(""), request("ann@"), request("ann:1@"), request("ann:2@"), request("", [("Authorization", "ann:1")]),
      request("ann:1@", [("Authorization", "ann:1")]), request(":@"),
    ]
    for (index, one) in requests.enumerated() {
      let selection = VarySelection(request: one, response: HTTPFields(), credentialDigest: Self.digest)
      #expect(selection.selectors.map(\.name) == (index == 0 ? [] : ["authorization"]))
      for (other, request) in requests.enumerated() {
        #expect(selection.matches(request, credentialDigest: Self.digest) == (index == other), "\(index) \(other)")
      }
    }
    // Without a user, whatever follows the host.
    let empty = try request("@")
    #expect(VarySelection(request: empty, response: HTTPFields(), credentialDigest: Self.digest).selectors.isEmpty)
  }

  @Test("A User-Agent that the transport adds selects where the request has none")
  func defaultUserAgent() {
    var (one, other, explicit) = (head([]), head([]), head([("User-Agent", "one")]))
    one.defaultUserAgent = "one"
    other.defaultUserAgent = "other"
    explicit.defaultUserAgent = "other"
    let selection = VarySelection(
      request: one, response: fields([("Vary", "User-Agent")]), credentialDigest: Self.digest)
    #expect([one, other, explicit, head([])].map { selection.matches($0) { $0 } } == [true, false, true, false])
  }

  /// Row 33; RFC 9111, 4.1: what a store prefers when several match.
  @Test func knowsWhetherItVaries() {
    func selection(_ vary: Lines) -> VarySelection {
      VarySelection(request: head([("Authorization", "a")]), response: fields(vary), credentialDigest: Self.digest)
    }
    #expect(!selection([]).isVarying)
    #expect(selection([("Vary", "Foo")]).isVarying)
  }
}

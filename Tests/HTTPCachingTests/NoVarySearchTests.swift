import HTTPCaching
import Testing

/// No-Vary-Search (draft-ietf-httpbis-no-vary-search-10): the field, and the comparison of URLs.
@Suite("No-Vary-Search")
struct NoVarySearchTests {
  private static func variation(_ values: String...) -> URLVariation? {
    URLVariation(HeaderFields(values.map { ("No-Vary-Search", $0) }))
  }

  // MARK: - The field

  struct FieldCase: RequirementCase {
    let id: String
    let section: String
    let rows: [Int]
    let value: String
    /// Nil: without effect.
    let expected: String?

    init(_ id: String, _ section: String, rows: [Int], _ value: String, gives expected: String?) {
      self.id = id
      self.section = section
      self.rows = rows
      self.value = value
      self.expected = expected
    }
  }

  static let values: [FieldCase] = [
    FieldCase("nvs-params", "5.2", rows: [110], #"params=("a")"#, gives: "-=a&"),
    FieldCase("nvs-except", "5.2", rows: [110], #"except=("x")"#, gives: "+=x&"),
    FieldCase("nvs-params-empty", "5.2", rows: [110], "params=()", gives: nil),
    FieldCase("nvs-except-empty", "5.2", rows: [110], "except=()", gives: "+="),
    FieldCase("nvs-key-order", "1", rows: [110], "key-order", gives: "-~"),
    FieldCase("nvs-key-order-true", "5.2", rows: [110], "key-order=?1", gives: "-~"),
    FieldCase("nvs-key-order-false", "5.2", rows: [110], "key-order=?0", gives: nil),
    FieldCase("nvs-key-order-last", "5.2", rows: [110], #"except=("x" "y"), key-order"#, gives: "+~x&y&"),
    FieldCase("nvs-key-order-first", "5.2", rows: [110], #"key-order, except=("y" "x")"#, gives: "+~x&y&"),
    FieldCase("nvs-key-order-text", "5.2", rows: [110], #"key-order="not a boolean""#, gives: nil),
    FieldCase("nvs-params-text", "5.2", rows: [110], #"params="not an inner list""#, gives: nil),
    FieldCase("nvs-params-token", "5.2", rows: [110], "params=(not-a-string)", gives: nil),
    FieldCase("nvs-params-mixed", "5.1", rows: [110], #"params=("a" 1)"#, gives: nil),
    FieldCase("nvs-params-number", "5.1", rows: [110], "params=1", gives: nil),
    FieldCase("nvs-params-and-except", "5.2", rows: [110], #"params=("a"), except=("x")"#, gives: nil),
    FieldCase("nvs-both-empty", "5.2", rows: [110], "params=(), except=()", gives: nil),
    FieldCase("nvs-except-text", "5.2", rows: [110], #"except="not an inner list""#, gives: nil),
    FieldCase("nvs-except-token", "5.2", rows: [110], "except=(not-a-string)", gives: nil),
    FieldCase("nvs-except-true", "5.2", rows: [110], "except=?1", gives: nil),
    FieldCase("nvs-one-invalid-member", "5.1", rows: [110], #"key-order, params=(a)"#, gives: nil),
    FieldCase("nvs-unknown-member", "3", rows: [110], #"params=("a"), future=("b"), x=1.5"#, gives: "-=a&"),
    FieldCase("nvs-parameters", "5.1", rows: [110], #"params=("a";x "b");y=1;z"#, gives: "-=a&b&"),
    FieldCase("nvs-repeated-member", "5.1", rows: [110], #"params=("a"), params=("b")"#, gives: "-=b&"),
    FieldCase("nvs-malformed", "5.2", rows: [110], #"params=("a"#, gives: nil),
    FieldCase("nvs-trailing-comma", "5.2", rows: [110], #"params=("a"),"#, gives: nil),
    FieldCase("nvs-uppercase-key", "5.2", rows: [110], #"Params=("a")"#, gives: nil),
    FieldCase("nvs-not-ascii", "5.2", rows: [110], #"params=("é")"#, gives: nil),
    FieldCase("nvs-display-string", "5.1", rows: [110], ##"params=("a");x=%"f%c3%bc \ y""##, gives: "-=a&"),
    FieldCase("nvs-display-string-digits", "5.1", rows: [110], ##"params=("a");x=%"%zz""##, gives: nil),
    FieldCase("nvs-display-string-uppercase", "5.1", rows: [110], ##"params=("a");x=%"f%C3%BC""##, gives: nil),
    FieldCase("nvs-display-string-cut", "5.1", rows: [110], ##"params=("a");x=%"f%c3""##, gives: nil),
    FieldCase("nvs-display-string-short", "5.1", rows: [110], ##"params=("a");x=%"f%c""##, gives: nil),
    FieldCase("nvs-display-string-quote", "5.1", rows: [110], ##"params=("a");x=%"\"y""##, gives: nil),
    FieldCase("nvs-display-string-open", "5.1", rows: [110], ##"params=("a");x=%"y"##, gives: nil),
    FieldCase("nvs-empty", "5.2", rows: [110], "", gives: nil),
    FieldCase("nvs-name-decoded", "5.3", rows: [111], #"params=("%C3%A9+%E6%B0%97")"#, gives: "-=%C3%A9+%E6%B0%97&"),
    FieldCase("nvs-name-spelling", "5.3", rows: [111], #"params=("%61" "b%20c" "%c3%a9")"#, gives: "-=%C3%A9&a&b+c&"),
    FieldCase("nvs-name-repeated", "5.3", rows: [111], #"params=("b" "a" "%62")"#, gives: "-=a&b&"),
    FieldCase("nvs-name-empty", "5.3", rows: [111], #"params=("")"#, gives: "-=&"),
    FieldCase("nvs-name-delimiters", "5.3", rows: [111], #"params=("a=b&c#%2B")"#, gives: "-=a%3Db%26c%23%2B&"),
    FieldCase(
      "nvs-name-malformed", "5.3", rows: [111], #"params=("%" "%4" "%zz" "%F6")"#,
      gives: "-=%25&%254&%25zz&%EF%BF%BD&"),
    FieldCase("nvs-name-quote", "5.3", rows: [111], #"params=("\"\\")"#, gives: "-=%22%5C&"),
    // One name or none: the order of names has no effect.
    FieldCase("nvs-except-one-name", "6", rows: [112], #"except=("x"), key-order"#, gives: "+=x&"),
    // The syntax of earlier drafts.
    FieldCase("nvs-params-true", "earlier", rows: [113], "params", gives: "+="),
    FieldCase("nvs-params-explicit", "earlier", rows: [113], "params=?1", gives: "+="),
    FieldCase("nvs-params-true-except", "earlier", rows: [113], #"params, except=("x" "a")"#, gives: "+=a&x&"),
    FieldCase("nvs-params-explicit-except", "earlier", rows: [113], #"except=("x"), params=?1"#, gives: "+=x&"),
    FieldCase("nvs-params-false", "earlier", rows: [113], "params=?0", gives: nil),
    FieldCase("nvs-params-false-order", "earlier", rows: [113], "params=?0, key-order", gives: "-~"),
    FieldCase("nvs-params-false-except", "earlier", rows: [113], #"params=?0, except=("x")"#, gives: nil),
  ]

  @Test("A value has the effect that the draft or an earlier draft gives it, or none", arguments: values)
  func parses(_ test: FieldCase) {
    #expect(Self.variation(test.value)?.text == test.expected)
  }

  /// Row 110.
  @Test("Several lines are one dictionary, and an absent field has no effect")
  func lines() {
    #expect(Self.variation(#"params=("a")"#, "key-order")?.text == "-~a&")
    #expect(Self.variation(#"params=("a")"#, #"except=("b")"#) == nil)
    #expect(URLVariation(HeaderFields()) == nil)
  }

  /// Row 110: an origin chooses the names, so their number is bounded.
  @Test("A field with too many names has no effect")
  func bound() {
    let fitting = URLVariation.maximumByteCount - 2
    let name = String(repeating: "a", count: fitting - 1)
    #expect(Self.variation("params=(\"\(name)\")")?.text == "-=\(name)&")
    #expect(Self.variation("params=(\"\(name)a\")") == nil)
    let many = (0..<10_000).map { "\"n\($0)\"" }.joined(separator: " ")
    #expect(Self.variation("except=(\(many))") == nil)
  }

  @Test("The text of a variation makes the same variation, and other texts make none")
  func text() {
    for value in ["key-order", #"params=("a" "%F6")"#, #"except=("" "b"), key-order"#, "except=()"] {
      let variation = Self.variation(value)
      #expect(variation != nil)
      #expect(variation?.text.utf8.allSatisfy { $0 > 0x20 && $0 < 0x7F } == true)
      #expect(variation.flatMap { URLVariation(text: $0.text) } == variation)
    }
    let long = "-=" + String(repeating: "a", count: URLVariation.maximumByteCount) + "&"
    for text in ["", "-", "=-", "a=", "+a", "-=a", "~=&", long] {
      #expect(URLVariation(text: text) == nil, "\(text)")
    }
  }

  // MARK: - The comparison

  struct ComparisonCase: CustomTestStringConvertible {
    let id: String
    let first: String
    let second: String
    let areEquivalent: Bool
    let value: String

    init(_ id: String, _ first: String, _ relation: String, _ second: String, by value: String = "key-order") {
      (self.id, self.first, self.second, self.value) = (id, first, second, value)
      areEquivalent = relation == "=="
    }

    var testDescription: String { id }
  }

  private static let aAndB = #"params=("a" "b")"#

  static let comparisons: [ComparisonCase] = [
    ComparisonCase("nvs-null-query", "", "==", "?"),
    ComparisonCase("nvs-percent-decoding", "?a=x", "==", "?%61=%78"),
    ComparisonCase("nvs-not-ascii-value", "?a=é", "==", "?a=%C3%A9"),
    ComparisonCase("nvs-replacement", "?a=%f6", "==", "?a=%ef%bf%bd"),
    ComparisonCase("nvs-empty-parameters", "?a=x&&&&", "==", "?a=x"),
    ComparisonCase("nvs-no-value", "?a=", "==", "?a"),
    ComparisonCase("nvs-space", "?a=%20", "==", "?a= &"),
    ComparisonCase("nvs-plus", "?a=+", "==", "?a= &"),
    ComparisonCase("nvs-encoded-plus", "?a=%2B", "!=", "?a=+"),
    ComparisonCase("nvs-encoded-plus-case", "?a=%2b", "==", "?a=%2B"),
    ComparisonCase("nvs-encoded-delimiters", "?a=%26b", "!=", "?a=&b"),
    ComparisonCase("nvs-encoded-equals", "?a%3Db", "!=", "?a=b"),
    ComparisonCase("nvs-second-equals", "?a=b=c", "==", "?a=b%3Dc"),
    ComparisonCase("nvs-malformed-percent", "?a=%", "==", "?a=%25"),
    ComparisonCase("nvs-malformed-digits", "?a=%4x%zz", "==", "?a=%254x%25zz"),
    ComparisonCase("nvs-cut-percent", "?a=%4", "!=", "?a=%40"),
    ComparisonCase("nvs-percent-before-next", "?a=%&41=b", "!=", "?aA=b"),
    ComparisonCase("nvs-cut-character", "?a=%E2%82", "==", "?a=%EF%BF%BD"),
    ComparisonCase("nvs-cut-character-before-text", "?a=%E2%82x", "==", "?a=%EF%BF%BDx"),
    ComparisonCase("nvs-cut-character-at-delimiter", "?a%E2=%82", "==", "?a%EF%BF%BD=%EF%BF%BD"),
    ComparisonCase("nvs-overlong", "?a=%C0%80", "==", "?a=%EF%BF%BD%EF%BF%BD"),
    ComparisonCase("nvs-surrogate", "?a=%ED%A0%80", "==", "?a=%EF%BF%BD%EF%BF%BD%EF%BF%BD"),
    ComparisonCase("nvs-too-large", "?a=%F4%90%80%80", "==", "?a=%EF%BF%BD%EF%BF%BD%EF%BF%BD%EF%BF%BD"),
    ComparisonCase("nvs-byte-order-mark", "?a=%EF%BB%BFb", "!=", "?a=b"),
    ComparisonCase("nvs-composed", "?a=%C3%A9", "!=", "?a=e%CC%81"),
    ComparisonCase("nvs-zero", "?a=%00", "!=", "?a="),
    ComparisonCase("nvs-case", "?a=x", "!=", "?A=x"),
    ComparisonCase("nvs-empty-name", "?=", "!=", "?"),
    ComparisonCase("nvs-empty-name-value", "?=x", "!=", "?x"),
    ComparisonCase("nvs-fragment", "?a=x#?b", "==", "?a=x#c"),
    ComparisonCase("nvs-fragment-without-query", "#?b", "==", "?"),
    ComparisonCase("nvs-mark-in-query", "?a=?b", "==", "?a=%3Fb"),
    ComparisonCase("nvs-reordered", "?a=1&b=2", "==", "?b=2&a=1"),
    ComparisonCase("nvs-one-missing", "?a=1&b=2", "!=", "?b=2"),
    ComparisonCase("nvs-repeated-order", "?a=1&a=2", "!=", "?a=2&a=1"),
    ComparisonCase("nvs-repeated-between", "?a=1&b=3&a=2", "==", "?a=1&a=2&b=3"),
    ComparisonCase("nvs-repeated-once", "?a=1&a=1", "!=", "?a=1"),
    ComparisonCase("nvs-name-is-prefix", "?ab=1&a=2", "==", "?a=2&ab=1"),
    ComparisonCase("nvs-order-counts", "?c=1&d=2", "!=", "?d=2&c=1", by: Self.aAndB),
    ComparisonCase("nvs-ignored", "?a=1&c=3&b=2", "==", "?c=3", by: Self.aAndB),
    ComparisonCase("nvs-ignored-repeated", "?a=1&a=2&c=3&a", "==", "?c=3", by: Self.aAndB),
    ComparisonCase("nvs-ignored-all", "?a=1&b=2", "==", "", by: Self.aAndB),
    ComparisonCase("nvs-ignored-encoded", "?%61=1&c=3", "==", "?%62&c=3", by: Self.aAndB),
    ComparisonCase("nvs-ignored-prefix", "?aa=1", "!=", "?aa=2", by: Self.aAndB),
    ComparisonCase("nvs-ignored-case", "?A=1", "!=", "?A=2", by: Self.aAndB),
    ComparisonCase("nvs-ignored-empty-name", "?=1&c", "==", "?=2&c", by: #"params=("")"#),
    ComparisonCase("nvs-not-ignored-empty-name", "?=1", "!=", "?=2", by: Self.aAndB),
    ComparisonCase("nvs-only", "?x=1&id=2&y", "==", "?id=2", by: #"except=("id")"#),
    ComparisonCase("nvs-only-differs", "?id=1", "!=", "?id=2", by: #"except=("id")"#),
    ComparisonCase("nvs-only-order", "?a=1&b=2", "!=", "?b=2&a=1", by: #"except=("a" "b")"#),
    ComparisonCase("nvs-only-reordered", "?a=1&c&b=2", "==", "?b=2&a=1", by: #"except=("a" "b"), key-order"#),
    ComparisonCase("nvs-none", "?a=1&b=2", "==", "?c", by: "except=()"),
    ComparisonCase("nvs-named-in-script", "?é 気=1", "==", "?é+気=2", by: #"params=("%C3%A9+%E6%B0%97")"#),
    ComparisonCase(
      "nvs-named-in-script-encoded", "?%C3%A9%20気=3", "==",
      "?%C3%A9+%E6%B0%97=4", by: #"params=("%C3%A9+%E6%B0%97")"#),
  ]

  /// Rows 111 and 112.
  @Test("URLs are equivalent if and only if the comparison of the draft says so", arguments: comparisons)
  func compares(_ test: ComparisonCase) throws {
    let variation = try #require(Self.variation(test.value))
    let first = variation.simplified("https://example.com/a" + test.first)
    let second = variation.simplified("https://example.com/a" + test.second)
    #expect((first == second) == test.areEquivalent, "\(first) \(second)")
  }

  /// Row 112.
  @Test("Everything before the query stays as it is")
  func otherParts() throws {
    let variation = try #require(Self.variation("except=()"))
    for url in ["https://u:p@Example.com:8443/%61/b;c=d&e", "http://example.com", "http://[::1]/é"] {
      for rest in ["", "?", "?a=1", "#f", "?a#f?b"] { #expect(variation.simplified(url + rest) == url) }
    }
    let ordered = try #require(Self.variation("key-order"))
    #expect(ordered.simplified("https://example.com/?b=2&a=x y/z?&a") == "https://example.com/?a=x+y/z?&a=&b=2")
  }

  // MARK: - A plain model of the comparison

  /// The comparison as the draft words it.
  struct Model {
    /// Nil: all names.
    var ignored: Set<[UInt8]>?
    var counted: Set<[UInt8]> = []
    var ignoresOrder = false

    private static func digit(_ byte: UInt8) -> UInt8? { Character(UnicodeScalar(byte)).hexDigitValue.map(UInt8.init) }

    static func decoded(_ text: [UInt8]) -> [UInt16] {
      var bytes: [UInt8] = []
      var rest = text[...]
      while let byte = rest.popFirst() {
        if byte == UInt8(ascii: "%"), rest.count >= 2, let high = digit(rest[rest.startIndex]),
          let low = digit(rest[rest.startIndex + 1])
        {
          bytes.append(high * 16 + low)
          rest = rest.dropFirst(2)
        } else {
          bytes.append(byte == UInt8(ascii: "+") ? 0x20 : byte)
        }
      }
      return Array(String(decoding: bytes, as: UTF8.self).utf16)
    }

    private func parameters(_ url: String) -> [(name: [UInt16], value: [UInt16])] {
      let bytes = Array(url.utf8.prefix { $0 != UInt8(ascii: "#") })
      guard let mark = bytes.firstIndex(of: UInt8(ascii: "?")) else { return [] }
      let pairs = bytes[(mark + 1)...].split(separator: UInt8(ascii: "&")).map { part in
        let halves = part.split(separator: UInt8(ascii: "="), maxSplits: 1, omittingEmptySubsequences: false)
        return (name: Self.decoded(Array(halves[0])), value: halves.count == 2 ? Self.decoded(Array(halves[1])) : [])
      }
      let kept = pairs.filter { pair in
        if let ignored { return !ignored.contains { Self.decoded($0) == pair.name } }
        return counted.contains { Self.decoded($0) == pair.name }
      }
      guard ignoresOrder else { return kept }
      return kept.enumerated().sorted { left, right in
        left.element.name == right.element.name
          ? left.offset < right.offset : left.element.name.lexicographicallyPrecedes(right.element.name)
      }.map(\.element)
    }

    func areEquivalent(_ first: String, _ second: String) -> Bool {
      let (first, second) = (parameters(first), parameters(second))
      return first.count == second.count
        && zip(first, second).allSatisfy { $0.name == $1.name && $0.value == $1.value }
    }
  }

  private static let pieces = [
    "a", "b", "ab", "%61", "=", "=", "=", "&", "&", "&", "&&", "+", "%20", "%2B", "%", "%4", "%F6", "%C3%A9", "é",
    "%c3", "%a9", "%E2%82", "%AC", "%F0%9F%98%80", "%EF%BF%BD", "%ED%A0%80", "%E0%80", "%F4%90", "%3D", "%26", "?", "/",
    "%00", "*", "\"",
  ]

  private static func query(_ random: inout SeededGenerator) -> String {
    let text = (0..<Int.random(in: 0...8, using: &random)).map { _ in pieces.randomElement(using: &random) ?? "" }
    return (text.isEmpty && Bool.random(using: &random) ? "" : "?") + text.joined()
  }

  /// Returns a query that is often equivalent: with parameters in another order, spelled otherwise, added, removed.
  private static func variant(of query: String, _ random: inout SeededGenerator) -> String {
    var parts = query.dropFirst().split(separator: "&", omittingEmptySubsequences: false).map(String.init)
    for _ in 0..<Int.random(in: 0...2, using: &random) {
      let index = Int.random(in: 0...parts.count, using: &random)
      switch Int.random(in: 0..<5, using: &random) {
      case 0: parts.insert(["a", "a=1", "b=", "", "%62=2"].randomElement(using: &random) ?? "", at: index)
      case 1 where index < parts.count: parts.remove(at: index)
      case 2: parts.shuffle(using: &random)
      case 3 where index < parts.count:
        parts[index] = parts[index].replacing("b", with: "%62").replacing("%20", with: "+").replacing(
          "é", with: "%C3%A9")
      case _ where index < parts.count: parts.append(parts[index])
      default: break
      }
    }
    return "?" + parts.joined(separator: "&")
  }

  /// Rows 110, 111, 112 and 113.
  @Test(
    "Simplified URLs are equal if and only if a plain model calls the URLs equivalent", arguments: [1, 10, 2026, 9111])
  func model(seed: UInt64) throws {
    var random = SeededGenerator(seed: seed)
    var equivalents = 0
    for _ in 0..<1500 {
      let names = (0..<Int.random(in: 0...3, using: &random)).map { _ in
        ["a", "b", "ab", "%61", "%C3%A9", "%c3", "", "+", "a=b", "%EF%BF%BD"].randomElement(using: &random) ?? ""
      }
      var model = Model(ignored: Set(names.map { Array($0.utf8) }), ignoresOrder: Bool.random(using: &random))
      var value = "params=(" + names.map { "\"\($0)\"" }.joined(separator: " ") + ")"
      if Bool.random(using: &random) {
        (model.counted, model.ignored) = (model.ignored ?? [], nil)
        value = (Bool.random(using: &random) ? "params, " : "") + "except" + value.dropFirst("params".count)
      }
      if model.ignoresOrder { value += ", key-order" }
      guard let variation = Self.variation(value) else {
        #expect(names.isEmpty && !model.ignoresOrder && model.ignored != nil, "\(value), seed \(seed)")
        continue
      }
      let first = Self.query(&random)
      let second = Bool.random(using: &random) ? Self.query(&random) : Self.variant(of: first, &random)
      let areEquivalent = model.areEquivalent(first, second)
      let simplified = (variation.simplified("http://h/p" + first), variation.simplified("http://h/p" + second))
      #expect(
        (simplified.0 == simplified.1) == areEquivalent,
        "\(value): \(first) \(second) became \(simplified), seed \(seed)")
      // A simplified URL is equivalent to its origin, and stays as it is.
      #expect(model.areEquivalent(first, simplified.0), "\(value): \(first) became \(simplified.0), seed \(seed)")
      #expect(variation.simplified(simplified.0) == simplified.0, "\(value): \(simplified.0), seed \(seed)")
      if areEquivalent, first != second { equivalents += 1 }
    }
    #expect(equivalents > 100, "seed \(seed)")
  }
}

import Foundation
import HTTPCaching
import Testing

@Suite("Tags of responses")
struct ResponseTagsTests {
  private static let cases: [(name: String, values: [String], tags: [String])] = [
    ("Surrogate-Key", ["product-42 list", "\thome  "], ["product-42", "list", "home"]),
    ("surrogate-KEY", ["a,b a a"], ["a,b", "a"]),
    ("xkey", ["a b", "c"], ["a", "b", "c"]),
    ("Cache-Tag", ["a , b c,,d", "e"], ["a", "b c", "d", "e"]),
    ("Cache-Tag", [" , ,", ""], []),
    ("Edge-Tags", ["a, b c", "d"], ["a", "b", "c", "d"]),
    ("Cache-Groups", [#""a b", "c";x=1"#, #""A", "c""#], ["a b", "c", "A"]),
    ("Cache-Groups", [#""a", b"#], []),
    ("Cache-Groups", ["a b"], []),
    // Bytes outside of tokens are part of a tag.
    ("Surrogate-Key", ["\"a\" (b) ü/1?"], ["\"a\"", "(b)", "ü/1?"]),
  ]

  @Test("Each field has a syntax of its own, and empty tags do not count", arguments: cases)
  func syntax(_ name: String, _ values: [String], _ tags: [String]) {
    let fields = HeaderFields(values.map { (name, $0) } + [("Other", "x")])
    #expect(ResponseTags.tags(of: fields, in: [name.lowercased()]) == tags)
    #expect(ResponseTags.tags(of: fields, in: ["Another", name, name.uppercased()]) == tags)
    #expect(ResponseTags.tags(of: fields, in: []) == [])
    #expect(ResponseTags.tags(of: fields, in: ["Absent"]) == [])
  }

  @Test("The tags of several fields count in the order of the fields' names")
  func severalFields() {
    let fields: HeaderFields = ["xkey": "c b", "Cache-Groups": #""a", "b""#, "Cache-Tag": "d"]
    #expect(ResponseTags.tags(of: fields, in: ["Cache-Groups", "xkey"]) == ["a", "b", "c"])
    #expect(ResponseTags.tags(of: fields, in: ResponseTags.knownFieldNames) == ["a", "b", "d", "c"])
  }

  @Test("A tag that is not UTF-8 keeps its bytes, and those next to it are the same as alone")
  func otherEncodings() {
    let value = FieldText.text(ofBytes: [0xFC, 0x20, 0xC3, 0xBC])
    let tags = ResponseTags.tags(of: ["xkey": value], in: ["xkey"])
    #expect(tags == [FieldText.text(ofBytes: [0xFC]), "ü"])
    // Canonically equivalent characters have other bytes.
    let composed = ["e\u{301}", "\u{E9}"]
    #expect(ResponseTags.tags(of: ["xkey": composed.joined(separator: " ")], in: ["xkey"]).count == 2)
  }

  private static func decide(_ lines: Lines, _ names: [String]) -> Rule? {
    var options = CachingOptions()
    options.tagFieldNames = names
    let decision = Storability.decide(
      request: RequestHead(method: "GET", url: target, fields: HeaderFields()),
      response: ResponseHead(status: 200, fields: fields([("Cache-Control", "max-age=60")] + lines)),
      requestTime: start, responseTime: start, options: options)
    if case .refuse(let rule) = decision { return rule }
    return nil
  }

  @Test("A response with more than 1,000 tags or 16 KiB of tags in the named fields is not stored")
  func limits() {
    func tags(_ count: Int) -> String { (0..<count).map { "t\($0)" }.joined(separator: " ") }
    for (name, maximum, more) in [
      ("xkey", tags(1000), tags(1001)),
      ("xkey", String(repeating: "x ", count: 1000), String(repeating: "x ", count: 100_000)),
      ("xkey", String(repeating: "x", count: 16 << 10), String(repeating: "x", count: 16 << 10) + " x"),
      (
        "Cache-Groups", (0..<1000).map { "\"\($0)\"" }.joined(separator: ", "),
        (0..<1001).map { "\"\($0)\"" }.joined(separator: ", ")
      ),
    ] {
      #expect(Self.decide([(name, maximum)], [name]) == nil)
      #expect(Self.decide([(name, more)], [name]) == .tooManyTags)
      #expect(Self.decide([(name, more)], ["Cache-Tag"]) == nil)
      #expect(Self.decide([(name, maximum), ("Cache-Tag", "one")], [name, "cache-tag"])?.id == "too-many-tags")
      #expect(Self.decide([(name, maximum)], [name, name.uppercased()]) == nil)
    }
    // A malformed Cache-Groups has no tag.
    #expect(Self.decide([("Cache-Groups", tags(2000))], ["Cache-Groups"]) == nil)
  }

  @Test("A 304 that adds too many tags removes the stored response")
  func update() throws {
    let lines: Lines = [("Cache-Control", "max-age=60"), ("ETag", "\"1\"")]
    let stored = try #require(Exchange(response: dated(lines)).stored)
    let groups = (0..<1001).map { "\"\($0)\"" }.joined(separator: ", ")
    let outcome = Freshening.decide(
      notModified: ResponseHead(status: 304, fields: fields(lines + [("Cache-Groups", groups)])),
      request: RequestHead(url: target), stored: stored, requestTime: start, responseTime: start,
      options: CachingOptions())
    guard case .updateAndRemove(_, _, .tooManyTags) = outcome else {
      Issue.record("\(outcome)")
      return
    }
  }
}

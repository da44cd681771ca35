import Foundation
import HTTPCaching
import Testing

@Suite("Incomplete responses and ranges")
struct PartialContentTests {
  /// A stored incomplete response, or a complete one if `range` is nil.
  static func stored(_ range: String?, tag: String? = "\"a\"", count: Int, after elapsed: Double = 1) -> Exchange {
    var lines = dated([("Cache-Control", "max-age=60"), ("X", "old")])
    if let range { lines.append(("Content-Range", range)) }
    if let tag { lines.append(("ETag", tag)) }
    return Exchange(
      request: range == nil ? [] : [("Range", "bytes=0-")], status: range == nil ? 200 : 206, response: lines,
      bodyByteCount: count, elapsed: elapsed)
  }

  static func ask(_ range: String) -> Lines { [("Range", range)] }

  static let uses: [DecisionCase] = [
    DecisionCase(
      "part-inside", "9111 3.3", rows: [16, 17], stored("bytes 4-9/10", count: 6), ask("bytes=6-8"), gives: "206 6-8"),
    DecisionCase(
      "part-open", "9111 3.3", rows: [16], stored("bytes 4-9/10", count: 6), ask("bytes=6-"), gives: "206 6-9"),
    DecisionCase(
      "part-suffix", "9111 3.3", rows: [16], stored("bytes 4-9/10", count: 6), ask("bytes=-1"), gives: "206 9-9"),
    DecisionCase(
      "part-partly", "9111 3.3", rows: [16], stored("bytes 4-9/10", count: 6), ask("bytes=3-5"),
      gives: "fetch:part-lacks-range"),
    DecisionCase(
      "part-unknown-length", "9111 3.3", rows: [16], stored("bytes 4-9/*", count: 6), ask("bytes=-1"),
      gives: "fetch:part-lacks-range"),
    DecisionCase(
      "part-unknown-length-inside", "9111 3.3", rows: [16], stored("bytes 4-9/*", count: 6), ask("bytes=4-5"),
      gives: "206 4-5"),
    DecisionCase(
      "part-broken-off", "9111 3.3", rows: [15, 16], stored("bytes 4-9/10", count: 5), ask("bytes=6-8"),
      gives: "206 6-8"),
    DecisionCase(
      "part-broken-off-beyond", "9111 3.3", rows: [16], stored("bytes 4-9/10", count: 5), ask("bytes=9-9"),
      gives: "fetch:part-lacks-range"),
    DecisionCase(
      "part-too-long", "9110 14.4", rows: [87], stored("bytes 4-9/10", count: 7), ask("bytes=6-8"),
      gives: "fetch:part-lacks-range"),
    DecisionCase(
      "part-if-range", "9110 13.1.5", rows: [75], stored("bytes 4-9/10", count: 6),
      ask("bytes=6-8") + [("If-Range", "\"b\"")], gives: "fetch:complete-part"),
    DecisionCase(
      "part-stale-inside", "9111 4.3.2", rows: [63, 67], stored("bytes 4-9/10", count: 6, after: 61), ask("bytes=6-8"),
      gives: "revalidate:stale"),
    DecisionCase(
      "part-stale-partly", "9111 4.3.2", rows: [67], stored("bytes 4-9/10", count: 6, after: 61), ask("bytes=0-8"),
      gives: "fetch:stale"),
    DecisionCase(
      "part-complete-end", "9111 3.3", rows: [16], stored("bytes 0-4/10", count: 5), gives: "complete bytes=5- \"a\""),
    DecisionCase(
      "part-complete-begin", "9111 3.3", rows: [16], stored("bytes 4-9/10", count: 6), gives: "complete bytes=0-3 \"a\""
    ),
    DecisionCase(
      "part-complete-stale", "9111 3.3", rows: [16], stored("bytes 0-4/10", count: 5, after: 61),
      gives: "complete bytes=5- \"a\""),
    DecisionCase(
      "part-complete-middle", "9111 3.3", rows: [16], stored("bytes 4-8/10", count: 5), gives: "fetch:complete-part"),
    DecisionCase(
      "part-complete-weak", "9111 3.4", rows: [16, 18], stored("bytes 0-4/10", tag: "W/\"a\"", count: 5),
      gives: "fetch:complete-part"),
    DecisionCase(
      "part-any-age", "9111 3.3", rows: [16], stored("bytes 4-8/10", count: 5), policy: .returnCacheDataDontLoad,
      gives: "504:do-not-load"),
    DecisionCase(
      "part-head", "9111 3.3", rows: [16], stored("bytes 0-4/10", count: 5), method: "HEAD",
      gives: "fetch:part-lacks-range"),
  ]

  @Test("An incomplete response serves the ranges that it contains", arguments: uses)
  func answers(_ test: DecisionCase) {
    #expect(test.exchange.then(test.request, method: test.method, policy: test.policy) == test.expected)
  }

  struct Case: RequirementCase {
    let id: String
    let section: String
    let rows: [Int]
    let old: Exchange
    let range: String
    var tag: String
    let count: Int
    /// The status and, for a 206, the range; or the rule.
    let expected: String
    /// The slices of the combined body: `s` for stored bytes, `n` for new ones.
    let pieces: String

    init(
      _ id: String, _ section: String, rows: [Int], _ old: Exchange, new range: String, tag: String = "\"a\"",
      count: Int,
      gives expected: String, _ pieces: String = ""
    ) {
      self.id = id
      self.section = section
      self.rows = rows
      self.old = old
      self.range = range
      self.tag = tag
      self.count = count
      self.expected = expected
      self.pieces = pieces
    }
  }

  static let first = stored("bytes 0-4/10", count: 5)

  static let combinations: [Case] = [
    Case(
      "combine-adjacent", "9111 3.4", rows: [18, 89], first, new: "bytes 5-9/10", count: 5, gives: "200", "s0-5 n0-5"),
    Case(
      "combine-overlap", "9111 3.4", rows: [18, 89], first, new: "bytes 3-9/10", count: 7, gives: "200", "s0-3 n0-7"),
    Case(
      "combine-before", "9111 3.4", rows: [18, 89], stored("bytes 4-9/10", count: 6), new: "bytes 0-3/10", count: 4,
      gives: "200", "n0-4 s0-6"),
    Case(
      "combine-inside", "9111 3.4", rows: [18], first, new: "bytes 1-2/10", count: 2, gives: "206 bytes 0-4/10",
      "s0-1 n0-2 s3-5"),
    Case(
      "combine-some", "9111 3.4", rows: [18], first, new: "bytes 5-7/10", count: 3, gives: "206 bytes 0-7/10",
      "s0-5 n0-3"),
    Case(
      "combine-length-learnt", "9111 3.4", rows: [89], stored("bytes 0-4/*", count: 5), new: "bytes 5-9/10", count: 5,
      gives: "200", "s0-5 n0-5"),
    Case(
      "combine-into-whole", "9111 3.4", rows: [19], stored(nil, count: 10), new: "bytes 2-3/10", count: 2, gives: "200",
      "s0-2 n0-2 s4-10"),
    Case("combine-gap", "9111 3.4", rows: [18], first, new: "bytes 6-9/10", count: 4, gives: "parts-apart"),
    Case(
      "combine-other-tag", "9111 3.4", rows: [18], first, new: "bytes 5-9/10", tag: "\"b\"", count: 5,
      gives: "no-strong-validator"),
    Case(
      "combine-weak-tag", "9111 3.4", rows: [18], stored("bytes 0-4/10", tag: "W/\"a\"", count: 5), new: "bytes 5-9/10",
      tag: "W/\"a\"", count: 5, gives: "no-strong-validator"),
    Case(
      "combine-no-tag", "9111 3.4", rows: [18], stored("bytes 0-4/10", tag: nil, count: 5), new: "bytes 5-9/10",
      count: 5, gives: "no-strong-validator"),
    Case("combine-other-length", "9110 14.4", rows: [87], first, new: "bytes 5-9/11", count: 5, gives: "parts-apart"),
    Case("combine-short-body", "9110 14.4", rows: [87], first, new: "bytes 5-9/10", count: 4, gives: "parts-apart"),
    Case(
      "combine-short-stored", "9110 14.4", rows: [87], stored("bytes 0-4/10", count: 4), new: "bytes 5-9/10", count: 5,
      gives: "parts-apart"),
    Case("combine-beyond", "9110 14.4", rows: [87], first, new: "bytes 5-10/10", count: 6, gives: "parts-apart"),
    Case("combine-unit", "9110 14.4", rows: [87], first, new: "lines 5-9/10", count: 5, gives: "parts-apart"),
    Case(
      "combine-huge", "9110 14.1.2", rows: [86, 87], first, new: "bytes 5-9223372036854775806/9223372036854775807",
      count: 5, gives: "parts-apart"),
  ]

  @Test("A 206 is combined with a stored response that has the same strong validator", arguments: combinations)
  func combines(_ test: Case) throws {
    let old = try #require(test.old.stored)
    let new = fields(
      dated([("Content-Range", test.range), ("ETag", test.tag), ("X", "new"), ("Content-Length", "\(test.count)")]))
    var freshness = old.freshness
    freshness.lifetime = 99
    freshness.flags.insert(.incomplete)
    switch PartialContent.combine(fields: new, freshness: freshness, byteCount: test.count, stored: old) {
    case .replace(let rule): #expect(rule.id == test.expected)
    case .combine(let status, let fields, let freshness, let pieces):
      let range = fields["Content-Range"]
      #expect((range.map { "\(status) \($0)" } ?? "\(status)") == test.expected)
      #expect(freshness.flags.contains(.incomplete) == (status == 206) && freshness.lifetime == 99)
      // Row 19: the new fields replace the old ones. Row 89: the length is that of the combined body.
      #expect(fields["X"] == "new")
      let total = pieces.reduce(0) { $0 + span($1).count }
      #expect(fields["Content-Length"] == "\(total)")
      #expect(
        pieces.map { "\(isStored($0) ? "s" : "n")\(span($0).lowerBound)-\(span($0).upperBound)" }.joined(separator: " ")
          == test.pieces)
    }
  }

  private func span(_ piece: PartialContent.Piece) -> Range<Int> {
    switch piece {
    case .stored(let range), .new(let range): range
    }
  }

  private func isStored(_ piece: PartialContent.Piece) -> Bool {
    if case .stored = piece { true } else { false }
  }

  struct ContentRangeCase: RequirementCase {
    let id: String
    var section: String { "9110 14.4" }
    var rows: [Int] { [86, 87, 88] }
    let text: String
    let isValid: Bool
  }

  static let contentRanges: [ContentRangeCase] = [
    ContentRangeCase(id: "content-range", text: "bytes 0-4/10", isValid: true),
    ContentRangeCase(id: "content-range-unknown", text: "bytes 0-4/*", isValid: true),
    ContentRangeCase(id: "content-range-unsatisfied", text: "bytes */10", isValid: true),
    ContentRangeCase(id: "content-range-nothing", text: "bytes */*", isValid: false),
    ContentRangeCase(id: "content-range-reversed", text: "bytes 4-0/10", isValid: false),
    ContentRangeCase(id: "content-range-past-end", text: "bytes 0-10/10", isValid: false),
    ContentRangeCase(id: "content-range-negative", text: "bytes -1-4/10", isValid: false),
    ContentRangeCase(id: "content-range-huge", text: "bytes 0-99999999999999999999/*", isValid: false),
    ContentRangeCase(id: "content-range-int-max", text: "bytes 0-9223372036854775807/*", isValid: false),
    ContentRangeCase(id: "content-range-other-unit", text: "lines 0-4/10", isValid: false),
    ContentRangeCase(id: "content-range-plus", text: "bytes +0-4/10", isValid: false),
    ContentRangeCase(id: "content-range-empty", text: "", isValid: false),
  ]

  @Test("Content-Range is parsed if it is valid, and rendered back", arguments: contentRanges)
  func contentRange(_ test: ContentRangeCase) {
    let value = ContentRange(test.text)
    #expect((value != nil) == test.isValid)
    if let value { #expect(value.rendered == test.text) }
  }

  /// Rows 17 and 24; RFC 9110, 15.3.7 and 15.5.17.
  @Test func heads() throws {
    let stored = try #require(Self.stored(nil, count: 10).stored)
    let range = try #require(ByteRange(first: 2, last: 4))
    let head = PartialContent.head(for: stored, range: range, age: 7)
    #expect(head.status == 206)
    #expect(head.fields["Content-Range"] == "bytes 2-4/10" && head.fields["Content-Length"] == "3")
    #expect(head.fields["Age"] == "7")
    #expect(PartialContent.bodyRange(of: range, in: stored) == 2..<5)
    let part = try #require(Self.stored("bytes 1-5/*", count: 5).stored)
    #expect(PartialContent.head(for: part, range: range, age: 0).fields["Content-Range"] == "bytes 2-4/*")
    #expect(PartialContent.bodyRange(of: range, in: part) == 1..<4)
    #expect(PartialContent.unsatisfiableHead(completeLength: 10).fields["Content-Range"] == "bytes */10")
  }

  /// Row 18; RFC 9110, 14.4: a range counts the bytes of the encoded representation.
  @Test("A part is not combined with a body that was decoded")
  func decodedBodies() throws {
    var old = try #require(Self.stored(nil, count: 10).stored)
    let new = fields(dated([("Content-Range", "bytes 2-3/*"), ("ETag", "\"a\"")]))
    var freshness = old.freshness
    freshness.flags.insert(.incomplete)
    guard case .combine = PartialContent.combine(fields: new, freshness: freshness, byteCount: 2, stored: old) else {
      return #expect(Bool(false), "Bodies in the same form are combined")
    }
    old.freshness.flags.insert(.decoded)
    let combination = PartialContent.combine(fields: new, freshness: freshness, byteCount: 2, stored: old)
    #expect(combination == .replace(.partsApart))
  }
}

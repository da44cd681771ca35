import Foundation
import HTTPCaching
import Testing

@Suite("The client's preconditions and ranges, and validation by the cache")
struct ConditionTests {
  typealias Case = DecisionCase

  static let tagged = Exchange(
    response: dated([("Cache-Control", "max-age=60"), ("ETag", "\"a\""), ("Last-Modified", "@-5000")]))
  static let weak = Exchange(response: dated([("Cache-Control", "max-age=60"), ("ETag", "W/\"a\"")]))
  static let modified = Exchange(response: dated([("Cache-Control", "max-age=60"), ("Last-Modified", "@-5000")]))
  static let bare = Exchange(response: dated([("Cache-Control", "max-age=60")]))
  static let gone = Exchange(status: 410, response: dated([("Cache-Control", "max-age=60"), ("ETag", "\"a\"")]))

  static func match(_ value: String) -> Lines { [("If-None-Match", value)] }

  static let conditions: [Case] = [
    Case("inm-match", "9111 4.3.2", rows: [65], tagged, match("\"a\""), gives: "304"),
    Case("inm-differs", "9111 4.3.2", rows: [65], tagged, match("\"b\""), gives: "serve:fresh"),
    Case("inm-list", "9110 13.1.2", rows: [65], tagged, match("\"x\", W/\"y\" ,, \"a\""), gives: "304"),
    Case("inm-two-lines", "9110 13.1.2", rows: [65], tagged, match("\"x\"") + match("\"a\""), gives: "304"),
    Case("inm-star", "9110 13.1.2", rows: [65], bare, match("*"), gives: "304"),
    Case("inm-weak-stored", "9110 13.1.2", rows: [64], weak, match("\"a\""), gives: "304"),
    Case("inm-weak-sent", "9110 13.1.2", rows: [64], tagged, match("W/\"a\""), gives: "304"),
    Case("inm-malformed", "9110 13.1.2", rows: [65], tagged, match("a"), gives: "serve:fresh"),
    Case("inm-no-tag-stored", "9110 13.1.2", rows: [65], bare, match("\"a\""), gives: "serve:fresh"),
    Case(
      "inm-before-ims", "9110 13.1.3", rows: [64], tagged, match("\"b\"") + [("If-Modified-Since", "@0")],
      gives: "serve:fresh"),
    Case(
      "inm-before-ims-match", "9110 13.1.3", rows: [64], tagged, match("\"a\"") + [("If-Modified-Since", "@-9000")],
      gives: "304"),
    Case("inm-not-success", "9110 13.2.1", rows: [66], gone, match("\"a\""), gives: "serve:fresh"),
    Case("ims-equal", "9111 4.3.2", rows: [65], modified, [("If-Modified-Since", "@-5000")], gives: "304"),
    Case("ims-later", "9111 4.3.2", rows: [65], modified, [("If-Modified-Since", "@-4000")], gives: "304"),
    Case("ims-earlier", "9111 4.3.2", rows: [65], modified, [("If-Modified-Since", "@-6000")], gives: "serve:fresh"),
    Case(
      "ims-850", "9110 5.6.7", rows: [42, 65], modified, [("If-Modified-Since", "Friday, 15-Jan-27 07:00:00 GMT")],
      gives: "304"),
    Case("ims-malformed", "9110 13.1.3", rows: [65], modified, [("If-Modified-Since", "today")], gives: "serve:fresh"),
    Case("ims-date-stands-in", "9111 4.3.2", rows: [68], bare, [("If-Modified-Since", "@0")], gives: "304"),
    Case("ims-date-later", "9111 4.3.2", rows: [68], bare, [("If-Modified-Since", "@-1")], gives: "serve:fresh"),
    Case(
      "ims-receipt-stands-in", "9111 4.3.2", rows: [68], Exchange(response: [("Cache-Control", "max-age=60")]),
      [("If-Modified-Since", "@0")], gives: "304"),
    Case("if-match", "9111 4.3.2", rows: [66], tagged, [("If-Match", "\"a\"")], gives: "fetch:precondition"),
    Case(
      "if-unmodified-since", "9111 4.3.2", rows: [66], tagged, [("If-Unmodified-Since", "@0")],
      gives: "fetch:precondition"),
  ]

  static func range(_ value: String, _ more: Lines = []) -> Lines { [("Range", value)] + more }

  static let ranges: [Case] = [
    Case("range-first", "9110 14.2", rows: [17, 75], bare, range("bytes=0-1"), gives: "206 0-1"),
    Case("range-open", "9110 14.2", rows: [17], bare, range("bytes=1-"), gives: "206 1-10"),
    Case("range-suffix", "9110 14.2", rows: [17], bare, range("bytes=-1"), gives: "206 10-10"),
    Case("range-long-suffix", "9110 14.1.2", rows: [86], bare, range("bytes=-99999999999999999999"), gives: "206 0-10"),
    Case("range-end-past", "9110 14.1.2", rows: [86], bare, range("bytes=5-99999999999999999999"), gives: "206 5-10"),
    Case(
      "range-both-huge", "9110 14.1.2", rows: [86], bare, range("bytes=99999999999999999998-99999999999999999999"),
      gives: "416 11"),
    Case(
      "range-int-max", "9110 14.1.2", rows: [86], bare, range("bytes=9223372036854775807-9223372036854775807"),
      gives: "416 11"),
    Case("range-outside", "9110 15.5.17", rows: [17], bare, range("bytes=11-"), gives: "416 11"),
    Case("range-suffix-0", "9110 14.1.2", rows: [17], bare, range("bytes=-0"), gives: "416 11"),
    Case("range-space", "9110 14.1.2", rows: [17], bare, range("bytes= 0-1 , "), gives: "206 0-1"),
    Case("range-reversed", "9110 14.1.2", rows: [17], bare, range("bytes=5-1"), gives: "serve:fresh"),
    Case("range-malformed", "9110 14.2", rows: [17], bare, range("bytes=a-b"), gives: "serve:fresh"),
    Case("range-unit", "9110 14.2", rows: [17], bare, range("lines=0-1"), gives: "serve:fresh"),
    Case("range-several", "9110 14.2", rows: [17], bare, range("bytes=0-1,3-4"), gives: "serve:fresh"),
    Case(
      "range-two-lines", "9110 14.2", rows: [17], bare, range("bytes=0-1") + range("bytes=3-4"), gives: "serve:fresh"),
    Case("range-head", "9110 14.2", rows: [17], bare, range("bytes=0-1"), method: "HEAD", gives: "serve:fresh"),
    Case("range-not-success", "9110 14.2", rows: [17], gone, range("bytes=0-1"), gives: "serve:fresh"),
    Case(
      "range-and-condition", "9110 13.2.2", rows: [65, 75], tagged, range("bytes=0-1", match("\"a\"")), gives: "304"),
    Case(
      "if-range-match", "9110 13.1.5", rows: [75], tagged, range("bytes=0-1", [("If-Range", "\"a\"")]), gives: "206 0-1"
    ),
    Case(
      "if-range-differs", "9110 13.1.5", rows: [75], tagged, range("bytes=0-1", [("If-Range", "\"b\"")]),
      gives: "serve:fresh"),
    Case(
      "if-range-weak", "9110 13.1.5", rows: [75], weak, range("bytes=0-1", [("If-Range", "W/\"a\"")]),
      gives: "serve:fresh"),
    Case(
      "if-range-date", "9110 13.1.5", rows: [75], modified, range("bytes=0-1", [("If-Range", "@-5000")]),
      gives: "206 0-1"),
    Case(
      "if-range-date-later", "9110 13.1.5", rows: [75], modified, range("bytes=0-1", [("If-Range", "@-4999")]),
      gives: "serve:fresh"),
    Case(
      "if-range-date-weak-tag", "9110 8.8.2.2", rows: [75],
      Exchange(response: dated([("Cache-Control", "max-age=60"), ("Last-Modified", "@-5000"), ("ETag", "W/\"a\"")])),
      range("bytes=0-1", [("If-Range", "@-5000")]), gives: "serve:fresh"),
    Case(
      "if-range-weak-date", "9110 8.8.2.2", rows: [75],
      Exchange(response: dated([("Cache-Control", "max-age=60"), ("Last-Modified", "@-59")])),
      range("bytes=0-1", [("If-Range", "@-59")]), gives: "serve:fresh"),
  ]

  @Test("Each request gets the expected decision", arguments: conditions + ranges)
  func decides(_ test: Case) {
    #expect(test.exchange.then(test.request, method: test.method) == test.expected)
  }

  /// Rows 63, 64 and 67; RFC 9111, 4.3.1 and 4.3.2.
  @Test func sendsWhatIsStored() throws {
    let stale = Exchange(response: Self.tagged.response, elapsed: 61)
    guard
      case .revalidate(let conditional, _, _)? = stale.decision(
        [("If-None-Match", "\"mine\""), ("If-Modified-Since", "@-1"), ("X", "1")])
    else {
      Issue.record("not validated")
      return
    }
    let request = RequestHead(
      url: target, fields: fields([("If-None-Match", "\"mine\""), ("If-Modified-Since", "@-1"), ("X", "1")]))
    let sent = request.conditional(on: conditional).fields
    #expect(sent.values(of: "If-None-Match") == ["\"a\""])
    #expect(sent.values(of: "If-Modified-Since") == [HTTPDate.format(start.addingTimeInterval(-5000))])
    #expect(sent["X"] == "1")
    // The client's own tag is not sent. It is evaluated against the validated response.
    let stored = try #require(stale.stored)
    #expect(
      word(Reuse.decideResponse(request: request, stored: stored, now: start, rule: .validated)) == "serve:validated")
    let current = RequestHead(url: target, fields: fields(Self.match("\"a\"")))
    #expect(word(Reuse.decideResponse(request: current, stored: stored, now: start, rule: .validated)) == "304")
  }

  /// Row 63: an unquoted tag is sent unchanged.
  @Test func unquotedTag() {
    let exchange = Exchange(response: dated([("Cache-Control", "max-age=0"), ("ETag", "abc")]))
    guard case .revalidate(let conditional, _, _)? = exchange.decision() else {
      Issue.record("not validated")
      return
    }
    #expect(conditional["If-None-Match"] == "abc")
  }

  /// RFC 9110, 15.4.5.
  @Test func notModifiedHead() throws {
    let stored = try #require(Self.tagged.stored)
    let head = Reuse.notModifiedHead(for: stored, age: 5)
    #expect(head.status == 304)
    #expect(head.fields["ETag"] == "\"a\"" && head.fields["Age"] == "5" && head.fields.contains("Date"))
    #expect(!head.fields.contains("Last-Modified"))
  }
}

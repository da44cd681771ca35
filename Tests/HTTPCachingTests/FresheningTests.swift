import Foundation
import HTTPCaching
import Testing

/// Names the decision and its rule.
private func word(_ freshening: Freshening) -> String {
  switch freshening {
  case .update(_, _, let rule): "update:\(rule.id)"
  case .updateAndRemove(_, _, let rule): "remove:\(rule.id)"
  case .unrelated(let rule): "unrelated:\(rule.id)"
  case .markStale(_, let rule): "stale:\(rule.id)"
  }
}

@Suite("Freshening of stored responses by a 304 or a HEAD response")
struct FresheningTests {
  struct Case: RequirementCase {
    let id: String
    let section: String
    let rows: [Int]
    /// Validators and other fields of the stored response.
    let stored: Lines
    /// Fields of the 304 or of the response to HEAD.
    let new: Lines
    var status: Int
    var options: CachingOptions
    let expected: String

    init(
      _ id: String, _ section: String, rows: [Int], stored: Lines, new: Lines, status: Int = 200,
      options: CachingOptions = CachingOptions(), gives expected: String
    ) {
      self.id = id
      self.section = section
      self.rows = rows
      self.stored = stored
      self.new = new
      self.status = status
      self.options = options
      self.expected = expected
    }
  }

  static let strong: Lines = [("ETag", "\"a\"")]
  static let weak: Lines = [("ETag", "W/\"a\"")]
  static let other: Lines = [("ETag", "\"b\"")]
  static let modified: Lines = [("Last-Modified", "@-5000")]
  static let older: Lines = [("Last-Modified", "@-9000")]

  static let cases304: [Case] = [
    Case("304-strong", "9111 4.3.4", rows: [70], stored: strong, new: strong, gives: "update:validator-matches"),
    Case(
      "304-strong-other", "9111 4.3.4", rows: [70], stored: strong, new: other, gives: "unrelated:validator-differs"),
    Case("304-strong-for-weak", "9111 4.3.4", rows: [70], stored: weak, new: strong, gives: "update:validator-matches"),
    Case(
      "304-strong-other-for-weak", "9111 4.3.4", rows: [70], stored: weak, new: other,
      gives: "unrelated:validator-differs"),
    Case(
      "304-strong-for-none", "9111 4.3.4", rows: [70], stored: modified, new: strong + modified,
      gives: "update:validator-matches"),
    Case(
      "304-strong-for-none-no-date", "9111 4.3.4", rows: [70], stored: modified, new: strong,
      gives: "update:validator-matches"),
    Case(
      "304-strong-for-none-other-date", "9111 4.3.4", rows: [70], stored: modified, new: strong + older,
      gives: "unrelated:validator-differs"),
    Case(
      "304-strong-same-other-date", "9111 4.3.4", rows: [70], stored: strong + modified, new: strong + older,
      gives: "update:validator-matches"),
    Case("304-weak", "9111 4.3.4", rows: [71], stored: weak, new: weak, gives: "update:validator-matches"),
    Case("304-weak-for-strong", "9111 4.3.4", rows: [71], stored: strong, new: weak, gives: "update:validator-matches"),
    Case("304-weak-other", "9111 4.3.4", rows: [71], stored: other, new: weak, gives: "unrelated:validator-differs"),
    Case("304-modified", "9111 4.3.4", rows: [71], stored: modified, new: modified, gives: "update:validator-matches"),
    Case(
      "304-modified-other", "9111 4.3.4", rows: [71], stored: modified, new: [("Last-Modified", "@-1")],
      gives: "unrelated:validator-differs"),
    Case(
      "304-modified-older", "9111 4.3.4", rows: [71], stored: modified, new: older,
      gives: "unrelated:validator-differs"),
    Case(
      "304-modified-older-for-tagged", "9111 4.3.4", rows: [71], stored: strong + modified, new: older,
      gives: "unrelated:validator-differs"),
    Case(
      "304-modified-for-tagged", "9111 4.3.4", rows: [71], stored: strong, new: modified,
      gives: "update:validator-matches"),
    Case(
      "304-modified-other-form", "9111 4.3.4", rows: [42, 71],
      stored: [("Last-Modified", "Fri, 01 Jan 2027 00:00:00 GMT")],
      new: [("Last-Modified", "Friday, 01-Jan-27 00:00:00 GMT")], gives: "update:validator-matches"),
    Case(
      "304-none-for-modified", "9111 4.3.4", rows: [71], stored: modified, new: [], gives: "update:validator-matches"),
    Case("304-none-for-weak", "9111 4.3.4", rows: [71], stored: weak, new: [], gives: "update:validator-matches"),
    Case("304-none-for-tagged", "9111 4.3.4", rows: [71], stored: strong, new: [], gives: "update:validator-matches"),
    Case(
      "304-no-store", "9111 5.2.2.5", rows: [4, 72], stored: strong, new: strong + [("Cache-Control", "no-store")],
      gives: "remove:no-store"),
    Case(
      "304-no-store-alone", "9111 5.2.2.5", rows: [4, 72], stored: strong, new: [("Cache-Control", "no-store")],
      gives: "remove:no-store"),
    Case(
      "304-private-alone-shared", "9111 5.2.2.7", rows: [5, 72], stored: weak, new: [("Cache-Control", "private")],
      options: shared(), gives: "remove:private"),
    Case(
      "304-vary-star", "9111 4.1", rows: [31, 72], stored: strong, new: strong + [("Vary", "*")],
      gives: "remove:vary-star"),
    Case(
      "304-vary-added", "9111 4.1", rows: [29, 72], stored: strong, new: strong + [("Vary", "Cookie")],
      gives: "remove:vary-extended"),
    Case(
      "304-vary-extended", "9111 4.1", rows: [29, 72], stored: strong + [("Vary", "Accept")],
      new: strong + [("Vary", "Accept, Cookie")], gives: "remove:vary-extended"),
    Case(
      "304-vary-same", "9111 4.1", rows: [29, 72], stored: strong + [("Vary", "Accept, Cookie")],
      new: strong + [("Vary", "cookie"), ("Vary", "ACCEPT")], gives: "update:validator-matches"),
    Case(
      "304-vary-less", "9111 4.1", rows: [29, 72], stored: strong + [("Vary", "Accept, Cookie")],
      new: strong + [("Vary", "Accept")], gives: "update:validator-matches"),
  ]

  static func exchange(_ lines: Lines, options: CachingOptions = CachingOptions()) -> Exchange {
    Exchange(
      response: dated([("Cache-Control", "max-age=60"), ("Content-Length", "11"), ("X", "old"), ("Y", "old")] + lines),
      options: options)
  }

  static let later = start.addingTimeInterval(100)

  static func freshen(
    _ stored: Stored, with lines: Lines, request: Lines = [], options: CachingOptions = CachingOptions()
  ) -> Freshening {
    Freshening.decide(
      notModified: ResponseHead(status: 304, fields: fields(lines)),
      request: RequestHead(url: target, fields: fields(request)), stored: stored, requestTime: later,
      responseTime: later, options: options)
  }

  @Test("A 304 updates the stored response whose validators were sent, unless it names another", arguments: cases304)
  func notModified(_ test: Case) throws {
    let stored = try #require(Self.exchange(test.stored, options: test.options).stored)
    let freshening = Self.freshen(stored, with: test.new, options: test.options)
    #expect(word(freshening) == test.expected)
    guard case .update(let fields, let freshness, _) = freshening else { return }
    #expect(freshness.timeToLive(at: Self.later) == 60)
    // The stored body keeps its tag, because ranges are combined by it.
    #expect(fields.values(of: "ETag") == stored.fields.values(of: "ETag"))
    let tags: FreshnessInfo.Flags = [.strongETag, .weakETag]
    #expect(freshness.flags.intersection(tags) == stored.freshness.flags.intersection(tags))
  }

  /// Row 8.
  @Test("The 304 to a request with no-store updates nothing")
  func requestNoStore() throws {
    let stored = try #require(Self.exchange(Self.strong).stored)
    let freshening = Self.freshen(stored, with: Self.strong, request: [("Cache-Control", "no-store")])
    #expect(word(freshening) == "unrelated:request-no-store")
  }

  /// Rows 18 and 75.
  @Test(
    "A range is not combined with a body, nor taken from it, by the strong tag of a 304",
    arguments: [weak, modified, [], weak + modified])
  func strongTagOfA304(_ lines: Lines) throws {
    let stored = try #require(Self.exchange(lines).stored)
    guard case .update(let updates, let freshness, _) = Self.freshen(stored, with: Self.strong + Self.modified) else {
      Issue.record("not updated")
      return
    }
    let updated = Stored(freshness: freshness, fields: updates)
    let part = try #require(
      Exchange(
        request: [("Range", "bytes=5-20")], status: 206,
        response: dated(Self.strong + [("Cache-Control", "max-age=60"), ("Content-Range", "bytes 5-20/30")])
      ).stored)
    let combination = PartialContent.combine(
      fields: part.fields, freshness: part.freshness, byteCount: 16, stored: updated)
    #expect(combination == .replace(.noStrongValidator))
    let request = fields([("Range", "bytes=0-1"), ("If-Range", "\"a\"")])
    let decision = Reuse.decide(
      request: RequestHead(url: target, fields: request), stored: updated, policy: .useProtocolCachePolicy,
      now: Self.later, options: CachingOptions())
    #expect(word(decision) == "serve:fresh")
  }

  struct FieldCase: RequirementCase {
    let id: String
    let section: String
    let rows: [Int]
    let name: String
    let old: String
    let new: String
    let isUpdated: Bool

    init(_ id: String, rows: [Int] = [72], _ name: String, _ old: String, _ new: String, updated: Bool) {
      self.id = id
      section = "9111 3.2"
      self.rows = rows
      self.name = name
      self.old = old
      self.new = new
      isUpdated = updated
    }
  }

  static let fieldCases: [FieldCase] = [
    FieldCase("update-x", "X-Test", "a", "b", updated: true),
    FieldCase("update-content-foo", "Content-Foo", "a", "b", updated: true),
    FieldCase("update-cache-control", "Cache-Control", "max-age=1", "max-age=3600", updated: true),
    FieldCase("update-content-type", "Content-Type", "text/plain", "text/html", updated: true),
    FieldCase("update-set-cookie", "Set-Cookie", "a=b", "a=c", updated: true),
    FieldCase("keep-content-length", "Content-Length", "11", "12", updated: false),
    FieldCase("keep-content-encoding", "Content-Encoding", "gzip", "br", updated: false),
    FieldCase("keep-content-range", "Content-Range", "bytes 0-1/2", "bytes 0-0/2", updated: false),
    FieldCase("ignore-proxy-authenticate", rows: [11, 72], "Proxy-Authenticate", "a", "b", updated: false),
  ]

  @Test("A 304 replaces only the fields that do not depend on the stored body", arguments: fieldCases)
  func replaces(_ test: FieldCase) throws {
    let exchange = Exchange(response: dated([("ETag", "\"a\""), ("Kept", "1"), (test.name, test.old)]))
    let stored = try #require(exchange.stored)
    guard case .update(let fields, _, _) = Self.freshen(stored, with: Self.strong + [(test.name, test.new)]) else {
      Issue.record("not updated")
      return
    }
    let kept = stored.fields.values(of: test.name)
    #expect(fields.values(of: test.name) == (test.isUpdated ? [test.new] : kept))
    #expect(fields["Kept"] == "1")
  }

  /// Row 72: the age is counted from the 304, and the lifetime comes from the updated fields.
  @Test func freshnessIsRecomputed() throws {
    let stored = try #require(Self.exchange(Self.strong + [("Age", "50")]).stored)
    guard case .update(let fields, let freshness, _) = Self.freshen(stored, with: Self.strong) else {
      Issue.record("not updated")
      return
    }
    #expect(freshness.timeToLive(at: Self.later) == 60)
    #expect(!fields.contains("Age"))
    #expect(fields["Date"] == HTTPDate.format(Self.later))
    guard
      case .update(_, let longer, _) = Self.freshen(
        stored, with: Self.strong + [("Cache-Control", "max-age=600"), ("Age", "9")])
    else {
      Issue.record("not updated")
      return
    }
    #expect(longer.timeToLive(at: Self.later) == 591)
  }

  /// Rows 16 and 72: an incomplete response stays incomplete, and line breaks in a 304 are removed.
  @Test func incompleteResponsesStayIncomplete() throws {
    let exchange = Exchange(
      request: [("Range", "bytes=0-10")], status: 206,
      response: dated([("Cache-Control", "max-age=60"), ("Content-Range", "bytes 0-10/20")] + Self.strong))
    let stored = try #require(exchange.stored)
    guard case .update(let fields, let freshness, _) = Self.freshen(stored, with: Self.strong + [("X", "a\r\nb")])
    else {
      Issue.record("not updated")
      return
    }
    #expect(freshness.flags.contains(.incomplete))
    #expect(fields["Content-Range"] == "bytes 0-10/20" && fields["X"] == "a  b")
  }

  /// Rows 6 and 34: a response that needs permission to be shared still needs it after a 304.
  @Test func credentialsStayProtected() throws {
    let exchange = Exchange(
      request: [("Authorization", "x")], response: dated([("Cache-Control", "max-age=60, public")] + Self.strong),
      options: shared())
    let stored = try #require(exchange.stored)
    let new = Self.strong + [("Cache-Control", "max-age=60")]
    #expect(word(Self.freshen(stored, with: new, options: shared())) == "remove:authorization")
  }

  static let headCases: [Case] = [
    Case(
      "head-agrees", "9111 4.3.5", rows: [73], stored: strong, new: strong + [("Content-Length", "11")],
      gives: "update:validator-matches"),
    Case("head-silent", "9111 4.3.5", rows: [73], stored: strong, new: [], gives: "update:validator-matches"),
    Case("head-other-tag", "9111 4.3.5", rows: [74], stored: strong, new: other, gives: "stale:head-differs"),
    Case("head-new-tag", "9111 4.3.5", rows: [74], stored: modified, new: strong, gives: "stale:head-differs"),
    Case(
      "head-other-date", "9111 4.3.5", rows: [74], stored: modified, new: [("Last-Modified", "@-1")],
      gives: "stale:head-differs"),
    Case(
      "head-other-length", "9111 4.3.5", rows: [74], stored: strong, new: strong + [("Content-Length", "12")],
      gives: "stale:head-differs"),
    Case(
      "head-404", "9111 4.3.5", rows: [73], stored: strong, new: strong, status: 404, gives: "unrelated:head-not-usable"
    ),
    Case(
      "head-no-store", "9111 5.2.2.5", rows: [4, 73], stored: strong, new: strong + [("Cache-Control", "no-store")],
      gives: "remove:no-store"),
  ]

  @Test("A HEAD response updates a stored response or marks it stale", arguments: headCases)
  func head(_ test: Case) throws {
    let stored = try #require(Self.exchange(test.stored).stored)
    let outcome = Freshening.decide(
      head: ResponseHead(status: test.status, fields: fields(test.new)),
      request: RequestHead(method: "HEAD", url: target),
      stored: stored, requestTime: Self.later, responseTime: Self.later, options: CachingOptions())
    #expect(word(outcome) == test.expected)
    if case .markStale(let freshness, _) = outcome {
      var outdated = stored
      outdated.freshness = freshness
      let decision = Reuse.decide(
        request: RequestHead(url: target, fields: fields([("Cache-Control", "max-stale")])), stored: outdated,
        policy: .useProtocolCachePolicy, now: start, options: CachingOptions())
      #expect(word(decision).hasPrefix("revalidate"))
    }
  }

  @Test("A 304 or HEAD with too many fields updates nothing; a result with too many fields is removed")
  func fieldLimits() throws {
    func lines(_ count: Int, _ prefix: String) -> Lines { (0..<count).map { ("x-\(prefix)-\($0)", "v") } }
    func head(_ stored: Stored, _ new: Lines) -> String {
      word(
        Freshening.decide(
          head: ResponseHead(status: 200, fields: fields(new)), request: RequestHead(method: "HEAD", url: target),
          stored: stored, requestTime: Self.later, responseTime: Self.later, options: CachingOptions()))
    }
    let few = try #require(Self.exchange(Self.strong).stored)
    let tooMany = Self.strong + lines(1000, "new")
    #expect(word(Self.freshen(few, with: tooMany)) == "unrelated:too-many-fields")
    #expect(head(few, tooMany) == "unrelated:too-many-fields")
    let many = try #require(Self.exchange(Self.strong + lines(990, "old")).stored)
    let more = Self.strong + lines(20, "new")
    #expect(word(Self.freshen(many, with: more)) == "remove:too-many-fields")
    #expect(head(many, more) == "remove:too-many-fields")
    #expect(word(Self.freshen(few, with: more)) == "update:validator-matches")
  }

  private func word(_ decision: ReuseDecision) -> String { HTTPCachingTests.word(decision) }
  private func word(_ freshening: Freshening) -> String { HTTPCachingTests.word(freshening) }
}

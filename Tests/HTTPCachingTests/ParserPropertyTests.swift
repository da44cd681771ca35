import Foundation
import HTTPCaching
import Testing

/// Hostile input: no parser traps, each takes at most linear time, and rendered values parse back to the same value.
@Suite("Parsers on hostile input")
struct ParserPropertyTests {
  static let seeds: [UInt64] = [1, 9111, 9110, 8246]

  /// Bytes that are significant to the parsers, so that random text contains many of them.
  private static let alphabet = Array("\"\\,;=-/ \t()*?:@%.0123456789aqWbytesmax-ageno-cache\r\n\0\u{80}é".utf8)

  private static func text(_ random: inout SeededGenerator) -> String {
    let pieces = [
      "max-age", "s-maxage=", "no-cache=\"", "private", "bytes=", "bytes ", "W/\"", "\"", "99999999999999999999", "-",
      "GMT", "q=0.",
    ]
    var bytes: [UInt8] = []
    for _ in 0..<Int.random(in: 0...40, using: &random) {
      switch Int.random(in: 0..<8, using: &random) {
      case 0: bytes += Array((pieces.randomElement(using: &random) ?? "").utf8)
      case 1: bytes.append(UInt8.random(in: 0...255, using: &random))
      default: bytes.append(alphabet.randomElement(using: &random) ?? 0)
      }
    }
    return String(decoding: bytes, as: UTF8.self)
  }

  @Test("Digits are parsed like a number, up to the largest one", arguments: seeds)
  func digits(seed: UInt64) {
    var random = SeededGenerator(seed: seed)
    let largest = Int.max
    var texts = ["", "0", "007", "+5", "-5", " 5", "5 ", "5.", "1e3", "\(largest)", "9223372036854775808", "²"]
    for _ in 0..<500 {
      let bytes = (0..<Int.random(in: 0...22, using: &random)).map { _ in UInt8.random(in: 0x2F...0x3A, using: &random)
      }
      texts.append(String(decoding: bytes, as: UTF8.self))
      texts.append(String(bytes.compactMap { $0 < 0x30 || $0 > 0x39 ? nil : Character(Unicode.Scalar($0)) }))
    }
    for text in texts {
      let hasOtherCharacters = text.utf8.contains { $0 < 0x30 || $0 > 0x39 }
      #expect(Int(digits: text.utf8) == (hasOtherCharacters ? nil : Int(text)), "\(text)")
    }
  }

  @Test("A response is refused for its Vary if its Vary key would match no request", arguments: seeds)
  func vary(seed: UInt64) throws {
    var random = SeededGenerator(seed: seed)
    let url = try #require(URL(string: "http://example.com/"))
    let pieces = ["*", ",", " ", "\t", "accept", "X-A", "a*b", "a b", "é", "\"q\"", "", "Accept-Encoding"]
    let time = Date(timeIntervalSince1970: 1_790_000_000)
    for _ in 0..<500 {
      var fields: HeaderFields = ["Cache-Control": "max-age=60"]
      for _ in 0..<Int.random(in: 1...2, using: &random) {
        let count = Int.random(in: 0...5, using: &random)
        fields.append(name: "Vary", value: (0..<count).map { _ in pieces.randomElement(using: &random) ?? "" }.joined())
      }
      let request = RequestHead(url: url)
      let decision = Storability.decide(
        request: request, response: ResponseHead(status: 200, fields: fields), requestTime: time, responseTime: time,
        options: CachingOptions())
      let vary = VaryKey(request: request, response: fields) { $0 }
      #expect(
        (decision == .refuse(.varyStar)) == vary.fields.contains { $0.name == "*" }, "\(fields.values(of: "Vary"))")
    }
  }

  private static let names = [
    "Cache-Control", "Age", "Date", "Expires", "Last-Modified", "ETag", "Vary", "Content-Range", "Content-Length",
    "Connection", "CDN-Cache-Control", "Cache-Groups", "Cache-Group-Invalidation", "Location", "Content-Type", "X",
    "Range", "If-Range", "If-None-Match", "If-Modified-Since", "Pragma", "Accept", "Accept-Language", "Authorization",
  ]

  private static func lines(_ random: inout SeededGenerator) -> HeaderFields {
    var fields = HeaderFields()
    for _ in 0..<Int.random(in: 0...8, using: &random) {
      fields.append(name: names.randomElement(using: &random) ?? "X", value: text(&random))
    }
    return fields
  }

  /// Rows 36, 37, 86, 87, 91.
  @Test("No decision traps on random fields", arguments: seeds)
  func decisionsSurvive(seed: UInt64) {
    var random = SeededGenerator(seed: seed)
    let times = [
      start, .distantPast, .distantFuture, Date(timeIntervalSince1970: .infinity), Date(timeIntervalSince1970: .nan),
    ]
    for _ in 0..<200 {
      var options = CachingOptions()
      options.mode = Bool.random(using: &random) ? .shared : .private
      options.targetedFieldNames = ["CDN-Cache-Control"]
      let request = RequestHead(
        method: ["GET", "HEAD", "POST", "x"].randomElement(using: &random) ?? "GET", url: target,
        fields: Self.lines(&random))
      let response = ResponseHead(
        status: [200, 206, 304, 404, -1, .max].randomElement(using: &random) ?? 200, fields: Self.lines(&random))
      let sent = times.randomElement(using: &random) ?? start
      let received = times.randomElement(using: &random) ?? start
      let now = times.randomElement(using: &random) ?? start
      _ = Storability.decide(
        request: request, response: response, requestTime: sent, responseTime: received, options: options)
      var flags = FreshnessInfo.Flags(rawValue: UInt32.random(in: 0...UInt32.max, using: &random))
      if Bool.random(using: &random) { flags = [] }
      let numbers: [Double] = [0, 1, -1, .infinity, -.infinity, .nan, 1e300]
      func number() -> Double { numbers.randomElement(using: &random) ?? 0 }
      let freshness = FreshnessInfo(
        responseTime: received, initialAge: number(), lifetime: number(), date: sent, staleWhileRevalidate: number(),
        staleIfError: number(), flags: flags)
      let stored = Stored(
        status: response.status, freshness: freshness, fields: response.fields,
        bodyByteCount: [0, 5, .max].randomElement(using: &random) ?? 0)
      for policy in RequestPolicy.allCases {
        let decision = Reuse.decide(request: request, stored: stored, policy: policy, now: now, options: options)
        if case .partial(let range, let age, _, _) = decision {
          _ = PartialContent.head(for: stored, range: range, age: age)
          _ = PartialContent.bodyRange(of: range, in: stored)
        }
      }
      _ = Reuse.decideResponse(request: request, stored: stored, now: now, rule: .validated)
      _ = Reuse.validation(of: stored)
      _ = Freshening.decide(
        notModified: response, request: request, stored: stored, requestTime: sent, responseTime: received,
        options: options)
      _ = Freshening.decide(
        head: response, request: request, stored: stored, requestTime: sent, responseTime: received, options: options)
      _ = PartialContent.combine(fields: request.fields, freshness: freshness, byteCount: 5, stored: stored)
      _ = Invalidation.targets(request: request, response: response)
      // Row 29: a Vary key matches the request that it was made from, unless it never matches.
      let varyKey = VaryKey(request: request, response: response.fields, credentialDigest: { "d" + $0 })
      let matchesNothing = varyKey.fields.contains { $0.name == "*" }
      #expect(varyKey.matches(request, credentialDigest: { "d" + $0 }) == !matchesNothing, "seed \(seed)")
    }
  }

  private static func preferences(_ random: inout SeededGenerator) -> String {
    let pieces = [
      "gzip", "br", "GZIP", "en", "en-US", "*", "", " ", "\"a,b\"", "q=1", "x y",
      ";q=0.5", ";q=0.50", " ; Q=0.5", ";q=1", ";q=2", ";a=1", ";q=0.5;q=0.5", ";q=0.",
    ]
    return (0..<Int.random(in: 0...4, using: &random)).map { _ in
      (0..<Int.random(in: 0...2, using: &random)).map { _ in pieces.randomElement(using: &random) ?? "" }.joined()
    }.joined(separator: [",", ", ", "\t,"].randomElement(using: &random) ?? ",")
  }

  /// Rows 29 and 32: a request matches a Vary key if and only if it has an equal Vary key.
  @Test("Matching a request agrees with comparing Vary keys", arguments: seeds)
  func matchingAgrees(seed: UInt64) {
    var random = SeededGenerator(seed: seed)
    let name = seed % 2 == 0 ? "Accept-Encoding" : "Accept-Language"
    let response: HeaderFields = ["Vary": name]
    var matches = 0
    for _ in 0..<5000 {
      let first = head([(name, Self.preferences(&random))])
      let second = head([(name, Self.preferences(&random))])
      let varyKey = VaryKey(request: first, response: response, credentialDigest: { $0 })
      let isSame = VaryKey(request: second, response: response, credentialDigest: { $0 }) == varyKey
      #expect(varyKey.matches(second, credentialDigest: { $0 }) == isSame, "\(first) \(second), seed \(seed)")
      #expect(varyKey.matches(first, credentialDigest: { $0 }), "\(first), seed \(seed)")
      if isSame { matches += 1 }
    }
    #expect(matches > 50, "seed \(seed)")
  }

  @Test("No parser traps on random text, and valid values are rendered back", arguments: seeds)
  func parsersSurvive(seed: UInt64) {
    var random = SeededGenerator(seed: seed)
    for _ in 0..<500 {
      let text = Self.text(&random)
      let fields = HeaderFields([
        ("Cache-Control", text), ("Cache-Groups", text), ("Cache-Tag", text), ("xkey", text), ("X", text),
        ("No-Vary-Search", text),
      ])
      let directives = ResponseDirectives(fields)
      #expect(
        (directives.maxAge ?? 0) >= 0 && (directives.maxAge ?? 0) <= FreshnessInfo.maximumSeconds, "seed \(seed)")
      _ = RequestDirectives(fields)
      _ = ResponseDirectives(fields, targetedFieldNames: ["Cache-Control"])
      _ = CacheGroups.groups(of: fields)
      _ = ResponseTags.tags(of: fields, in: ["Cache-Groups", "Cache-Tag", "xkey", "X"])
      _ = URLVariation(fields)?.simplified("http://example.com/?" + text)
      _ = HTTPDate.parse(text, now: start)
      if let tag = EntityTag(text) { #expect(EntityTag(tag.rendered) == tag, "seed \(seed)") }
      if let range = ContentRange(text) { #expect(ContentRange(range.rendered) == range, "seed \(seed)") }
      #expect(fields.sanitized().isWellFormed, "seed \(seed)")
    }
  }

  struct LongCase: RequirementCase {
    let id: String
    var section: String { "9111 7" }
    var rows: [Int] { [77] }
    let piece: String
  }

  static let longCases: [LongCase] = [
    LongCase(id: "long-open-quotes", piece: "a=\""), LongCase(id: "long-escapes", piece: "a=\"\\\","),
    LongCase(id: "long-commas", piece: ",,,,"), LongCase(id: "long-spaces", piece: "a= , "),
    LongCase(id: "long-brackets", piece: "((;"), LongCase(id: "long-tags", piece: "W/\"a\", \""),
    LongCase(id: "long-digits", piece: "9999"), LongCase(id: "long-ranges", piece: "1-2,"),
  ]

  @Test("A long field is read in linear time", .timeLimit(.minutes(1)), arguments: longCases)
  func readsLongFields(_ test: LongCase) {
    let text = String(repeating: test.piece, count: 60_000 / test.piece.utf8.count)
    let fields = HeaderFields([
      ("Cache-Control", text), ("Vary", text), ("Cache-Groups", text), ("Connection", text), ("Range", "bytes=" + text),
      ("If-None-Match", text), ("Accept", text), ("ETag", text), ("Expires", text), ("Age", text),
      ("No-Vary-Search", text),
    ])
    let clock = ContinuousClock()
    let duration = clock.measure {
      _ = ResponseDirectives(fields)
      _ = ResponseDirectives(fields, targetedFieldNames: ["Cache-Control"])
      _ = RequestDirectives(fields)
      _ = CacheGroups.groups(of: fields)
      _ = ResponseTags.tags(of: fields, in: ["Cache-Groups", "Cache-Tag", "xkey", "X"])
      _ = URLVariation(fields)
      _ = URLVariation(text: "-~")?.simplified("http://example.com/?" + text)
      _ = VaryKey(
        request: RequestHead(url: target, fields: fields),
        response: HeaderFields([("Vary", "Accept, If-None-Match")]), credentialDigest: { $0 })
      _ = Exchange(response: fields.map { ($0.name, $0.value) }).storability()
      let stored = Exchange(response: dated([("Cache-Control", "max-age=9"), ("ETag", "\"a\"")])).stored
      if let stored {
        _ = Reuse.decide(
          request: RequestHead(url: target, fields: fields), stored: stored, policy: .useProtocolCachePolicy,
          now: start,
          options: CachingOptions())
      }
    }
    // Quadratic time would take far longer. The bound allows for a busy machine.
    #expect(duration < .seconds(10))
  }
}

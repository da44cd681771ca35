import HTTPCaching
import Testing

/// Field values as text, from which the bytes can be restored (RFC 9110, sections 5.5 and 8.8.3).
@Suite("Texts of field values")
struct FieldTextTests {
  @Test("UTF-8 is its text")
  func unicode() {
    for text in ["", "\"abc\"", "ä", "\"日本\"", "\u{10FFFD}", "\u{10FE7F}", "\u{10FF00}", "e\u{301}"] {
      #expect(FieldText.text(ofBytes: Array(text.utf8)) == text)
      #expect(Array(FieldText.text(ofBytes: Array(text.utf8)).utf8) == Array(text.utf8))
      #expect(FieldText.bytes(of: text) == Array(text.utf8))
      #expect(Array(FieldText.displayed(text).utf8) == Array(text.utf8))
    }
  }

  @Test("Other bytes are shown as ISO 8859-1, and differ from the same text in UTF-8")
  func latin() {
    let latin = FieldText.text(ofBytes: [0x22, 0xE4, 0x22])
    #expect(FieldText.displayed(latin) == "\"ä\"")
    #expect(latin != FieldText.text(ofBytes: Array("\"ä\"".utf8)))
    #expect(FieldText.displayed(FieldText.text(ofBytes: [0x80, 0xFF, 0xC3])) == "\u{80}\u{FF}\u{C3}")
  }

  @Test("Every sequence of bytes has a text of its own, from which it is restored", arguments: [UInt64(1), 2, 3])
  func restored(seed: UInt64) {
    var random = SeededGenerator(seed: seed)
    var texts: [String: [UInt8]] = [:]
    func check(_ bytes: [UInt8]) {
      let text = FieldText.text(ofBytes: bytes)
      #expect(FieldText.bytes(of: text) == bytes)
      // Strings with canonically equivalent characters are equal in Swift, so compare their scalars.
      let scalars = text.unicodeScalars.map { String($0.value, radix: 16) }.joined(separator: " ")
      #expect(texts.updateValue(bytes, forKey: scalars).map { $0 == bytes } ?? true)
      let joined = HeaderFields([("ETag", text), ("ETag", "\"b\"")])["ETag"] ?? ""
      #expect(FieldText.bytes(of: joined) == bytes + Array(", \"b\"".utf8))
    }
    for first in UInt8.min...UInt8.max {
      check([first])
      for second in UInt8.min...UInt8.max { check([first, second]) }
    }
    let pieces: [[UInt8]] = [
      [0xF4, 0x8F, 0xBA, 0x80], [0xF4, 0x8F, 0xBB, 0xBF], [0xF4, 0x8F, 0xBA], [0xC3, 0xA4], [0xE4], [0x41], [0xFF],
      [0xEF, 0xBF, 0xBD], [0xED, 0xA0, 0x80], [0xC0, 0x80],
    ]
    for _ in 0..<2000 {
      check((0..<Int.random(in: 1...5, using: &random)).flatMap { _ in pieces.randomElement(using: &random) ?? [] })
    }
  }

  /// Row 64.
  @Test("Values are compared byte by byte, also if Unicode calls their characters equivalent")
  func equivalentCharacters() throws {
    for (value, other) in [("\"\u{E9}\"", "\"e\u{301}\""), ("\"K\"", "\"\u{212A}\"")] {
      #expect(value == other && !value.hasSameBytes(as: other))
      let stored = try #require(Exchange(response: dated([("Cache-Control", "max-age=60"), ("ETag", value)])).stored)
      func decide(_ tag: String) -> ReuseDecision {
        Reuse.decide(
          request: head([("If-None-Match", tag)]), stored: stored, policy: .useProtocolCachePolicy, now: start,
          options: CachingOptions())
      }
      #expect(word(decide(value)) == "304")
      #expect(word(decide(other)) == "serve:fresh")
      let tags = try [#require(EntityTag(value)), #require(EntityTag(other))]
      #expect(!tags[0].matchesStrongly(tags[1]) && !tags[0].matchesWeakly(tags[1]))
      let update = Freshening.decide(
        notModified: ResponseHead(status: 304, fields: ["ETag": other]), request: head([]), stored: stored,
        requestTime: start, responseTime: start, options: CachingOptions())
      guard case .unrelated(.validatorDiffers) = update else {
        Issue.record("The stored response was updated.")
        continue
      }
      let vary = VaryKey(request: head([("User-Agent", value)]), response: ["Vary": "User-Agent"]) { $0 }
      #expect(vary.matches(head([("User-Agent", value)])) { $0 })
      #expect(!vary.matches(head([("User-Agent", other)])) { $0 })
    }
  }

  @Test("An entity tag with any bytes above 0x7F validates with these bytes")
  func entityTag() throws {
    for byte in UInt8(0x80)...0xFF {
      let value = FieldText.text(ofBytes: [0x22, byte, 0x22])
      let stored = try #require(Exchange(response: dated([("Cache-Control", "max-age=60"), ("ETag", value)])).stored)
      #expect(stored.freshness.flags.contains(.strongETag))
      let sent = try #require(Reuse.validation(of: stored)["If-None-Match"])
      #expect(FieldText.bytes(of: sent) == [0x22, byte, 0x22])
    }
  }
}

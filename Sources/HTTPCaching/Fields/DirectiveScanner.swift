/// A directive of `Cache-Control` or `Pragma`: a name with an optional argument (RFC 9111, section 5.2).
struct Directive: Hashable {
  enum Argument: Hashable {
    case none
    /// A token, or the text of a quoted string.
    case text(String)
    /// Invalid; it must not be interpreted.
    case malformed
  }

  /// The name in lowercase.
  let name: String
  let argument: Argument
}

/// Splits field lines into directives, in linear time for any input.
///
/// A line is a list. An element that is not a directive is skipped up to the next comma outside a quoted string. If a
/// quoted string has no end, quotes are ordinary bytes from there on, also in later lines, so that a later `no-store`
/// counts. All these directives are malformed, because another reader may take them for a part of the string.
struct DirectiveScanner {
  private let bytes: [UInt8]
  private var at = 0
  /// False after a quoted string without an end.
  private var honorsQuotes: Bool

  private init(_ line: String, honorsQuotes: Bool) {
    bytes = Array(line.utf8)
    self.honorsQuotes = honorsQuotes
  }

  /// Returns the directives of all lines, in order.
  static func directives(in lines: [String]) -> [Directive] {
    var found: [Directive] = []
    var honorsQuotes = true
    for line in lines {
      var scanner = DirectiveScanner(line, honorsQuotes: honorsQuotes)
      while let directive = scanner.next() { found.append(directive) }
      honorsQuotes = scanner.honorsQuotes
    }
    return found
  }

  private mutating func next() -> Directive? {
    while at < bytes.count {
      skipSpace()
      let start = at
      while at < bytes.count, bytes[at].isTokenByte { at += 1 }
      guard at > start else {
        skipPastComma()
        continue
      }
      let name = String(decoding: bytes[start..<at].map(\.asciiLowercase), as: UTF8.self)
      let argument = argument()
      skipSpace()
      let ended = at >= bytes.count || bytes[at] == UInt8(ascii: ",")
      let isWellFormed = ended && honorsQuotes
      skipPastComma()
      return Directive(name: name, argument: isWellFormed ? argument : .malformed)
    }
    return nil
  }

  private mutating func argument() -> Directive.Argument {
    guard at < bytes.count, bytes[at] == UInt8(ascii: "=") else { return .none }
    at += 1
    if at < bytes.count, bytes[at] == UInt8(ascii: "\""), honorsQuotes {
      let open = at
      if let text = quotedString() { return .text(text) }
      honorsQuotes = false
      at = open + 1
      return .malformed
    }
    let start = at
    while at < bytes.count, bytes[at].isTokenByte { at += 1 }
    return at > start ? .text(String(decoding: bytes[start..<at], as: UTF8.self)) : .malformed
  }

  /// Reads a quoted string and moves `at` past it; `nil` if it has no end.
  private mutating func quotedString() -> String? {
    at += 1
    var text: [UInt8] = []
    while at < bytes.count {
      switch bytes[at] {
      case UInt8(ascii: "\""):
        at += 1
        return String(decoding: text, as: UTF8.self)
      case UInt8(ascii: "\\"):
        guard at + 1 < bytes.count else { return nil }
        text.append(bytes[at + 1])
        at += 2
      default:
        text.append(bytes[at])
        at += 1
      }
    }
    return nil
  }

  private mutating func skipSpace() {
    while at < bytes.count, bytes[at].isFieldSpace { at += 1 }
  }

  private mutating func skipPastComma() {
    while at < bytes.count {
      let byte = bytes[at]
      if byte == UInt8(ascii: "\""), honorsQuotes {
        let open = at
        if quotedString() == nil {
          honorsQuotes = false
          at = open + 1
        }
        continue
      }
      at += 1
      if byte == UInt8(ascii: ",") { return }
    }
  }
}

extension Directive {
  /// Creates the directive of a member of a targeted field; `nil` if it has no effect.
  ///
  /// A value of a wrong type is malformed. The whole member is ignored if it needs a number (RFC 9213, section 2.1).
  init?(_ name: String, _ value: StructuredFields.Value) {
    let needsNumber = ["max-age", "s-maxage", "stale-while-revalidate", "stale-if-error"].contains(name)
    switch value {
    case .boolean(false): return nil
    case .integer(let number) where needsNumber && number >= 0: self.init(name: name, argument: .text(String(number)))
    case _ where needsNumber: return nil
    case .string(let text): self.init(name: name, argument: .text(text))
    case .boolean: self.init(name: name, argument: .none)
    default: self.init(name: name, argument: .malformed)
    }
  }

  /// The argument as `delta-seconds`: digits only, at most `FreshnessInfo.maximumSeconds`; `nil` otherwise.
  var seconds: Double? {
    guard case .text(let text) = argument else { return nil }
    return deltaSeconds(text[...].utf8)
  }

  /// The field names in the argument, in lowercase; empty if there are none or one is invalid.
  var fieldNames: [String] {
    guard case .text(let text) = argument else { return [] }
    let names = text.listElements
    return names.allSatisfy { $0.utf8.allSatisfy(\.isTokenByte) } ? names : []
  }
}

/// Parses `delta-seconds` (RFC 9111, section 1.2.2): digits only, limited to 2^31.
func deltaSeconds(_ text: Substring.UTF8View) -> Double? {
  guard !text.isEmpty else { return nil }
  var value = 0
  for byte in text {
    guard byte.isDigit else { return nil }
    // Limiting the value at each digit prevents overflow for any number of digits.
    value = min(value * 10 + Int(byte &- UInt8(ascii: "0")), 2_147_483_648)
  }
  return Double(value)
}

/// The subset of Structured Fields that caching needs: parsing lists and dictionaries, and writing tokens and strings.
///
/// Parsing takes linear time. A malformed part makes the whole field fail, as RFC 9651 requires.
enum StructuredFields {
  /// The value of a member, without parameters.
  enum Value: Hashable {
    case integer(Int)
    case string(String)
    case boolean(Bool)
    /// An inner list of strings only.
    case strings([String])
    /// Any other item or inner list; only the syntax is checked, because no caching field uses the value.
    case other
  }

  /// Parses a list into its members; `nil` if it is malformed.
  static func list(_ lines: [String]) -> [Value]? {
    var parser = StructuredFieldParser(lines)
    return parser.list()
  }

  /// Parses a dictionary into its members; `nil` if it is malformed.
  ///
  /// Each key occurs once, with its last value.
  static func dictionary(_ lines: [String]) -> [(key: String, value: Value)]? {
    var parser = StructuredFieldParser(lines)
    return parser.dictionary()
  }

  /// Returns a token if the text is one, otherwise a string. Bytes that a string cannot contain become `?`.
  static func tokenOrString(_ text: String) -> String {
    let bytes = Array(text.utf8)
    if let first = bytes.first, first.isSFTokenStart, bytes.allSatisfy(\.isSFTokenByte) { return text }
    return string(text)
  }

  /// Returns a string item. Bytes that it cannot contain become `?`.
  static func string(_ text: String) -> String {
    var bytes: [UInt8] = [UInt8(ascii: "\"")]
    for byte in text.utf8 {
      switch byte {
      case UInt8(ascii: "\""), UInt8(ascii: "\\"): bytes += [UInt8(ascii: "\\"), byte]
      case 0x20...0x7E: bytes.append(byte)
      default: bytes.append(UInt8(ascii: "?"))
      }
    }
    bytes.append(UInt8(ascii: "\""))
    return String(decoding: bytes, as: UTF8.self)
  }
}

extension UInt8 {
  fileprivate var isLetter: Bool {
    asciiLowercase >= UInt8(ascii: "a") && asciiLowercase <= UInt8(ascii: "z")
  }
  fileprivate var isLowercaseLetter: Bool { self >= UInt8(ascii: "a") && self <= UInt8(ascii: "z") }
  fileprivate var isSFTokenStart: Bool { isLetter || self == UInt8(ascii: "*") }
  fileprivate var isSFTokenByte: Bool { isTokenByte || self == UInt8(ascii: ":") || self == UInt8(ascii: "/") }
}

/// The parser. Its recursion depth is fixed, because an inner list contains items, not lists.
private struct StructuredFieldParser {
  private let bytes: [UInt8]
  private var at = 0

  init(_ lines: [String]) {
    bytes = Array(lines.joined(separator: ",").utf8)
    skipSpaces()
  }

  private var current: UInt8? { at < bytes.count ? bytes[at] : nil }

  private mutating func skipSpaces() {
    while current == 0x20 { at += 1 }
  }

  private mutating func take(_ byte: UInt8) -> Bool {
    guard current == byte else { return false }
    at += 1
    return true
  }

  mutating func list() -> [StructuredFields.Value]? {
    var members: [StructuredFields.Value] = []
    while current != nil {
      guard let value = value() else { return nil }
      members.append(value)
      guard let more = separator() else { return nil }
      if !more { break }
    }
    return members
  }

  mutating func dictionary() -> [(key: String, value: StructuredFields.Value)]? {
    var order: [String] = []
    var members: [String: StructuredFields.Value] = [:]
    while current != nil {
      guard let key = key() else { return nil }
      var value = StructuredFields.Value.boolean(true)
      if take(UInt8(ascii: "=")) {
        guard let given = self.value() else { return nil }
        value = given
      } else {
        guard parameters() else { return nil }
      }
      if members.updateValue(value, forKey: key) == nil { order.append(key) }
      guard let more = separator() else { return nil }
      if !more { break }
    }
    return order.map { ($0, members[$0] ?? .boolean(true)) }
  }

  /// Reads the end of a member. Returns true if another member follows, false at the end, `nil` otherwise.
  private mutating func separator() -> Bool? {
    skipOptionalSpace()
    guard current != nil else { return false }
    guard take(UInt8(ascii: ",")) else { return nil }
    skipOptionalSpace()
    return current == nil ? nil : true
  }

  private mutating func skipOptionalSpace() {
    while let byte = current, byte.isFieldSpace { at += 1 }
  }

  private mutating func key() -> String? {
    guard let first = current, first.isLowercaseLetter || first == UInt8(ascii: "*") else { return nil }
    let start = at
    while let byte = current,
      byte.isLowercaseLetter || byte.isDigit || byte == UInt8(ascii: "_") || byte == UInt8(ascii: "-")
        || byte == UInt8(ascii: ".") || byte == UInt8(ascii: "*")
    {
      at += 1
    }
    return String(decoding: bytes[start..<at], as: UTF8.self)
  }

  private mutating func value() -> StructuredFields.Value? {
    guard take(UInt8(ascii: "(")) else { return item() }
    var strings: [String]? = []
    while true {
      skipSpaces()
      if take(UInt8(ascii: ")")) {
        guard parameters() else { return nil }
        return strings.map { .strings($0) } ?? .other
      }
      guard let item = item(), current == 0x20 || current == UInt8(ascii: ")") else { return nil }
      if case .string(let string) = item { strings?.append(string) } else { strings = nil }
    }
  }

  private mutating func item() -> StructuredFields.Value? {
    guard let item = bareItem(), parameters() else { return nil }
    return item
  }

  private mutating func parameters() -> Bool {
    while take(UInt8(ascii: ";")) {
      skipSpaces()
      guard key() != nil else { return false }
      if take(UInt8(ascii: "=")), bareItem() == nil { return false }
    }
    return true
  }

  private mutating func bareItem() -> StructuredFields.Value? {
    guard let first = current else { return nil }
    switch first {
    case UInt8(ascii: "\""): return quoted().map { .string($0) }
    case UInt8(ascii: "?"):
      at += 1
      if take(UInt8(ascii: "1")) { return .boolean(true) }
      return take(UInt8(ascii: "0")) ? .boolean(false) : nil
    case UInt8(ascii: ":"): return byteSequence()
    case UInt8(ascii: "@"):
      at += 1
      guard case .integer? = number() else { return nil }
      return .other
    case UInt8(ascii: "%"): return displayString() ? .other : nil
    case _ where first.isDigit || first == UInt8(ascii: "-"): return number()
    case _ where first.isSFTokenStart:
      while let byte = current, byte.isSFTokenByte { at += 1 }
      return .other
    default: return nil
    }
  }

  private mutating func quoted() -> String? {
    guard take(UInt8(ascii: "\"")) else { return nil }
    var text: [UInt8] = []
    while let byte = current {
      at += 1
      switch byte {
      case UInt8(ascii: "\""): return String(decoding: text, as: UTF8.self)
      case UInt8(ascii: "\\"):
        guard let escaped = current, escaped == UInt8(ascii: "\"") || escaped == UInt8(ascii: "\\") else { return nil }
        text.append(escaped)
        at += 1
      case 0x20...0x7E: text.append(byte)
      default: return nil
      }
    }
    return nil
  }

  /// Parses a display string (RFC 9651, section 4.2.10): two lowercase hexadecimal digits after each `%`, UTF-8 in all,
  /// and no escape with `\`.
  private mutating func displayString() -> Bool {
    at += 1
    guard take(UInt8(ascii: "\"")) else { return false }
    var text: [UInt8] = []
    while let byte = current {
      at += 1
      switch byte {
      case UInt8(ascii: "\""): return String(validating: text, as: UTF8.self) != nil
      case UInt8(ascii: "%"):
        guard let high = lowercaseHexadecimalDigit(), let low = lowercaseHexadecimalDigit() else { return false }
        text.append(high << 4 | low)
      case 0x20...0x7E: text.append(byte)
      default: return false
      }
    }
    return false
  }

  private mutating func lowercaseHexadecimalDigit() -> UInt8? {
    guard let byte = current else { return nil }
    at += 1
    switch byte {
    case UInt8(ascii: "0")...UInt8(ascii: "9"): return byte - UInt8(ascii: "0")
    case UInt8(ascii: "a")...UInt8(ascii: "f"): return byte - UInt8(ascii: "a") + 10
    default: return nil
    }
  }

  /// Parses a byte sequence; only its alphabet is checked.
  private mutating func byteSequence() -> StructuredFields.Value? {
    at += 1
    while let byte = current,
      byte.isLetter || byte.isDigit || byte == UInt8(ascii: "+") || byte == UInt8(ascii: "/")
        || byte == UInt8(ascii: "=")
    {
      at += 1
    }
    return take(UInt8(ascii: ":")) ? .other : nil
  }

  /// Parses a number of at most 15 digits, or 12 and 3 decimals, so that nothing overflows.
  private mutating func number() -> StructuredFields.Value? {
    let isNegative = take(UInt8(ascii: "-"))
    let firstDigit = at
    var magnitude = 0
    while let byte = current, byte.isDigit {
      guard at - firstDigit < 15 else { return nil }
      magnitude = magnitude * 10 + Int(byte - UInt8(ascii: "0"))
      at += 1
    }
    guard at > firstDigit else { return nil }
    guard current == UInt8(ascii: ".") else { return .integer(isNegative ? -magnitude : magnitude) }
    guard at - firstDigit <= 12 else { return nil }
    at += 1
    let fraction = at
    while let byte = current, byte.isDigit { at += 1 }
    return (1...3).contains(at - fraction) ? .other : nil
  }
}

/// The values of header fields as text, from which the bytes of a message can be restored (RFC 9110, section 5.5).
///
/// The text of valid UTF-8 is that text. In any other value, such as one in ISO 8859-1, each byte above 0x7F is a
/// private character from U+10FE80 to U+10FEFF, whose lower eight bits are the byte. So an `ETag` in any encoding is
/// sent back byte by byte, also after it was stored. A value in UTF-8 that contains such a character counts as one in
/// another encoding.
public enum FieldText {
  /// Returns the text of a value in a message.
  @inlinable  // For specialization: as generic code, reading a byte takes a hundred instructions.
  public static func text(ofBytes bytes: some Collection<UInt8>) -> String {
    // Validating other text is generic code of the standard library, several times slower.
    bytes.allSatisfy({ $0 < 0x80 }) ? String(decoding: bytes, as: UTF8.self) : textInAnotherScript(Array(bytes))
  }

  @usableFromInline
  static func textInAnotherScript(_ bytes: [UInt8]) -> String {
    if let text = String(validating: bytes, as: UTF8.self), !hasBytes(text) { return text }
    var text = ""
    for byte in bytes { text.unicodeScalars.append(byte < 0x80 ? Unicode.Scalar(byte) : scalar(of: byte)) }
    return text
  }

  /// Returns the bytes of a value in a message.
  public static func bytes(of text: String) -> [UInt8] {
    guard hasBytes(text) else { return Array(text.utf8) }
    var bytes: [UInt8] = []
    for scalar in text.unicodeScalars {
      if let byte = byte(of: scalar) { bytes.append(byte) } else { bytes += Array(String(scalar).utf8) }
    }
    return bytes
  }

  /// Returns a text to show: UTF-8 unchanged, and any other value as ISO 8859-1.
  @inlinable
  public static func displayed(_ text: String) -> String {
    isASCII(text) ? text : displayedInAnotherScript(text)
  }

  /// Whether a text is in ASCII. Takes no pass over such a text.
  @inlinable
  package static func isASCII(_ text: String) -> Bool { text.utf8.count == text.utf16.count }

  @usableFromInline
  static func displayedInAnotherScript(_ text: String) -> String {
    guard hasBytes(text) else { return text }
    var shown = ""
    for scalar in text.unicodeScalars {
      shown.unicodeScalars.append(byte(of: scalar).map(Unicode.Scalar.init) ?? scalar)
    }
    return shown
  }

  /// Whether a text has a character that is a byte.
  static func hasBytes(_ text: String) -> Bool {
    !isASCII(text) && text.unicodeScalars.contains { byte(of: $0) != nil }
  }

  private static func byte(of scalar: Unicode.Scalar) -> UInt8? {
    (0x10_FE80...0x10_FEFF).contains(scalar.value) ? UInt8(truncatingIfNeeded: scalar.value) : nil
  }

  private static func scalar(of byte: UInt8) -> Unicode.Scalar {
    // All of these are characters.
    Unicode.Scalar(0x10_FE00 | UInt32(byte)) ?? "\u{FFFD}"
  }
}

extension HeaderFields {
  /// The fields to show; see ``FieldText/displayed(_:)``.
  package var displayed: HeaderFields { HeaderFields(map { ($0.name, FieldText.displayed($0.value)) }) }
}

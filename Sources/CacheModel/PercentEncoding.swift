import Glibc

/// The hexadecimal digits of percent-encodings, whose case does not matter (RFC 3986, section 6.2.2.1).
///
/// A `%` without two digits is no percent-encoding, and stays as it is.
enum PercentEncoding {
  /// Writes the digits in upper case.
  ///
  /// - Complexity: One `memchr` for a text without `%`, because each lookup creates a key.
  static func uppercaseDigits(_ text: UnsafeMutableBufferPointer<UInt8>) {
    guard var next = text.baseAddress else { return }
    let end = next + text.count
    while let found = memchr(next, CInt(UInt8(ascii: "%")), end - next) {
      next = found.assumingMemoryBound(to: UInt8.self) + 1
      guard end - next >= 2 else { return }
      guard isDigit(next[0]), isDigit(next[1]) else { continue }
      for index in 0..<2 where next[index] >= UInt8(ascii: "a") { next[index] &= 0xDF }
      next += 2
    }
  }

  /// Whether texts of one length are equal except for the case of digits.
  static func areEqual(_ text: UnsafePointer<UInt8>, _ other: UnsafePointer<UInt8>, count: Int) -> Bool {
    if memcmp(text, other, count) == 0 { return true }
    var index = 0
    while index < count, text[index] == other[index] {
      let isEncoding =
        text[index] == UInt8(ascii: "%") && count - index > 2
        && (1...2).allSatisfy { isDigit(text[index + $0]) && isDigit(other[index + $0]) }
      index += 1
      guard isEncoding else { continue }
      for _ in 0..<2 {
        // The bit distinguishes the two cases of a letter, and is set in all numerals.
        guard text[index] | 0x20 == other[index] | 0x20 else { return false }
        index += 1
      }
    }
    return index == count
  }

  private static func isDigit(_ byte: UInt8) -> Bool {
    byte &- UInt8(ascii: "0") < 10 || (byte | 0x20) &- UInt8(ascii: "a") < 6
  }
}

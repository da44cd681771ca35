#if canImport(Glibc)
  import Glibc
#else
  import Darwin
#endif

/// Writes names and values of `application/x-www-form-urlencoded` in one spelling: two spellings of one text become the
/// same bytes, and those of different texts do not.
///
/// Letters, digits and `-._~!$'()*,/:;?@` stay as they are, `+` is a space, and every other byte of UTF-8 is
/// percent-encoded. Malformed UTF-8 becomes U+FFFD as in the WHATWG's decoder. A `%` without two digits is a `%`.
struct FormWriter {
  /// A part of a query, or a complete text.
  enum Component {
    /// Ends at `=`, `&` or `#`.
    case name
    /// Ends at `&` or `#`.
    case value
    /// Contains all bytes.
    case text
  }

  let buffer: UnsafeMutableBufferPointer<UInt8>
  var count = 0

  init(buffer: UnsafeMutableBufferPointer<UInt8>) { self.buffer = buffer }

  /// Returns a buffer size for a query and its `?`: a byte becomes at most three, and each parameter has an `=` and a
  /// `&`.
  static func maximumByteCount(forQueryOf byteCount: Int) -> Int { 3 * byteCount + 2 }

  /// Returns the spelling of a name that may be percent-encoded.
  static func canonicalName(_ text: String) -> String {
    var text = text
    return text.withUTF8 { bytes in
      withUnsafeTemporaryAllocation(of: UInt8.self, capacity: maximumByteCount(forQueryOf: bytes.count)) { buffer in
        var writer = FormWriter(buffer: buffer)
        _ = writer.write(.text, of: bytes, from: 0)
        return String(decoding: UnsafeMutableBufferPointer(rebasing: buffer[..<writer.count]), as: UTF8.self)
      }
    }
  }

  /// Returns the offset of the first such byte before an end. Uses `memchr`, because most of a URL is not its query.
  static func find(_ byte: UInt8, in text: UnsafeBufferPointer<UInt8>, before end: Int) -> Int? {
    guard let start = text.baseAddress, let found = memchr(start, CInt(byte), end) else { return nil }
    return UnsafeRawPointer(found) - UnsafeRawPointer(start)
  }

  @inline(__always)
  mutating func append(_ byte: UInt8) {
    buffer[count] = byte
    count += 1
  }

  /// Appends bytes unchanged.
  mutating func copy(_ bytes: UnsafeBufferPointer<UInt8>) {
    guard let source = bytes.baseAddress, let start = buffer.baseAddress else { return }
    (start + count).update(from: source, count: bytes.count)
    count += bytes.count
  }

  /// Writes the component of `source` that begins at a position, and returns where it ends.
  mutating func write(_ component: Component, of source: UnsafeBufferPointer<UInt8>, from start: Int) -> Int {
    var at = start
    while at < source.count {
      let byte = source[at]
      if Self.isPlain(byte) {
        append(byte)
        at += 1
        continue
      }
      switch byte {
      case UInt8(ascii: "=") where component == .name: return at
      case UInt8(ascii: "&") where component != .text, UInt8(ascii: "#") where component != .text: return at
      case UInt8(ascii: "+"):
        append(byte)
        at += 1
      default: writeDecoded(source, &at)
      }
    }
    return at
  }

  /// Writes the character at a position, and moves the position behind it.
  private mutating func writeDecoded(_ source: UnsafeBufferPointer<UInt8>, _ at: inout Int) {
    let (first, width) = Self.decodedByte(source, at)
    at += width
    guard first >= 0x80 else {
      switch first {
      case 0x20: append(UInt8(ascii: "+"))
      case _ where Self.isPlain(first): append(first)
      default: appendEncoded(first)
      }
      return
    }
    let start = count
    appendEncoded(first)
    guard var (missing, next) = Self.continuation(of: first) else { return replace(from: start) }
    while missing > 0 {
      guard at < source.count else { return replace(from: start) }
      let (byte, width) = Self.decodedByte(source, at)
      guard next.contains(byte) else { return replace(from: start) }
      appendEncoded(byte)
      at += width
      next = 0x80...0xBF
      missing -= 1
    }
  }

  /// Returns how many bytes follow the first byte of a character, and which can be the next one; nil if none can.
  private static func continuation(of first: UInt8) -> (count: Int, next: ClosedRange<UInt8>)? {
    switch first {
    case 0xC2...0xDF: (1, 0x80...0xBF)
    case 0xE0: (2, 0xA0...0xBF)
    case 0xED: (2, 0x80...0x9F)
    case 0xE1...0xEF: (2, 0x80...0xBF)
    case 0xF0: (3, 0x90...0xBF)
    case 0xF1...0xF3: (3, 0x80...0xBF)
    case 0xF4: (3, 0x80...0x8F)
    default: nil
    }
  }

  /// Replaces the bytes from a position with U+FFFD.
  private mutating func replace(from start: Int) {
    count = start
    for byte: UInt8 in [0xEF, 0xBF, 0xBD] { appendEncoded(byte) }
  }

  private mutating func appendEncoded(_ byte: UInt8) {
    append(UInt8(ascii: "%"))
    append(Self.digit(byte >> 4))
    append(Self.digit(byte & 0xF))
  }

  private static func digit(_ value: UInt8) -> UInt8 {
    value < 10 ? UInt8(ascii: "0") + value : UInt8(ascii: "A") + value - 10
  }

  /// Returns the byte at a position, percent-decoded, and the number of bytes that represent it.
  private static func decodedByte(_ source: UnsafeBufferPointer<UInt8>, _ at: Int) -> (byte: UInt8, width: Int) {
    guard source[at] == UInt8(ascii: "%"), at + 2 < source.count, let high = number(source[at + 1]),
      let low = number(source[at + 2])
    else { return (source[at], 1) }
    return (high << 4 | low, 3)
  }

  private static func number(_ digit: UInt8) -> UInt8? {
    switch digit {
    case UInt8(ascii: "0")...UInt8(ascii: "9"): digit - UInt8(ascii: "0")
    case UInt8(ascii: "a")...UInt8(ascii: "f"): digit - UInt8(ascii: "a") + 10
    case UInt8(ascii: "A")...UInt8(ascii: "F"): digit - UInt8(ascii: "A") + 10
    default: nil
    }
  }

  /// Whether a byte stays as it is: letters, digits and `-._~!$'()*,/:;?@`, as bits of two words.
  @inline(__always)
  private static func isPlain(_ byte: UInt8) -> Bool {
    let word: UInt64 = byte < 64 ? 0x8FFF_F792_0000_0000 : 0x47FF_FFFE_87FF_FFFF
    return byte < 128 && word &>> UInt64(byte & 63) & 1 != 0
  }
}

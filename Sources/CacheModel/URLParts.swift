import Glibc
import HTTPCaching

/// The ranges of an absolute URL's parts in its text.
struct URLParts {
  var scheme: Range<Int>
  var host: Range<Int>
  var port: Range<Int>
  var target: Range<Int>
  /// Whether the authority has a user, or a user and a password (RFC 3986, section 3.2.1).
  private(set) var hasUser = false
  /// Whether the URL has an authority. The target of a `data:` URL and the like is used unchanged.
  var isHierarchical = false
  /// The default port of the scheme; nil unless the scheme is `http` or `https`.
  private(set) var defaultPort: StaticString?
  /// Whether lowercasing is all that makes the host canonical. If not, an HTTP URL has another text for it.
  private var hasPlainHost = true

  init?(_ text: UnsafeBufferPointer<UInt8>) {
    // RFC 3986, 3.1: a letter, then letters, digits, "+", "-", ".".
    guard let colon = text.firstIndex(of: UInt8(ascii: ":")), colon > 0 else { return nil }
    scheme = 0..<colon
    host = colon..<colon
    port = host
    target = host
    defaultPort = Self.defaultPort(ofScheme: text[..<colon])
    guard defaultPort != nil || Self.isScheme(text[..<colon]) else { return nil }
    let end = Self.find(UInt8(ascii: "#"), in: text, before: text.count) ?? text.count
    guard colon < end, Self.find(0, in: text, before: end) == nil else { return nil }
    guard end >= colon + 3, text[colon + 1] == UInt8(ascii: "/"), text[colon + 2] == UInt8(ascii: "/") else {
      target = (colon + 1)..<end
      if defaultPort != nil { return nil }
      return
    }
    isHierarchical = true
    // One pass over the authority. The last colon outside the brackets of an IPv6 address starts the port.
    let start = colon + 3
    var authorityEnd = start
    var at: Int?
    var portColon: Int?
    authority: while authorityEnd < end {
      switch text[authorityEnd] {
      case UInt8(ascii: "/"), UInt8(ascii: "?"): break authority
      case UInt8(ascii: "@"): (at, portColon) = (authorityEnd, nil)
      case UInt8(ascii: ":"): portColon = authorityEnd
      case UInt8(ascii: "]"): portColon = nil
      default: break
      }
      authorityEnd += 1
    }
    target = authorityEnd..<end
    if let at { hasUser = at > start }
    host = (at.map { $0 + 1 } ?? start)..<(portColon ?? authorityEnd)
    port = (portColon.map { $0 + 1 } ?? authorityEnd)..<authorityEnd
    guard defaultPort != nil else { return }
    if host.isEmpty || !normalizePort(in: text) { return nil }
    hasPlainHost = HostName.isPlain(UnsafeBufferPointer(rebasing: text[host]))
    if !hasPlainHost, canonicalHost(in: text) == nil { return nil }
  }

  /// Returns the canonical form of the host if it is another text than the host in lowercase.
  ///
  /// It is not stored, because a value without references is cheaper for the plain hosts of nearly all URLs.
  func canonicalHost(in text: UnsafeBufferPointer<UInt8>) -> String? {
    hasPlainHost ? nil : HostName.canonical(UnsafeBufferPointer(rebasing: text[host]))
  }

  /// Leaves out zeros at the start of the port. Returns false if it is not a port.
  private mutating func normalizePort(in text: UnsafeBufferPointer<UInt8>) -> Bool {
    while port.count > 1, text[port.lowerBound] == UInt8(ascii: "0") { port = (port.lowerBound + 1)..<port.upperBound }
    var number = 0
    for index in port {
      let digit = text[index] &- UInt8(ascii: "0")
      number = number * 10 + Int(digit)
      guard digit < 10, number <= UInt16.max else { return false }
    }
    return true
  }

  /// The maximum number of bytes of host, port and target.
  func maximumByteCount(in text: UnsafeBufferPointer<UInt8>) -> Int {
    hasPlainHost ? text.count : text.count + (canonicalHost(in: text)?.utf8.count ?? 0)
  }

  /// Returns the offset of the first such byte. Uses `memchr`, because URLs can be long and each lookup creates a key.
  static func find(_ byte: UInt8, in text: UnsafeBufferPointer<UInt8>, before end: Int) -> Int? {
    guard let start = text.baseAddress, let found = memchr(start, CInt(byte), end) else { return nil }
    return UnsafeRawPointer(found) - UnsafeRawPointer(start)
  }

  private static func isScheme(_ text: Slice<UnsafeBufferPointer<UInt8>>) -> Bool {
    isLetter(text[0])
      && text.allSatisfy { isLetter($0) || $0 &- 0x30 < 10 || $0 == 0x2B || $0 == 0x2D || $0 == 0x2E }
  }

  /// Returns the default port of `http` and `https`.
  ///
  /// Compares four letters at once, because each lookup creates a key. Setting bit 0x20 lowercases a letter, and turns
  /// no other byte into a letter.
  private static func defaultPort(ofScheme text: Slice<UnsafeBufferPointer<UInt8>>) -> StaticString? {
    guard text.count == 4 || text.count == 5, let start = text.base.baseAddress else { return nil }
    let word = UInt32(littleEndian: UnsafeRawPointer(start).loadUnaligned(as: UInt32.self))
    guard word | 0x2020_2020 == 0x7074_7468 else { return nil }
    if text.count == 4 { return "80" }
    return text[4] | 0x20 == UInt8(ascii: "s") ? "443" : nil
  }
}

private func isLetter(_ byte: UInt8) -> Bool {
  (byte | 0x20) &- UInt8(ascii: "a") < 26
}

import CXXHash
import FoundationEssentials
import Glibc
import HTTPCaching

/// A cache key: method and target URI (RFC 9111, section 2), and a partition.
///
/// The order of the bytes keeps the entries of a host, and of a URL prefix, adjacent in the store:
/// `host 00 scheme ":" port 00 path?query 00 method 00 partition`. The fragment is dropped, the scheme is lowercased, a
/// missing port is filled in, and an empty path becomes `/`. The host and port of an HTTP URL are canonical, so that a
/// purge reaches a host in all its spellings: with percent-encoding, in another script, or as another form of an
/// address. The digits of percent-encoding are in upper case. Nothing else changes, because two other spellings of a path
/// may be two resources. The user of a URL is not part of the key. It selects a variant, like `Authorization`
/// (``/HTTPCaching/VaryKey``).
///
/// A value type that threads can share. Creating a key takes one pass over the URL and one allocation.
public struct RequestKey: Sendable, Hashable {
  /// The complete, ordered bytes.
  public let bytes: [UInt8]
  /// A digest that distributes keys in this process's hash tables, computed once because a miss uses it twenty times.
  ///
  /// It is keyed, so clients cannot choose keys that collide.
  public let spreadingDigest: UInt64

  /// Creates the key of a request; nil for a URL without a scheme, or an HTTP URL without a valid host and port.
  ///
  /// - Parameters:
  ///   - url: The target URI.
  ///   - method: The request method, `GET` by default. Methods are case-sensitive (RFC 9110, section 9.1).
  ///   - partition: Separates the entries of one user or tenant from those of another. Empty by default.
  public init?(url: URL, method: String = "GET", partition: String = "") {
    self.init(urlString: url.absoluteString, method: method, partition: partition)
  }

  /// Creates the key from the text of an absolute URL, like ``init(url:method:partition:)``.
  public init?(urlString: String, method: String = "GET", partition: String = "") {
    var hasUser = false
    self.init(urlString: urlString, method: method, partition: partition, hasUser: &hasUser)
  }

  /// Creates the key, and reports in `hasUser` whether the URL names a user, which is not part of the key.
  package init?(urlString: String, method: String, partition: String, hasUser: inout Bool) {
    var text = urlString
    let bytes = text.withUTF8 { utf8 -> [UInt8]? in
      guard let parts = URLParts(utf8) else { return nil }
      hasUser = parts.hasUser
      // Build on the stack: creating an array from complete bytes costs less than filling one.
      let byteCount = parts.maximumByteCount(in: utf8) + method.utf8.count + partition.utf8.count + 64
      return withUnsafeTemporaryAllocation(of: UInt8.self, capacity: byteCount) { buffer in
        var writer = KeyWriter(buffer: buffer)
        writer.appendOrigin(of: parts, in: utf8)
        writer.append(0)
        writer.appendTarget(of: parts, in: utf8)
        writer.append(0)
        if method == "GET" { writer.append("GET" as StaticString) } else { writer.append(method) }
        writer.append(0)
        writer.append(partition)
        return [UInt8](UnsafeBufferPointer(rebasing: buffer[..<writer.count]))
      }
    }
    guard let bytes else { return nil }
    self.init(storedBytes: bytes)
  }

  /// Wraps the complete bytes of a key.
  package init(storedBytes: [UInt8]) {
    bytes = storedBytes
    spreadingDigest = storedBytes.withUnsafeBytes { XXHash.digest64($0, secret: Self.secret) }
  }

  /// Returns the beginning of all keys of a host, with any scheme and port.
  ///
  /// - Parameter host: The host as in a URL or from `URL.host`, which omits the brackets of an IPv6 address.
  /// - Returns: Nil if the text is not one host alone.
  static func prefix(host: String) -> [UInt8]? {
    HostName.hasEmptyLabel(host) ? nil : HostName.canonical(host).map { Array($0.utf8) + [0] }
  }

  /// Returns the beginning of all keys below a URL; nil for a URL that cannot be cached.
  ///
  /// - Parameter isOrigin: Whether the keys of the URL's whole origin (scheme, host, port) are meant.
  static func prefix(url: URL, isOrigin: Bool = false) -> [UInt8]? {
    var text = url.absoluteString
    return text.withUTF8 { utf8 -> [UInt8]? in
      guard let parts = URLParts(utf8) else { return nil }
      return [UInt8](unsafeUninitializedCapacity: parts.maximumByteCount(in: utf8) + 32) { buffer, count in
        var writer = KeyWriter(buffer: buffer)
        writer.appendOrigin(of: parts, in: utf8)
        writer.append(0)
        if !isOrigin { writer.appendTarget(of: parts, in: utf8) }
        count = writer.count
      }
    }
  }

  /// The beginning of all keys of this URL, with any method and partition.
  package var targetPrefix: ArraySlice<UInt8> {
    var separators = 0
    for (index, byte) in bytes.enumerated() where byte == 0 {
      separators += 1
      if separators == 3 { return bytes[...index] }
    }
    return bytes[...]
  }
}

extension RequestKey {
  /// Compares the bytes with one `memcmp`.
  public static func == (left: RequestKey, right: RequestKey) -> Bool {
    guard left.bytes.count == right.bytes.count else { return false }
    return left.bytes.withUnsafeBytes { left in
      right.bytes.withUnsafeBytes { right in
        // Keys are never empty, so the pointers exist.
        guard let leftStart = left.baseAddress, let rightStart = right.baseAddress else { return true }
        return memcmp(leftStart, rightStart, left.count) == 0
      }
    }
  }

  /// A random secret of this process.
  package static let secret = XXHash.randomSecret()

  /// Hashes the digest, which is faster than hashing the bytes.
  public func hash(into hasher: inout Hasher) {
    hasher.combine(spreadingDigest)
  }
}

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

/// Writes the bytes of a key to a buffer that is large enough.
struct KeyWriter {
  let buffer: UnsafeMutableBufferPointer<UInt8>
  var count = 0

  mutating func append(_ byte: UInt8) {
    buffer[count] = byte
    count += 1
  }

  mutating func append(_ string: String) {
    guard !string.isEmpty else { return }
    let start = count
    var string = string
    string.withUTF8 { append($0) }
    // A zero separates the parts. It is replaced with a byte that UTF-8 text never contains.
    guard let written = buffer.baseAddress.map({ $0 + start }), memchr(written, 0, count - start) != nil else { return }
    for index in start..<count where buffer[index] == 0 { buffer[index] = zeroInText }
  }

  mutating func append(_ text: StaticString) {
    append(UnsafeBufferPointer(start: text.utf8Start, count: text.utf8CodeUnitCount))
  }

  mutating func append(decimal number: Int) {
    var divisor = 1
    while number / divisor >= 10 { divisor *= 10 }
    while divisor > 0 {
      append(UInt8(ascii: "0") + UInt8(number / divisor % 10))
      divisor /= 10
    }
  }

  mutating func appendOrigin(of parts: URLParts, in text: UnsafeBufferPointer<UInt8>) {
    if var host = parts.canonicalHost(in: text) {
      host.withUTF8 { append($0) }
    } else {
      append(lowercasing: text[parts.host])
    }
    append(0)
    append(lowercasing: text[parts.scheme])
    append(UInt8(ascii: ":"))
    if !parts.port.isEmpty {
      for index in parts.port { append(text[index]) }
    } else if let defaultPort = parts.defaultPort {
      append(defaultPort)
    }
  }

  mutating func appendTarget(of parts: URLParts, in text: UnsafeBufferPointer<UInt8>) {
    if parts.isHierarchical, parts.target.isEmpty || text[parts.target.lowerBound] == UInt8(ascii: "?") {
      append(UInt8(ascii: "/"))
    }
    let start = count
    append(UnsafeBufferPointer(rebasing: text[parts.target]))
    PercentEncoding.uppercaseDigits(UnsafeMutableBufferPointer(rebasing: buffer[start..<count]))
  }

  mutating func append(lowercasing bytes: Slice<UnsafeBufferPointer<UInt8>>) {
    guard let source = bytes.base.baseAddress, let start = buffer.baseAddress else { return }
    // Plain pointers let the compiler vectorize the loop.
    let (from, to) = (source + bytes.startIndex, start + count)
    for index in 0..<bytes.count { to[index] = lowercased(from[index]) }
    count += bytes.count
  }

  mutating func append(_ bytes: UnsafeBufferPointer<UInt8>) {
    guard let source = bytes.baseAddress, let start = buffer.baseAddress else { return }
    (start + count).update(from: source, count: bytes.count)
    count += bytes.count
  }
}

private let zeroInText: UInt8 = 0xFF

private func isLetter(_ byte: UInt8) -> Bool {
  (byte | 0x20) &- UInt8(ascii: "a") < 26
}

private func lowercased(_ byte: UInt8) -> UInt8 {
  byte &- UInt8(ascii: "A") < 26 ? byte | 0x20 : byte
}

extension RequestKey: CustomStringConvertible {
  /// The URL of the key, preceded by the method unless it is `GET`.
  ///
  /// It contains the query, so do not write it to default logs.
  public var description: String {
    method == "GET" ? urlString : "\(method) \(urlString)"
  }

  /// The URL of the key, without fragment and user, and with the digits of percent-encoding in upper case.
  public var urlString: String {
    String(unsafeUninitializedCapacity: bytes.count + 3) { buffer in
      var writer = KeyWriter(buffer: buffer)
      forEachPieceOfURL { writer.append($0) }
      return writer.count
    }
  }

  /// Whether `urlString` is the URL of the key, regardless of the case of the digits of percent-encoding.
  public func isMade(of urlString: String) -> Bool {
    var text = urlString
    return text.withUTF8 { text in
      var offset = 0
      var isSame = true
      forEachPieceOfURL { piece in
        guard isSame, let start = piece.baseAddress else { return }
        isSame =
          text.count - offset >= piece.count
          && PercentEncoding.areEqual(text.baseAddress! + offset, start, count: piece.count)
        offset += piece.count
      }
      return isSame && offset == text.count
    }
  }

  /// Calls `body` with the parts of the URL's text in order.
  private func forEachPieceOfURL(_ body: (UnsafeBufferPointer<UInt8>) -> Void) {
    bytes.withUnsafeBufferPointer { bytes in
      // `host 00 scheme ":" port 00 target 00`
      func end(from start: Int, _ byte: UInt8 = 0) -> Int? {
        URLParts.find(byte, in: UnsafeBufferPointer(rebasing: bytes[start...]), before: bytes.count - start)
          .map { start + $0 }
      }
      guard let hostEnd = end(from: 0), let originEnd = end(from: hostEnd + 1),
        let targetEnd = end(from: originEnd + 1), let colon = end(from: hostEnd + 1, UInt8(ascii: ":")),
        colon < originEnd
      else { return }
      func part(_ range: Range<Int>) -> UnsafeBufferPointer<UInt8> { UnsafeBufferPointer(rebasing: bytes[range]) }
      func piece(_ text: StaticString) -> UnsafeBufferPointer<UInt8> {
        UnsafeBufferPointer(start: text.utf8Start, count: text.utf8CodeUnitCount)
      }
      let scheme = part((hostEnd + 1)..<colon)
      let portAndColon = part(colon..<originEnd)
      let target = part((originEnd + 1)..<targetEnd)
      body(scheme)
      if hostEnd == 0, target.first != UInt8(ascii: "/") {
        body(piece(":"))
      } else {
        body(piece("://"))
        body(part(0..<hostEnd))
        let isDefaultPort =
          portAndColon.count == 1 || scheme.elementsEqual(piece("http")) && portAndColon.elementsEqual(piece(":80"))
          || scheme.elementsEqual(piece("https")) && portAndColon.elementsEqual(piece(":443"))
        if !isDefaultPort { body(portAndColon) }
      }
      body(target)
    }
  }

  /// The host in lowercase; empty for a URL without one.
  public var host: String { part(0) }

  /// The request method.
  public var method: String { part(3) }

  /// The partition; empty by default.
  public var partition: String { part(4) }

  private func part(_ number: Int) -> String {
    let parts = bytes.split(separator: 0, omittingEmptySubsequences: false)
    guard number < parts.count else { return "" }
    let part = parts[number]
    return part.contains(zeroInText)
      ? String(decoding: part.map { $0 == zeroInText ? 0 : $0 }, as: UTF8.self) : String(decoding: part, as: UTF8.self)
  }
}

import HTTPCaching

/// A pattern for the path of a URL, or for its path and query.
///
/// A `*` matches any characters, also `/`. A pattern with a `?` is compared with the query as well. The case matters.
/// Spellings of one path that servers treat as equal match the same patterns (RFC 3986, section 6.2.2): a letter and
/// its percent-encoding, and a path with dot segments and the path that they lead to.
package struct PathPattern: Sendable {
  private let wildcards: Wildcards
  private let includesQuery: Bool

  /// The description of a valid pattern.
  package static let form = "a pattern that begins with '/' or '*', in the spelling of URLs, such as '/img/*'"

  /// Creates a pattern; nil for a text that could never match, because no URL has such a path: it begins with neither
  /// `/` nor `*`, has dot segments, or ASCII characters that a URL has percent-encoded.
  package init?(_ text: String) {
    let path = text.utf8.prefix { $0 != UInt8(ascii: "?") }
    let segments = path.split(separator: UInt8(ascii: "/"), omittingEmptySubsequences: false)
    guard text.hasPrefix("/") || text.hasPrefix("*"),
      !segments.contains(where: { $0.elementsEqual(".".utf8) || $0.elementsEqual("..".utf8) }),
      text.utf8.allSatisfy({ $0 > 0x20 && $0 != 0x7F && !"#\"<>\\^`{|}".utf8.contains($0) })
    else { return nil }
    wildcards = Wildcards(String(decoding: RequestTarget.normalizingEncoding(text.utf8), as: UTF8.self))
    includesQuery = text.contains("?")
  }

  /// Whether the path of an absolute URL matches.
  package func matches(url: String) -> Bool {
    RequestTarget.read(url) { matches($0) }
  }

  func matches(_ target: RequestTarget) -> Bool {
    wildcards.matches(includesQuery ? target.pathAndQuery : target.path)
  }
}

/// The host and the path of a URL's text, in the form in which patterns are compared with them.
///
/// Valid only within ``read(_:_:)``.
struct RequestTarget {
  /// The canonical host without a dot at its end; empty if there is none.
  fileprivate(set) var host: UnsafeBufferPointer<UInt8>
  fileprivate(set) var pathAndQuery: UnsafeBufferPointer<UInt8>
  fileprivate var pathByteCount: Int

  var path: UnsafeBufferPointer<UInt8> { UnsafeBufferPointer(rebasing: pathAndQuery[..<pathByteCount]) }

  /// Calls `body` with the parts of an absolute URL.
  ///
  /// - Complexity: One pass over the URL. Allocates only for a host or a path in an unusual spelling.
  static func read<Result>(_ url: String, _ body: (RequestTarget) -> Result) -> Result {
    var url = url
    return url.withUTF8 { text in
      let end = text.firstIndex(of: UInt8(ascii: "#")) ?? text.endIndex
      let (host, target) = split(text[..<end])
      return withCanonical(host) { host in
        let path = target.prefix { $0 != UInt8(ascii: "?") }
        guard isUnusual(path) || target.contains(UInt8(ascii: "%")) else {
          return body(
            RequestTarget(
              host: host, pathAndQuery: UnsafeBufferPointer(rebasing: target), pathByteCount: path.count))
        }
        let normalized = removingDotSegments(normalizingEncoding(path))
        let whole = normalized + normalizingEncoding(target[path.endIndex...])
        return whole.withUnsafeBufferPointer {
          body(RequestTarget(host: host, pathAndQuery: $0, pathByteCount: normalized.count))
        }
      }
    }
  }

  private typealias Bytes = Slice<UnsafeBufferPointer<UInt8>>

  /// Returns the host, without user and port, and what follows the authority.
  private static func split(_ text: Bytes) -> (host: Bytes, target: Bytes) {
    guard let colon = text.firstIndex(of: UInt8(ascii: ":")), text[(colon + 1)...].starts(with: "//".utf8) else {
      return (text[..<text.startIndex], text)
    }
    let start = colon + 3
    let end = text[start...].firstIndex { $0 == UInt8(ascii: "/") || $0 == UInt8(ascii: "?") } ?? text.endIndex
    var host = text[start..<end]
    if let at = host.lastIndex(of: UInt8(ascii: "@")) { host = host[(at + 1)...] }
    // The last colon outside the brackets of an IPv6 address starts the port.
    if let port = host.lastIndex(where: { $0 == UInt8(ascii: ":") || $0 == UInt8(ascii: "]") }),
      host[port] == UInt8(ascii: ":")
    {
      host = host[..<port]
    }
    return (host, text[end...])
  }

  /// Calls `body` with the canonical form of a host.
  private static func withCanonical<Result>(
    _ host: Bytes, _ body: (UnsafeBufferPointer<UInt8>) -> Result
  ) -> Result {
    let bytes = UnsafeBufferPointer(rebasing: host)
    guard HostName.isPlain(bytes) else {
      // A host without a canonical form has no cache key either.
      var canonical = HostName.canonical(bytes) ?? ""
      return canonical.withUTF8 { body(withoutDot($0)) }
    }
    return withUnsafeTemporaryAllocation(of: UInt8.self, capacity: bytes.count) { lowercased in
      for index in bytes.indices { lowercased[index] = bytes[index].asciiLowercase }
      return body(withoutDot(UnsafeBufferPointer(rebasing: lowercased[..<bytes.count])))
    }
  }

  /// Returns a host without the dot at its end, which most servers ignore.
  private static func withoutDot(_ host: UnsafeBufferPointer<UInt8>) -> UnsafeBufferPointer<UInt8> {
    host.last == UInt8(ascii: ".") ? UnsafeBufferPointer(rebasing: host.dropLast()) : host
  }

  /// Whether a path is empty, or has percent-encoding or a segment that begins with a dot.
  private static func isUnusual(_ path: Bytes) -> Bool {
    var last: UInt8 = 0
    for byte in path {
      if byte == UInt8(ascii: "%") || byte >= 0x80 || byte == UInt8(ascii: ".") && last == UInt8(ascii: "/") {
        return true
      }
      last = byte
    }
    return path.isEmpty
  }

  /// Returns a text in which only reserved characters are percent-encoded, with digits in uppercase.
  static func normalizingEncoding(_ text: some Collection<UInt8>) -> [UInt8] {
    var bytes: [UInt8] = []
    var rest = Array(text)[...]
    while let byte = rest.popFirst() {
      if byte == UInt8(ascii: "%"), let high = rest.first.flatMap(hexadecimalValue),
        let low = rest.dropFirst().first.flatMap(hexadecimalValue)
      {
        let value = high << 4 | low
        if isUnreserved(value) { bytes.append(value) } else { appendEncoded(value, to: &bytes) }
        rest = rest.dropFirst(2)
      } else if byte >= 0x80 {
        appendEncoded(byte, to: &bytes)
      } else {
        bytes.append(byte)
      }
    }
    return bytes
  }

  private static func appendEncoded(_ byte: UInt8, to bytes: inout [UInt8]) {
    let digits = Array("0123456789ABCDEF".utf8)
    bytes += [UInt8(ascii: "%"), digits[Int(byte >> 4)], digits[Int(byte & 0x0F)]]
  }

  private static func hexadecimalValue(_ byte: UInt8) -> UInt8? {
    if byte.isDigit { return byte & 0x0F }
    let letter = (byte | 0x20) &- UInt8(ascii: "a")
    return letter < 6 ? letter + 10 : nil
  }

  /// Whether a byte is unreserved (RFC 3986, section 2.3).
  private static func isUnreserved(_ byte: UInt8) -> Bool {
    (byte | 0x20) &- UInt8(ascii: "a") < 26 || byte.isDigit || byte == UInt8(ascii: "-") || byte == UInt8(ascii: ".")
      || byte == UInt8(ascii: "_") || byte == UInt8(ascii: "~")
  }

  /// Returns a path without the segments `.` and `..` (RFC 3986, section 5.2.4); `/` for an empty path.
  private static func removingDotSegments(_ path: [UInt8]) -> [UInt8] {
    let slash = UInt8(ascii: "/")
    guard path.first == slash else { return path.isEmpty ? [slash] : path }
    var kept: [ArraySlice<UInt8>] = []
    let segments = path.dropFirst().split(separator: slash, omittingEmptySubsequences: false)
    for (index, segment) in segments.enumerated() {
      let isParent = segment.elementsEqual("..".utf8)
      guard isParent || segment.elementsEqual(".".utf8) else {
        kept.append(segment)
        continue
      }
      if isParent { _ = kept.popLast() }
      if index == segments.count - 1 { kept.append([]) }
    }
    return kept.flatMap { [slash] + $0 }
  }
}

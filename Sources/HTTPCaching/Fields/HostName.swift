#if canImport(FoundationEssentials)
  import FoundationEssentials
#else
  import Foundation
#endif
#if canImport(Glibc)
  import Glibc
#else
  import Darwin
#endif

/// The canonical form of a host: the same text for all spellings that reach the same host.
///
/// Percent-encoding is decoded (RFC 3986, section 6.2.2.2), a name in another script is in its ASCII form (RFC 5891,
/// section 4.4), and an IPv6 address has its shortest text (RFC 5952, section 4). Letters are lowercase. A dot at the
/// end is kept, because the name without it can be relative.
package enum HostName {
  /// Whether lowercasing is all that makes a host canonical.
  ///
  /// - Complexity: One pass without a branch for each byte, because each lookup asks this.
  @inlinable
  package static func isPlain(_ host: UnsafeBufferPointer<UInt8>) -> Bool {
    guard var next = host.baseAddress else { return false }
    let end = next + host.count
    let table = nameBytes.utf8Start
    var all = UInt8(ascii: "1")
    while next < end {
      all &= table[Int(next.pointee)]
      next += 1
    }
    return all == UInt8(ascii: "1") && (!endsInNumber(host) || isDottedQuad(host))
  }

  /// For each byte, "1" if it can be in the name of a host: letters, digits, `-`, `.`, `_` and `~`.
  @inlinable static var nameBytes: StaticString {
    """
    0000000000000000000000000000000000000000000001101111111111000000\
    0111111111111111111111111110000101111111111111111111111111100010\
    0000000000000000000000000000000000000000000000000000000000000000\
    0000000000000000000000000000000000000000000000000000000000000000
    """
  }

  /// Returns the canonical form of a host as in a URL, with the brackets of an IPv6 address; `nil` if the text is not a
  /// host alone.
  ///
  /// An IPv4 address in other forms than four decimal numbers has none, because transports differ about these, nor has
  /// an IPv6 address with a zone, which has a meaning only on one machine. Names with other characters than letters,
  /// digits, `-`, `.`, `_` and `~` have none, because transports refuse them.
  package static func canonical(_ host: some Collection<UInt8>) -> String? {
    if host.first == UInt8(ascii: "[") { return canonicalIPv6(Array(host)) }
    // Nearly all hosts are in one piece, and need at most lowercasing.
    let plain = host.withContiguousStorageIfAvailable { bytes in
      bytes.isEmpty || !isPlain(bytes) ? nil : String(decoding: bytes, as: UTF8.self).asciiLowercased()
    }
    if let plain, let text = plain { return text }
    guard var name = percentDecoded(host), !name.isEmpty, name.allSatisfy({ $0 >= 0x80 || isNameByte($0) }) else {
      return nil
    }
    if name.contains(where: { $0 >= 0x80 }) {
      guard let encoded = inASCII(name) else { return nil }
      name = encoded
    }
    let text = String(decoding: name, as: UTF8.self).asciiLowercased()
    return name.withUnsafeBufferPointer(isOtherIPv4) ? nil : text
  }

  /// Returns the canonical form of a host without brackets, as text of a user or from `URL.host`.
  package static func canonical(_ host: String) -> String? {
    let needsBrackets = host.utf8.contains(UInt8(ascii: ":")) && !host.hasPrefix("[")
    return canonical(needsBrackets ? "[\(host)]".utf8 : host.utf8)
  }

  /// Whether the text of a user has an empty label other than that of a dot at its end: `.example.com`, `a..example`.
  ///
  /// No host can be reached under such a name. It is rather meant as a pattern.
  package static func hasEmptyLabel(_ host: String) -> Bool {
    let labels = host.utf8.split(separator: UInt8(ascii: "."), omittingEmptySubsequences: false)
    return labels.dropLast().contains { $0.isEmpty }
  }

  private static func isNameByte(_ byte: UInt8) -> Bool { nameBytes.utf8Start[Int(byte)] == UInt8(ascii: "1") }

  /// Whether the last label can be a decimal, octal or hexadecimal number, as in all forms of IPv4 addresses.
  @inlinable
  static func endsInNumber(_ host: UnsafeBufferPointer<UInt8>) -> Bool {
    var end = host.count
    // Most names end in a letter that no number has.
    guard end > 0, host[end - 1] | 0x20 <= UInt8(ascii: "f") || host[end - 1] | 0x20 == UInt8(ascii: "x") else {
      return false
    }
    if host[end - 1] == UInt8(ascii: ".") { end -= 1 }
    var start = end
    while start > 0, host[start - 1] != UInt8(ascii: ".") { start -= 1 }
    guard start < end, host[start].isDigit else { return false }
    let isHexadecimal = end - start > 1 && host[start + 1] | 0x20 == UInt8(ascii: "x")
    return isHexadecimal || host[start..<end].allSatisfy(\.isDigit)
  }

  /// Whether a host is an IPv4 address in its canonical form.
  @usableFromInline
  static func isDottedQuad(_ host: UnsafeBufferPointer<UInt8>) -> Bool {
    var (count, number, digitCount) = (1, 0, 0)
    for byte in host {
      if byte == UInt8(ascii: ".") {
        guard digitCount > 0 else { return false }
        (count, number, digitCount) = (count + 1, 0, 0)
      } else {
        // A zero in front of other digits means octal.
        guard byte.isDigit, digitCount == 0 || number > 0 else { return false }
        (number, digitCount) = (number * 10 + Int(byte & 0x0F), digitCount + 1)
        guard number < 256 else { return false }
      }
    }
    return count == 4 && digitCount > 0
  }

  private static func percentDecoded(_ host: some Collection<UInt8>) -> [UInt8]? {
    var decoded: [UInt8] = []
    var rest = host.makeIterator()
    while let byte = rest.next() {
      guard byte == UInt8(ascii: "%") else {
        decoded.append(byte)
        continue
      }
      guard let high = rest.next().flatMap(hexadecimalValue), let low = rest.next().flatMap(hexadecimalValue) else {
        return nil
      }
      decoded.append(high << 4 | low)
    }
    return decoded
  }

  private static func hexadecimalValue(_ byte: UInt8) -> UInt8? {
    if byte.isDigit { return byte & 0x0F }
    let letter = (byte | 0x20) &- UInt8(ascii: "a")
    return letter < 6 ? letter + 10 : nil
  }

  /// Returns the ASCII form of a name in another script; `nil` if it has none, or if the process has no Foundation,
  /// which has the tables.
  private static func inASCII(_ name: [UInt8]) -> [UInt8]? {
    guard let text = String(validating: name, as: UTF8.self),
      let url = URL(string: "http://\(text)/")?.absoluteString, url.hasPrefix("http://"), url.hasSuffix("/")
    else { return nil }
    let encoded = Array(url.utf8.dropFirst(7).dropLast())
    return !encoded.isEmpty && encoded.allSatisfy(isNameByte) ? encoded : nil
  }

  /// Whether a name is an IPv4 address for resolvers, but not four decimal numbers.
  private static func isOtherIPv4(_ name: UnsafeBufferPointer<UInt8>) -> Bool {
    guard endsInNumber(name), !isDottedQuad(name) else { return false }
    var address = in_addr()
    // Resolvers differ about an address with a dot at the end.
    return name.last == UInt8(ascii: ".") || inet_aton(String(decoding: name, as: UTF8.self), &address) != 0
  }

  private static func canonicalIPv6(_ host: [UInt8]) -> String? {
    guard host.count > 2, host.last == UInt8(ascii: "]"), !host.contains(0) else { return nil }
    var address = in6_addr()
    guard inet_pton(AF_INET6, String(decoding: host.dropFirst().dropLast(), as: UTF8.self), &address) == 1 else {
      return nil
    }
    return withUnsafeTemporaryAllocation(of: CChar.self, capacity: Int(INET6_ADDRSTRLEN)) { text in
      inet_ntop(AF_INET6, &address, text.baseAddress, socklen_t(text.count)).map { "[\(String(cString: $0))]" }
    }
  }
}

extension URL {
  /// The canonical form of the host; `nil` without a host, or if it has none. See ``HostName``.
  package var canonicalHost: String? {
    // With percent-encoding, because decoding twice would be another host.
    host(percentEncoded: true).flatMap { HostName.canonical($0) }
  }
}

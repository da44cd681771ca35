/// A text in which each `*` matches any characters, also none.
package struct Wildcards: Sendable, Hashable {
  /// The bytes between the stars.
  private let parts: [[UInt8]]

  package init(_ text: String) {
    parts = text.utf8.split(separator: UInt8(ascii: "*"), omittingEmptySubsequences: false).map { Array($0) }
  }

  /// Whether the whole text matches.
  package func matches(_ text: String) -> Bool {
    var text = text
    return text.withUTF8 { matches($0) }
  }

  /// Whether all bytes match.
  ///
  /// - Complexity: The product of both lengths at most. Allocates nothing.
  func matches(_ bytes: UnsafeBufferPointer<UInt8>) -> Bool {
    guard let first = parts.first, let last = parts.last, parts.count > 1 else {
      return bytes.count == parts[0].count && Self.contains(bytes, parts[0], at: 0)
    }
    var start = first.count
    let end = bytes.count - last.count
    guard start <= end, Self.contains(bytes, first, at: 0), Self.contains(bytes, last, at: end) else { return false }
    for index in 1..<(parts.count - 1) {
      // The earliest place leaves the most for the others.
      let part = parts[index]
      while start + part.count <= end, !Self.contains(bytes, part, at: start) { start += 1 }
      start += part.count
      guard start <= end else { return false }
    }
    return true
  }

  /// Whether a part is at an offset at which there are enough bytes.
  private static func contains(_ bytes: UnsafeBufferPointer<UInt8>, _ part: [UInt8], at offset: Int) -> Bool {
    // A loop, because most comparisons end at the first byte.
    for index in part.indices where bytes[offset + index] != part[index] { return false }
    return true
  }
}

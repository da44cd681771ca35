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
    guard let first = parts.first, let last = parts.last, parts.count > 1 else { return bytes.elementsEqual(parts[0]) }
    guard bytes.count >= first.count + last.count, bytes.starts(with: first),
      bytes[(bytes.count - last.count)...].elementsEqual(last)
    else { return false }
    var rest = bytes[first.count..<(bytes.count - last.count)]
    for index in 1..<(parts.count - 1) where !parts[index].isEmpty {
      // The earliest place leaves the most for the others.
      guard let end = Self.firstEnd(of: parts[index], in: rest) else { return false }
      rest = rest[end...]
    }
    return true
  }

  private static func firstEnd(of part: [UInt8], in bytes: Slice<UnsafeBufferPointer<UInt8>>) -> Int? {
    guard bytes.count >= part.count else { return nil }
    for start in bytes.startIndex...(bytes.endIndex - part.count)
    where bytes[start] == part[0] && bytes[start..<(start + part.count)].elementsEqual(part) {
      return start + part.count
    }
    return nil
  }
}

/// Compares a preference list with a normalized one, without normalizing it first.
///
/// Typical lists differ from their normalized form only in case, in spaces around commas, and in the order of elements.
/// The comparison works on bytes, because each hit on a response with `Vary` needs it, and slices are several times
/// slower.
struct PreferenceListMatcher {
  private let bytes: UnsafeBufferPointer<UInt8>
  private var position = 0

  private init(_ bytes: UnsafeBufferPointer<UInt8>) { self.bytes = bytes }

  /// Whether `value` has the same elements as `normalized`, in any order unless `isOrdered`.
  ///
  /// `nil` if this cannot be decided without normalizing `value`.
  static func isEqual(
    _ value: UnsafeBufferPointer<UInt8>, to normalized: UnsafeBufferPointer<UInt8>, isOrdered: Bool
  ) -> Bool? {
    guard isPlain(value) else { return nil }
    guard !isOrdered else { return isEqualInOrder(value, normalized) }
    // One bit for each element of `normalized` that was matched.
    var found: UInt64 = 0
    var list = PreferenceListMatcher(value)
    next: while let element = list.next() {
      var others = PreferenceListMatcher(normalized)
      var bit: UInt64 = 1
      while let other = others.next() {
        if found & bit == 0, other.count == element.count, isSame(value, element, normalized, other) {
          found |= bit
          continue next
        }
        bit <<= 1
        if bit == 0 { return nil }
      }
      return false
    }
    var others = PreferenceListMatcher(normalized)
    var count = 0
    while others.next() != nil { count += 1 }
    return count == found.nonzeroBitCount
  }

  private static func isEqualInOrder(
    _ value: UnsafeBufferPointer<UInt8>, _ normalized: UnsafeBufferPointer<UInt8>
  ) -> Bool {
    var (list, others) = (PreferenceListMatcher(value), PreferenceListMatcher(normalized))
    while let element = list.next() {
      guard let other = others.next(), other.count == element.count, isSame(value, element, normalized, other) else {
        return false
      }
    }
    return others.next() == nil
  }

  /// Returns the next non-empty element, without spaces around it.
  private mutating func next() -> Range<Int>? {
    while position < bytes.count {
      var start = position
      while position < bytes.count, bytes[position] != UInt8(ascii: ",") { position += 1 }
      var end = position
      position += 1
      while start < end, bytes[start].isFieldSpace { start += 1 }
      while start < end, bytes[end - 1].isFieldSpace { end -= 1 }
      if start < end { return start..<end }
    }
    return nil
  }

  /// Whether an element equals a normalized one of the same length, apart from case.
  private static func isSame(
    _ value: UnsafeBufferPointer<UInt8>, _ element: Range<Int>, _ normalized: UnsafeBufferPointer<UInt8>,
    _ other: Range<Int>
  ) -> Bool {
    for offset in 0..<element.count
    where value[element.lowerBound + offset].asciiLowercase != normalized[other.lowerBound + offset] { return false }
    return true
  }

  /// Whether the list has no quotes, and no parameters except weights in the shortest form.
  ///
  /// Such a weight is `;q=0.` with up to three digits at the end of the element, and the last digit is not 0.
  private static func isPlain(_ list: UnsafeBufferPointer<UInt8>) -> Bool {
    var at = 0
    while at < list.count {
      // A weight without an element has a normalized form of its own.
      if list[at] == UInt8(ascii: "\"") || list[at] == UInt8(ascii: "=") { return false }
      guard list[at] == UInt8(ascii: ";") else {
        at += 1
        continue
      }
      guard at > 0, !list[at - 1].isFieldSpace, list[at - 1] != UInt8(ascii: ","), at + 5 < list.count,
        list[at + 1].asciiLowercase == UInt8(ascii: "q"), list[at + 2] == UInt8(ascii: "="),
        list[at + 3] == UInt8(ascii: "0"), list[at + 4] == UInt8(ascii: ".")
      else { return false }
      at += 5
      let digits = at
      while at < list.count, list[at].isDigit { at += 1 }
      guard (1...3).contains(at - digits), list[at - 1] != UInt8(ascii: "0") else { return false }
      while at < list.count, list[at].isFieldSpace { at += 1 }
      guard at == list.count || list[at] == UInt8(ascii: ",") else { return false }
    }
    return true
  }
}

extension UInt8 {
  /// Whether the byte is a `tchar` (RFC 9110, section 5.6.2).
  package var isTokenByte: Bool {
    switch self {
    case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"),
      UInt8(ascii: "0")...UInt8(ascii: "9"):
      true
    case UInt8(ascii: "!"), UInt8(ascii: "#"), UInt8(ascii: "$"), UInt8(ascii: "%"), UInt8(ascii: "&"),
      UInt8(ascii: "'"), UInt8(ascii: "*"), UInt8(ascii: "+"), UInt8(ascii: "-"), UInt8(ascii: "."),
      UInt8(ascii: "^"), UInt8(ascii: "_"), UInt8(ascii: "`"), UInt8(ascii: "|"), UInt8(ascii: "~"):
      true
    default: false
    }
  }

  @inlinable
  package var isDigit: Bool { self >= UInt8(ascii: "0") && self <= UInt8(ascii: "9") }

  /// Whether the byte is `OWS`: space or horizontal tab (RFC 9110, section 5.6.3).
  @inlinable
  package var isFieldSpace: Bool { self == 0x20 || self == 0x09 }

  /// The lowercase form of an ASCII letter; any other byte unchanged.
  package var asciiLowercase: UInt8 { self >= 0x41 && self <= 0x5A ? self | 0x20 : self }
}

extension String {
  /// Compares without regard to the case of ASCII letters, and without allocating.
  ///
  /// Most names differ in their lengths, which are compared without a call.
  @inlinable @inline(__always)
  package func equalsIgnoringCase(_ other: String) -> Bool {
    utf8.count == other.utf8.count && hasSameLetters(as: other)
  }

  /// Compares strings of the same length without regard to the case of ASCII letters.
  @usableFromInline
  func hasSameLetters(as other: String) -> Bool {
    let isEqual = utf8.withContiguousStorageIfAvailable { left in
      other.utf8.withContiguousStorageIfAvailable { right in
        for index in left.indices {
          let (left, right) = (left[index], right[index])
          if left != right, left.asciiLowercase != right.asciiLowercase { return false }
        }
        return true
      }
    }
    // All strings of Swift on Linux are contiguous.
    return (isEqual ?? nil) ?? zip(utf8, other.utf8).allSatisfy { $0.asciiLowercase == $1.asciiLowercase }
  }

  /// Whether both strings are the same bytes, like field values in a message.
  ///
  /// In Swift, strings with canonically equivalent characters are equal, too: `é` in one or two characters, or `K` and
  /// the kelvin sign.
  package func hasSameBytes(as other: String) -> Bool {
    self == other && (FieldText.isASCII(self) && FieldText.isASCII(other) || utf8.elementsEqual(other.utf8))
  }

  /// Returns the string with ASCII letters in lowercase, independent of the locale.
  package func asciiLowercased() -> String {
    var text = self
    // Contiguous bytes are read several times faster than those of `utf8`.
    return text.withUTF8 { bytes in
      guard bytes.contains(where: { $0 >= 0x41 && $0 <= 0x5A }) else { return self }
      return String(unsafeUninitializedCapacity: bytes.count) { lowercased in
        for index in bytes.indices { lowercased[index] = bytes[index].asciiLowercase }
        return bytes.count
      }
    }
  }

  /// Returns the string without spaces and tabs at both ends (`OWS`).
  package func trimmingFieldSpace() -> String {
    guard let first = utf8.first, let last = utf8.last, first.isFieldSpace || last.isFieldSpace else { return self }
    return String(Substring(utf8[...].trimmingFieldSpace()))
  }

  /// The elements of a list without quoted strings, in lowercase and without spaces; empty elements are left out.
  var listElements: [String] {
    var text = self
    // Contiguous bytes are read several times faster than those of `utf8`.
    return text.withUTF8 { bytes in
      bytes.split(separator: UInt8(ascii: ",")).compactMap {
        let element = $0.trimmingFieldSpace()
        return element.isEmpty ? nil : String(decoding: element, as: UTF8.self).asciiLowercased()
      }
    }
  }
}

extension BidirectionalCollection<UInt8> where SubSequence == Self {
  /// Returns the bytes without spaces and tabs at both ends (`OWS`).
  @inlinable
  package func trimmingFieldSpace() -> Self {
    var rest = drop(while: \.isFieldSpace)
    while let last = rest.last, last.isFieldSpace { rest = rest.dropLast() }
    return rest
  }
}

extension Int {
  /// Parses decimal digits; `nil` without any, with another character, or if the number is too large.
  @inlinable  // For specialization: as generic code, reading a byte takes a hundred instructions.
  package init?(digits: some Collection<UInt8>) {
    guard !digits.isEmpty else { return nil }
    var number = 0
    for digit in digits {
      let (product, isTooLarge) = number.multipliedReportingOverflow(by: 10)
      let (sum, overflows) = product.addingReportingOverflow(Int(digit &- UInt8(ascii: "0")))
      guard digit.isDigit, !isTooLarge, !overflows else { return nil }
      number = sum
    }
    self = number
  }
}

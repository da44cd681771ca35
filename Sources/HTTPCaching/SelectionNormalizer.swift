/// Brings request field values that mean the same to one form (RFC 9111, 4.1), and leaves alone what it does not know.
enum SelectionNormalizer {
  /// The one form of `value`, whose lines are joined.
  static func normalize(_ value: String, of name: String) -> String {
    if isPreferenceList(name) { return preferences(value, isOrdered: isOrdered(name)) ?? commaSpace(value) }
    return switch name {
    // Not lists, or opaque: every byte may matter.
    case "cookie", "user-agent", "referer", "from", "if-modified-since", "if-unmodified-since", "date":
      value.trimmingFieldSpace()
    default: commaSpace(value)
    }
  }

  /// Whether `normalized` is the one form of `value`. What clients usually send is compared as it stands: making the form
  /// takes memory for each element.
  static func isEqual(_ value: String, to normalized: String, of name: String) -> Bool {
    if isPreferenceList(name) {
      let isEqual = value.utf8.withContiguousStorageIfAvailable { value in
        normalized.utf8.withContiguousStorageIfAvailable {
          PlainPreferences.isEqual(value, to: $0, isOrdered: isOrdered(name))
        }
      }
      if case .some(.some(.some(let isEqual))) = isEqual { return isEqual }
    }
    return normalize(value, of: name) == normalized
  }

  /// Preference lists: case, space and the spelling of weights mean nothing, nor does the order of elements in most.
  private static func isPreferenceList(_ name: String) -> Bool {
    switch name {
    case "accept", "accept-charset", "accept-encoding", "accept-language": true
    default: false
    }
  }

  /// Whether servers take the order of elements for one of preference (RFC 9110, 12.5.4).
  private static func isOrdered(_ name: String) -> Bool { name == "accept-language" }

  /// Without spaces around the commas outside quoted strings.
  private static func commaSpace(_ value: String) -> String {
    guard value.utf8.contains(where: \.isFieldSpace) else { return value }
    return elements(of: value).map { $0.trimmingFieldSpace() }.joined(separator: ",")
  }

  /// The elements in a fixed order unless theirs means something, each in lower case, without spaces and with its weight in
  /// the shortest form; `nil` if one holds a quoted string, a malformed weight, or nothing but parameters.
  private static func preferences(_ value: String, isOrdered: Bool) -> String? {
    guard !value.utf8.contains(UInt8(ascii: "\"")) else { return nil }
    var normalized: [String] = []
    for element in elements(of: value) {
      let parts = element.utf8.split(separator: UInt8(ascii: ";"), omittingEmptySubsequences: false).map {
        String(Substring($0)).trimmingFieldSpace().asciiLowercased()
      }
      if parts[0].isEmpty {
        if parts.count == 1 { continue }
        // A weight of nothing.
        return nil
      }
      var kept = [parts[0]]
      for part in parts.dropFirst() {
        guard part.hasPrefix("q=") else {
          kept.append(part)
          continue
        }
        guard let weight = weight(part.dropFirst(2)) else { return nil }
        if weight != "1" { kept.append("q=" + weight) }
      }
      normalized.append(kept.joined(separator: ";"))
    }
    return (isOrdered ? normalized : normalized.sorted()).joined(separator: ",")
  }

  /// `qvalue` of RFC 9110, 12.4.2 without zeros at its end.
  private static func weight(_ text: Substring) -> String? {
    let bytes = Array(text.utf8)
    guard let first = bytes.first, first == UInt8(ascii: "0") || first == UInt8(ascii: "1"), bytes.count <= 5,
      bytes.count < 2 || bytes[1] == UInt8(ascii: "."), bytes.dropFirst(2).allSatisfy(\.isDigit)
    else { return nil }
    var digits = bytes.dropFirst(2)
    while digits.last == UInt8(ascii: "0") { digits.removeLast() }
    guard !digits.isEmpty else { return first == UInt8(ascii: "1") ? "1" : "0" }
    return first == UInt8(ascii: "1") ? nil : "0." + String(decoding: digits, as: UTF8.self)
  }

  /// The elements of a list, cut at the commas outside quoted strings. Linear.
  private static func elements(of value: String) -> [String] {
    var found: [String] = []
    var element: [UInt8] = []
    var isQuoted = false
    var isEscaped = false
    for byte in value.utf8 {
      if byte == UInt8(ascii: ","), !isQuoted {
        found.append(String(decoding: element, as: UTF8.self))
        element.removeAll(keepingCapacity: true)
        continue
      }
      element.append(byte)
      if isEscaped {
        isEscaped = false
      } else if byte == UInt8(ascii: "\\"), isQuoted {
        isEscaped = true
      } else if byte == UInt8(ascii: "\"") {
        isQuoted.toggle()
      }
    }
    found.append(String(decoding: element, as: UTF8.self))
    return found
  }
}

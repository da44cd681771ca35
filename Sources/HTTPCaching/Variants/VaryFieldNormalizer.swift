/// Normalizes equivalent values of request fields (RFC 9111, section 4.1), and represents them in a Vary key. Unknown
/// syntax stays unchanged.
enum VaryFieldNormalizer {
  /// Whether a Vary key has the value itself, because it is no secret.
  ///
  /// The documentation lists these fields. All other values are digests, because any other field can have a secret.
  static func isStoredInClear(_ name: String) -> Bool {
    isPreferenceList(name) || name == "origin" || name == "user-agent"
  }

  /// Returns the value for a Vary key: normalized, and as a digest unless it is stored in clear.
  static func representation(of value: String, of name: String, digest: (String) -> String) -> String {
    let normalized = normalize(value, of: name)
    return isStoredInClear(name) ? normalized : digest(normalized)
  }

  /// Returns the normalized form of `value`, whose lines are joined.
  static func normalize(_ value: String, of name: String) -> String {
    if isPreferenceList(name) { return preferences(value, isOrdered: isOrdered(name)) ?? commaSpace(value) }
    return switch name {
    case "cookie": cookies(value.trimmingFieldSpace())
    // These values are not lists, or are opaque: every byte can matter.
    case "user-agent", "referer", "from", "if-modified-since", "if-unmodified-since", "date":
      value.trimmingFieldSpace()
    default: commaSpace(value)
    }
  }

  /// Whether `stored` is the representation of `value` in a Vary key.
  ///
  /// Typical values are compared directly, because normalizing allocates memory for each element.
  static func isEqual(
    _ value: String, to stored: String, of name: String, digest: (String) -> String
  ) -> Bool {
    guard isPreferenceList(name) else {
      return representation(of: value, of: name, digest: digest).hasSameBytes(as: stored)
    }
    let isEqual = value.utf8.withContiguousStorageIfAvailable { value in
      stored.utf8.withContiguousStorageIfAvailable {
        PreferenceListMatcher.isEqual(value, to: $0, isOrdered: isOrdered(name))
      }
    }
    if case .some(.some(.some(let isEqual))) = isEqual { return isEqual }
    return normalize(value, of: name).hasSameBytes(as: stored)
  }

  /// Whether the field is a preference list.
  ///
  /// Case, spaces and the spelling of weights do not matter in it, nor does the order of elements in most lists.
  private static func isPreferenceList(_ name: String) -> Bool {
    switch name {
    case "accept", "accept-charset", "accept-encoding", "accept-language": true
    default: false
    }
  }

  /// Whether servers treat the order of elements as preference (RFC 9110, section 12.5.4).
  private static func isOrdered(_ name: String) -> Bool { name == "accept-language" }

  /// Sorts the pairs of a `Cookie` field by name, because their order has no meaning (RFC 6265, section 4.2.2).
  ///
  /// Pairs of one name stay in order, because servers use the first or the last. A field with other syntax than a
  /// `cookie-string` (section 4.2.1) stays unchanged.
  private static func cookies(_ value: String) -> String {
    var pairs: [(name: String, pair: String)] = []
    for part in value.utf8.split(separator: UInt8(ascii: ";"), omittingEmptySubsequences: false) {
      let pair = String(Substring(part)).trimmingFieldSpace()
      guard let equals = pair.utf8.firstIndex(of: UInt8(ascii: "=")), equals > pair.startIndex,
        pair.utf8[..<equals].allSatisfy(\.isTokenByte),
        isCookieValue(pair.utf8[pair.utf8.index(after: equals)...])
      else { return value }
      pairs.append((String(pair[..<equals]), pair))
    }
    // `sort` is stable.
    pairs.sort { $0.name < $1.name }
    return pairs.map(\.pair).joined(separator: "; ")
  }

  /// Whether a text is a `cookie-value` (RFC 6265, section 4.1.1).
  ///
  /// Servers that split the field at other characters then see the same pairs.
  private static func isCookieValue(_ text: Substring.UTF8View) -> Bool {
    let quote = UInt8(ascii: "\"")
    let isQuoted = text.count >= 2 && text.first == quote && text.last == quote
    return (isQuoted ? text.dropFirst().dropLast() : text).allSatisfy { byte in
      switch byte {
      case quote, UInt8(ascii: ","), UInt8(ascii: ";"), UInt8(ascii: "\\"): false
      default: byte > 0x20 && byte < 0x7F
      }
    }
  }

  /// Removes spaces around commas outside quoted strings.
  private static func commaSpace(_ value: String) -> String {
    guard value.utf8.contains(where: \.isFieldSpace) else { return value }
    return elements(of: value).map { $0.trimmingFieldSpace() }.joined(separator: ",")
  }

  /// Normalizes a preference list: lowercase, no spaces, shortest weights, and sorted unless the order has a meaning.
  ///
  /// `nil` if an element has a quoted string, a malformed weight, or only parameters.
  private static func preferences(_ value: String, isOrdered: Bool) -> String? {
    guard !value.utf8.contains(UInt8(ascii: "\"")) else { return nil }
    func joined(_ elements: [String]) -> String {
      (isOrdered ? elements : elements.sorted()).joined(separator: ",")
    }
    // Most lists have no weights.
    guard value.utf8.contains(UInt8(ascii: ";")) else { return joined(value.listElements) }
    var normalized: [String] = []
    for element in elements(of: value) {
      let parts = element.utf8.split(separator: UInt8(ascii: ";"), omittingEmptySubsequences: false).map {
        String(Substring($0)).trimmingFieldSpace().asciiLowercased()
      }
      if parts[0].isEmpty {
        if parts.count == 1 { continue }
        // A weight without an element.
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
    return joined(normalized)
  }

  /// Parses a `qvalue` (RFC 9110, section 12.4.2), and removes zeros at its end.
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

  /// Splits a list at the commas outside quoted strings, in linear time.
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

import HTTPCaching

/// A pattern for hosts, in which a `*` matches any characters, also dots.
///
/// It matches all spellings of a host: the case does not matter, a name in another script equals its ASCII form, and a
/// dot at the end does not count. It matches every port.
struct HostPattern: Sendable, Hashable {
  private let wildcards: Wildcards

  /// The description of a valid pattern.
  static let form = "a host without scheme, port and path, such as 'api.example.com' or '*.example.com'"

  /// Creates a pattern; nil for a text that no host can match, such as one with an empty label.
  init?(_ text: String) {
    let withoutDot = text.hasSuffix(".") ? String(text.dropLast()) : text
    guard !HostName.hasEmptyLabel(text) else { return nil }
    guard withoutDot.contains("*") else {
      guard let canonical = HostName.canonical(withoutDot) else { return nil }
      wildcards = Wildcards(canonical)
      return
    }
    var labels: [String] = []
    for label in withoutDot.split(separator: ".", omittingEmptySubsequences: false) {
      guard let canonical = Self.canonical(String(label)) else { return nil }
      labels.append(canonical)
    }
    wildcards = Wildcards(labels.joined(separator: "."))
  }

  private static func canonical(_ label: String) -> String? {
    // The ASCII form of a name in another script depends on all of its characters.
    guard label.utf8.allSatisfy({ $0 < 0x80 }) else { return label.contains("*") ? nil : HostName.canonical(label) }
    let isName = label.utf8.allSatisfy {
      $0 == UInt8(ascii: "*") || $0 == UInt8(ascii: "-") || $0 == UInt8(ascii: "_") || $0 == UInt8(ascii: "~")
        || $0.isDigit || ($0 | 0x20) &- UInt8(ascii: "a") < 26
    }
    return isName ? label.asciiLowercased() : nil
  }

  func matches(_ target: RequestTarget) -> Bool { wildcards.matches(target.host) }
}

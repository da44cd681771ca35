/// A text in which each `*` matches any characters, also none.
struct Wildcards {
  /// The bytes between the stars.
  private let parts: [[UInt8]]

  init(_ text: String) {
    parts = text.utf8.split(separator: UInt8(ascii: "*"), omittingEmptySubsequences: false).map { Array($0) }
  }

  /// Whether the whole text matches.
  ///
  /// - Complexity: The product of both lengths at most.
  func matches(_ text: some StringProtocol) -> Bool {
    let bytes = Array(text.utf8)
    guard let first = parts.first, let last = parts.last, parts.count > 1 else { return bytes == parts.first }
    guard bytes.count >= first.count + last.count, bytes.starts(with: first),
      bytes[(bytes.count - last.count)...].elementsEqual(last)
    else { return false }
    var rest = bytes[first.count..<(bytes.count - last.count)]
    for part in parts[1..<(parts.count - 1)] where !part.isEmpty {
      // The earliest place leaves the most for the others.
      guard let end = Self.firstEnd(of: part, in: rest) else { return false }
      rest = rest[end...]
    }
    return true
  }

  private static func firstEnd(of part: [UInt8], in bytes: ArraySlice<UInt8>) -> Int? {
    guard bytes.count >= part.count else { return nil }
    for start in bytes.startIndex...(bytes.endIndex - part.count)
    where bytes[start] == part[0] && bytes[start..<(start + part.count)].elementsEqual(part) {
      return start + part.count
    }
    return nil
  }
}

/// The value of `--path`: a pattern for the path of a URL, or for the path and the query.
struct PathPattern {
  private let wildcards: Wildcards
  private let includesQuery: Bool

  static let option = Option(
    name: "path", placeholder: "PATTERN",
    help:
      "Only URLs with this path, such as '/img/*.png'. A '*' matches any characters,\nalso '/'. With a '?' in PATTERN the query counts as well."
  )

  /// Parses ``option``; nil if it was not given.
  init?(_ arguments: Arguments) throws {
    guard let text = arguments.value(Self.option.name) else { return nil }
    guard text.hasPrefix("/") || text.hasPrefix("*") else {
      throw UsageError("--path takes a pattern that begins with '/' or '*', such as '/img/*', not '\(text)'")
    }
    wildcards = Wildcards(text)
    includesQuery = text.contains("?")
  }

  func matches(url: String) -> Bool {
    let start = url.range(of: "://")?.upperBound ?? url.startIndex
    let target = url[start...].drop { $0 != "/" && $0 != "?" }
    let path = includesQuery ? target : target.prefix { $0 != "?" }
    return wildcards.matches(path.hasPrefix("/") ? path : "/" + path)
  }
}

import CachingClient
import LMDBURLCache

/// The options that select stored responses by their status, media type and path.
struct ResponseFilter {
  private var statuses: ClosedRange<Int>?
  private var mediaType: Wildcards?
  private var path: PathPattern?
  /// The options in words, such as `status 404`.
  let words: [String]

  static let options = [
    StatusOption.option,
    Option(
      name: "type", placeholder: "TYPE",
      help: "Only this media type, such as text/html. A '*' matches any characters: 'image/*'."),
    PathPattern.option,
  ]

  init(_ arguments: Arguments) throws {
    statuses = try StatusOption.range(arguments)
    path = try PathPattern(arguments)
    if let text = arguments.value("type") {
      guard let pattern = MediaType.pattern(text) else {
        throw UsageError("--type takes \(MediaType.form), not '\(text)'")
      }
      mediaType = pattern
    }
    words = Self.options.compactMap { option in
      arguments.value(option.name).map { "\(option.name) \(Format.visible($0))" }
    }
  }

  /// Whether the filter selects every response.
  var isEmpty: Bool { words.isEmpty }

  func matches(_ entry: CacheDirectory.Entry) -> Bool {
    (statuses.map { $0.contains(entry.status) } ?? true)
      && (mediaType.map { type in entry.mediaType.map { type.matches($0) } ?? false } ?? true)
      && (path.map { $0.matches(url: entry.url) } ?? true)
  }
}

/// The option `--status`.
enum StatusOption {
  static let option = Option(
    name: "status", placeholder: "STATUS", help: "Only this status, such as 404, or a class: 5xx.",
    values: ["1xx", "2xx", "3xx", "4xx", "5xx"])

  /// Returns the statuses of ``option``; nil if it was not given.
  static func range(_ arguments: Arguments) throws -> ClosedRange<Int>? {
    guard let text = arguments.value(option.name) else { return nil }
    if text.count == 3, text.dropFirst() == "xx", let first = Int(text.prefix(1)), (1...5).contains(first) {
      return (first * 100)...(first * 100 + 99)
    }
    guard let status = Int(text), (100...999).contains(status) else {
      throw UsageError("--status takes a status like 404 or a class like 5xx, not '\(text)'")
    }
    return status...status
  }
}

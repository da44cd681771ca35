import CachingClient

/// The option `--path`.
extension PathPattern {
  static let option = Option(
    name: "path", placeholder: "PATTERN",
    help:
      "Only URLs with this path, such as '/img/*.png'. A '*' matches any characters,\nalso '/'. With a '?' in PATTERN the query counts as well."
  )

  /// Parses ``option``; nil if it was not given.
  init?(_ arguments: Arguments) throws {
    guard let text = arguments.value(Self.option.name) else { return nil }
    guard let pattern = PathPattern(text) else { throw UsageError("--path takes \(Self.form), not '\(text)'") }
    self = pattern
  }
}

import LMDBURLCache

/// The output of `urlcache purge --dry-run`.
enum PurgePreview {
  private static let urlLimit = 10

  /// Prints what a purge would cover, and changes nothing.
  static func write(
    _ selection: ResponseSelection, _ mode: PurgeMode, in directory: CacheDirectory, isJSON: Bool
  ) throws {
    var bar = ProgressBar("Counting")
    let coverage = directory.coverage(of: selection.scope, where: selection.selects, limit: urlLimit) {
      bar.update(done: $0, total: $1)
    }
    bar.end()
    guard let coverage else { throw UsageError("no response can be stored for that URL") }
    try directory.checkIsInPlace()
    guard !isJSON else {
      let json: JSON = [
        "coveredCount": .number(coverage.entryCount), "coveredBodyByteCount": .number(coverage.byteCount),
        "keptCount": .number(coverage.keptCount), "urls": .array(coverage.first.map { .string($0.url) }),
      ]
      return try Output.write(json.pretty)
    }
    let (verb, rest) = mode == .soft ? ("mark as stale", "unchanged") : ("remove", "left")
    var text =
      "Would \(verb) \(selection.words): \(Format.count(coverage.entryCount, "response")) (\(Format.bytes(coverage.byteCount))). "
      + "\(Format.count(coverage.keptCount, "response")) would be \(rest).\n"
    for entry in coverage.first { text += "  \(entry.label)\n" }
    let moreCount = coverage.entryCount - coverage.first.count
    if moreCount > 0 { text += "  and \(Format.count(moreCount)) more\n" }
    try Output.write(text)
  }
}

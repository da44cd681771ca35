import Foundation
import LMDBURLCache

/// `urlcache list`: lists the responses in a directory.
enum ListCommand: Command {
  static let manual = CommandHelp(
    name: "list", summary: "Lists the responses in a cache's directory.",
    usage: ["DIR [--sort time|url|size] [--limit COUNT] [SCOPE] [FILTER]... [--json]"],
    discussion: """
      Lists the responses in the cache in DIR: when each was stored and last updated by a validation (local times), its
      size, its age, how long it stays fresh, its status, the request fields in its Vary key, and its URL. URLs include
      their queries, which may contain secrets. For a query (RFC 10008), also the size of its content and a digest of it
      with the fields that change its meaning. Queries that an unsafe request has invalidated are listed until they are
      evicted. Other processes can use the cache at the same time. Nothing is changed, and no cache is created.

      SCOPE and FILTER are those of 'urlcache purge', so that a list shows what a purge would cover. FILTER is --status,
      --type or --path, and all that are given must match.

      WHEN is \(TimeArgument.forms).

      The time is that of the last update, or of storing. Sorted by it, the first line is printed at once, and few
      responses are in memory. To sort by URL or size, all responses must be read first, and are kept in memory: about
      half a KiB each. With --limit, at most twice as many are kept.
      """,
    operandName: "the directory", operandCount: 1...1,
    options: [
      Option(
        name: "sort", placeholder: "ORDER",
        help: "time (oldest first; the default), url (by host, then URL) or size (largest first).",
        values: orders),
      Option(name: "limit", placeholder: "COUNT", help: "Lists only the first COUNT responses."),
    ] + ResponseSelection.options + [
      Option(
        name: "json", help: "Prints a JSON object; sizes are in bytes, ages in seconds, dates in UTC.")
    ],
    failure: "there is no cache in DIR, or it cannot be read")

  private static let orders = ["time", "url", "size"]
  private static let maximumLimit = 1_000_000_000

  static func run(_ arguments: Arguments) async throws -> ExitCode {
    let order = arguments.value("sort") ?? "time"
    guard orders.contains(order) else {
      throw UsageError("--sort takes time, url or size, not '\(order)'")
    }
    let limit = try arguments.number("limit", in: 1...Self.maximumLimit, default: Self.maximumLimit)
    let selection = try ResponseSelection(arguments)
    let directory = try CacheAccess.openDirectory(arguments)
    var writer = EntryWriter(
      isJSON: arguments.has("json"), directory: directory.path,
      nothing: selection.isEmpty ? "No responses are stored.\n" : "There are no such responses: \(selection.words).\n")
    if order == "time" {
      var bar = ProgressBar("Listing", sharesTerminal: true)
      var count = 0
      try directory.forEachEntry(
        in: .time, coveredBy: selection.removalScope, progress: { bar.update(done: $0, total: $1) }
      ) { entry, _, isCovered throws in
        guard isCovered, selection.selects(entry) else {
          try writer.flushIfDue()
          return true
        }
        try writer.append(entry)
        count += 1
        return count < limit
      }
    } else {
      var first = FirstEntries(limit: limit, isBySize: order == "size")
      var bar = ProgressBar("Sorting")
      directory.forEachEntry(
        in: .stored, coveredBy: selection.removalScope, progress: { bar.update(done: $0, total: $1) }
      ) { entry, _, isCovered in
        if isCovered, selection.selects(entry) { first.insert(entry) }
        return true
      }
      bar.end()
      try directory.checkIsInPlace()
      for entry in first.sorted() { try writer.append(entry) }
    }
    try writer.flush()
    try directory.checkIsInPlace()
    try writer.end()
    return .success
  }
}

/// The first entries in an order. Keeps at most twice as many as needed.
private struct FirstEntries {
  let limit: Int
  /// Whether to sort by size, largest first, instead of by URL.
  let isBySize: Bool
  var entries: [CacheDirectory.Entry] = []

  mutating func insert(_ entry: CacheDirectory.Entry) {
    entries.append(entry)
    if entries.count >= 2 * limit { entries = sorted() }
  }

  func sorted() -> [CacheDirectory.Entry] {
    let sorted = entries.sorted { one, other in
      isBySize && one.bodyByteCount != other.bodyByteCount
        ? one.bodyByteCount > other.bodyByteCount : one.precedes(other)
    }
    return Array(sorted.prefix(limit))
  }
}

/// Writes entries in order: as a table in blocks of rows, or as a JSON object.
private struct EntryWriter {
  private static let blockRowCount = 256
  private static let interval = Duration.milliseconds(200)

  let isJSON: Bool
  let directory: String
  /// The text for an empty list.
  let nothing: String
  let now = Date()
  var rows: [CacheDirectory.Entry] = []
  var widths: [Int] = []
  var hasWritten = false
  var nextFlush = ContinuousClock.now + Self.interval

  mutating func append(_ entry: CacheDirectory.Entry) throws {
    rows.append(entry)
    if rows.count == Self.blockRowCount { try flush() } else { try flushIfDue() }
  }

  /// Writes rows after some time, so that rows that are found slowly do not wait for a complete block.
  mutating func flushIfDue() throws {
    if !rows.isEmpty, ContinuousClock.now > nextFlush { try flush() }
  }

  mutating func end() throws {
    try flush()
    if isJSON {
      let nothing = JSON.object([("directory", .string(directory)), ("entries", [])])
      try Output.write(hasWritten ? "\n  ]\n}\n" : nothing.pretty)
    } else if !hasWritten {
      try Output.write(nothing)
    }
  }

  /// Writes the rows.
  mutating func flush() throws {
    nextFlush = .now + Self.interval
    guard !rows.isEmpty else { return }
    defer { rows.removeAll(keepingCapacity: true) }
    if isJSON {
      let head = "{\n  \"directory\": \(JSON.string(directory).compact),\n  \"entries\": [\n"
      let lines = rows.map { "    " + json($0).compact }.joined(separator: ",\n")
      try Output.write((hasWritten ? ",\n" : head) + lines)
    } else {
      let header = hasWritten ? [] : [["STORED", "UPDATED", "SIZE", "AGE", "LEFT", "STATUS", "VARY", "URL"]]
      try Output.write(Format.table(header + rows.map(cells), rightAligned: [2, 3, 4, 5], widths: &widths))
    }
    hasWritten = true
  }

  private func cells(_ entry: CacheDirectory.Entry) -> [String] {
    [
      Format.localTime(entry.storedAt),
      entry.updatedAt == entry.storedAt ? "-" : Format.localTime(entry.updatedAt),
      Format.bytes(entry.bodyByteCount), Format.duration(entry.age(at: now)),
      Format.timeToLive(entry.timeToLive(at: now)), entry.status == 0 ? "-" : String(entry.status),
      entry.varyNames.isEmpty ? "-" : Format.visible(entry.varyNames.joined(separator: ",")),
      entry.label,
    ]
  }

  private func json(_ entry: CacheDirectory.Entry) -> JSON {
    [
      "url": .string(entry.url),
      "method": .string(entry.method),
      "queryContent": QueryContentText.json(entry.queryContent),
      "status": .number(entry.status),
      "mediaType": entry.mediaType.map { .string($0) } ?? .null,
      "bodyByteCount": .number(entry.bodyByteCount),
      "storedAt": .date(entry.storedAt),
      "updatedAt": .date(entry.updatedAt),
      "age": .seconds(entry.age(at: now)),
      "timeToLive": .seconds(entry.timeToLive(at: now)),
      "vary": .array(entry.varyNames.map { .string($0) }),
      "partition": .string(entry.partition),
    ]
  }
}

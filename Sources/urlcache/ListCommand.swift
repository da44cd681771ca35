import Foundation
import LMDBURLCache

/// `urlcache list`: what a directory holds, one by one.
enum ListCommand: Command {
  static let manual = Manual(
    name: "list", summary: "Lists the responses in a cache's directory.",
    usage: ["DIR [--sort url|time|size] [--host HOST] [--json]"],
    discussion: """
      Lists the responses that the cache in DIR holds: when each was stored (local time), its size, its age, how long it
      stays fresh, its status, the request fields that it varies by, and its URL. URLs are shown whole, with their queries,
      which may hold secrets. A process may be using the cache meanwhile. Nothing is changed, and nothing is made where no
      cache is.
      """,
    operandName: "the directory", operandCount: 1...1,
    options: [
      Option(
        name: "sort", placeholder: "ORDER",
        help: "url (by host, then URL; the default), time (oldest first) or size (largest first)."),
      Option(name: "host", placeholder: "HOST", help: "Lists only what is stored for this host."),
      Option(
        name: "json", help: "Prints a JSON object; sizes are in bytes, ages in seconds, dates in UTC."),
    ],
    failure: "there is no cache in DIR, or it cannot be read")

  static func run(_ arguments: Arguments) async throws -> ExitCode {
    let order = arguments.value("sort") ?? "url"
    guard ["url", "time", "size"].contains(order) else {
      throw UsageError("--sort takes url, time or size, not '\(order)'")
    }
    let directory = try CacheDirectory(existingAt: URL(fileURLWithPath: arguments.operands[0]))
    let host = arguments.value("host")?.lowercased()
    var entries: [CacheDirectory.Entry] = []
    directory.forEachEntry { entry in
      if host == nil || entry.host == host { entries.append(entry) }
      return true
    }
    switch order {
    case "time": entries.sort { $0.storedAt == $1.storedAt ? $0.precedes($1) : $0.storedAt < $1.storedAt }
    case "size":
      entries.sort { $0.bodyByteCount == $1.bodyByteCount ? $0.precedes($1) : $0.bodyByteCount > $1.bodyByteCount }
    default: entries.sort { $0.precedes($1) }
    }
    let now = Date()
    if arguments.has("json") {
      try Output.write(
        JSON.object([
          ("directory", .string(directory.path)), ("entries", .array(entries.map { json($0, now) })),
        ]).pretty)
    } else if entries.isEmpty {
      try Output.write("No responses are stored\(host.map { " for \($0)" } ?? "").\n")
    } else {
      let header = ["STORED", "SIZE", "AGE", "LEFT", "STATUS", "VARY", "URL"]
      try Output.write(Format.table([header] + entries.map { row($0, now) }, rightAligned: [1, 2, 3, 4]))
    }
    return .success
  }

  private static func row(_ entry: CacheDirectory.Entry, _ now: Date) -> [String] {
    [
      Format.localTime(entry.storedAt), Format.bytes(entry.bodyByteCount), Format.duration(entry.age(at: now)),
      Format.timeLeft(entry.timeLeft(at: now)), entry.status == 0 ? "-" : String(entry.status),
      entry.varyNames.isEmpty ? "-" : Format.visible(entry.varyNames.joined(separator: ",")),
      Format.visible(entry.method == "GET" ? entry.url : "\(entry.method) \(entry.url)"),
    ]
  }

  private static func json(_ entry: CacheDirectory.Entry, _ now: Date) -> JSON {
    [
      "url": .string(entry.url),
      "method": .string(entry.method),
      "status": .number(entry.status),
      "bodyByteCount": .number(entry.bodyByteCount),
      "storedAt": .date(entry.storedAt),
      "age": .seconds(entry.age(at: now)),
      "timeLeft": .seconds(entry.timeLeft(at: now)),
      "vary": .array(entry.varyNames.map { .string($0) }),
      "partition": .string(entry.partition),
    ]
  }
}

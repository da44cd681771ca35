import CacheActivity
import Foundation
import LMDBURLCache

/// `urlcache log`: prints the requests of all processes.
enum LogCommand: Command {
  static let manual = CommandHelp(
    name: "log", summary: "Prints the requests of all processes that use a cache.",
    usage: ["DIR [--follow] [--count COUNT] [FILTER]... [--json]"],
    discussion: """
      With --follow, prints the requests through the cache in DIR as they end, until it is interrupted: the time, the
      outcome, the status, the size of the body, the duration until the head was available, the rule that decided, and
      the method and URL, and for a query the size and the digest of its content. URLs include their queries, which may
      contain secrets. The size of a body from the origin is known only if it arrived with its head. The rule 'fleet'
      means that another machine has shared the response.

      FILTER is --host, --path, --status, --outcome or --slower-than, and all that are given must match. A URL of more
      than about 400 bytes is recorded, and compared, without its end.

      Requests are recorded only while a process watches. Without --follow, prints the recorded requests that are left
      from the last time. At most 4,000 requests per second are recorded, and fewer in a small cache. If any are
      missing, a line on standard error says how many.
      """,
    operandName: "the directory", operandCount: 1...1,
    options: [
      Option(name: "follow", help: "Records and prints requests until it is interrupted."),
      Option(name: "count", placeholder: "COUNT", help: "Ends after COUNT printed requests."),
    ] + EventFilter.options + [
      Option(name: "json", help: "Prints a JSON object in each line; sizes are in bytes, durations in\nmicroseconds.")
    ],
    failure: "there is no cache in DIR, it cannot be read, or it was deleted while it was\n     watched")

  static func run(_ arguments: Arguments) async throws -> ExitCode {
    let filter = try EventFilter(arguments)
    var rest = try arguments.number("count", in: 1...1_000_000_000, default: .max)
    let directory = try CacheAccess.openDirectory(arguments)
    let isJSON = arguments.has("json")
    func write(_ events: [RequestEvent]) throws {
      let matching = events.filter(filter.matches).prefix(rest)
      rest -= matching.count
      try Output.write(matching.map { (isJSON ? json($0).compact : line($0)) + "\n" }.joined())
    }
    var lease = LeaseWatch(directory: directory, command: "log")
    lease.update()
    guard arguments.has("follow") else {
      try write(directory.recentEvents)
      try directory.checkIsInPlace()
      return .success
    }
    let loop = WatchLoop(directory: directory)
    let watch = try loop.watchEvents()
    var missing = 0
    let skippedBefore = watch.skippedCount
    while rest > 0 {
      try write(watch.next())
      let nowMissing = watch.lostCount + watch.skippedCount - skippedBefore
      if nowMissing > missing {
        Output.error("urlcache log: \(Format.count(nowMissing - missing, "request")) not recorded\n")
        missing = nowMissing
      }
      lease.update()
      if rest > 0 { try loop.wait(.milliseconds(100)) }
    }
    return .success
  }

  static func line(_ event: RequestEvent) -> String {
    // The milliseconds are the same in every time zone.
    let time = Format.localTime(event.time).suffix(8) + Format.timestamp(event.time).suffix(5).dropLast()
    return [
      String(time), event.outcome.rawValue.padded(to: 12), event.status == 0 ? "---" : String(event.status),
      Format.bytes(event.byteCount).aligned(to: 8), Format.latency(event.nanoseconds).aligned(to: 7),
      Format.visible(event.rule).padded(to: 14),
      Format.visible(event.method) + " " + Format.visible(event.url) + (event.isURLTruncated ? "…" : "")
        + (event.content.map { " " + QueryContentText.short(digest: $0.digest, byteCount: $0.byteCount) } ?? ""),
    ].joined(separator: " ")
  }

  private static func json(_ event: RequestEvent) -> JSON {
    [
      "time": .date(event.time),
      "process": .number(Int(event.processID)),
      "method": .string(event.method),
      "url": .string(event.url),
      "isURLTruncated": .bool(event.isURLTruncated),
      "queryContent": QueryContentText.json(event.content.map { ($0.digest, $0.byteCount) }),
      "status": .number(event.status),
      "outcome": .string(event.outcome.rawValue),
      "rule": .string(event.rule),
      "age": .number(event.age),
      "timeToLive": .number(event.timeToLive),
      "byteCount": .number(event.byteCount),
      "microseconds": .decimal(Double(event.nanoseconds) / 1000),
    ]
  }
}

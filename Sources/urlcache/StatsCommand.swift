import Foundation
import LMDBURLCache

/// `urlcache stats`: summarizes the contents of a directory.
enum StatsCommand: Command {
  static let manual = CommandHelp(
    name: "stats", summary: "Shows statistics of a cache's directory.",
    usage: ["DIR [--details] [--json]", "DIR --prometheus", "DIR --watch [SECONDS] [--count COUNT]"],
    discussion: """
      Shows the number of responses in the cache in DIR, their size and the size on disk, the capacity, and when the
      oldest and the newest response were stored. The cache maintains these numbers, so this is fast for any number of
      responses. Purged responses count until they are deleted. If a purge or a lower capacity is still being applied,
      shows how much is left. If large bodies arrive in any process, shows how many, and how much of them is on disk.

      The counts of requests are those of all processes that use or used the cache, since the time that is shown. They
      begin at zero if their file is lost or corrupt. One in 64 hits is timed.

      Shows the processes that use the cache: when each opened it, its requests since then, their hit ratio, the reader
      slots that its threads hold, how many commits its oldest snapshot is behind, and whether it is suspended. A
      suspended process, or one that is far behind, keeps space from being reused. Of more than 48 processes, and of
      those that only inspect the directory, only the reader slots are shown.

      With --watch, shows rates and percentiles since the last refresh. On a terminal it redraws the screen, q ends it,
      and ? shows a line of help; otherwise it prints a line for each interval.

      Other processes can use the cache at the same time. Nothing is changed, and no cache is created.
      """,
    operandName: "the directory", operandCount: 1...1,
    options: [
      Option(
        name: "details",
        help:
          "Reads all responses, and counts the fresh ones, hosts, statuses and bytes of\nbodies. The time depends on the number of responses."
      ),
      Option(
        name: "json",
        help:
          "Prints a JSON object; sizes are in bytes, dates in UTC. Values that require\n--details are null without it."),
      Option(name: "prometheus", help: "Prints Prometheus' text format, as for its textfile collector."),
      Option(
        name: "watch", placeholder: "[SECONDS]",
        help: "Refreshes after each interval, 0.1 to 3600 seconds; 2 by default.",
        isValueOptional: true),
      Option(name: "count", placeholder: "COUNT", help: "Ends after COUNT refreshes."),
    ],
    failure: "there is no cache in DIR, or it cannot be read")

  static func run(_ arguments: Arguments) async throws -> ExitCode {
    let kinds = ["prometheus", "json", "watch"].filter { arguments.has($0) }
    if kinds.count > 1 { throw UsageError("--\(kinds[0]) cannot be combined with --\(kinds[1])") }
    if arguments.has("details"), !kinds.isEmpty, kinds != ["json"] {
      throw UsageError("--\(kinds[0]) cannot be combined with --details")
    }
    if arguments.has("watch") {
      try watch(arguments)
      return .success
    }
    if arguments.has("count") { throw UsageError("--count needs --watch") }
    let directory = try CacheAccess.openDirectory(arguments)
    if arguments.has("prometheus") {
      let text = directory.prometheusText()
      try directory.checkIsInPlace()
      try Output.write(text)
      return .success
    }
    let numbers = Numbers(
      directory: directory, details: arguments.has("details") ? Details(directory, now: Date()) : nil)
    let text = arguments.has("json") ? numbers.json.pretty : numbers.text
    try directory.checkIsInPlace()
    try Output.write(text)
    return .success
  }

  private static func watch(_ arguments: Arguments) throws {
    let text = arguments.value("watch") ?? ""
    guard let interval = text.isEmpty ? 2 : Double(text), (0.1...3600).contains(interval) else {
      throw UsageError("--watch takes a number of seconds from 0.1 to 3600, not '\(text)'")
    }
    let count = arguments.has("count") ? try arguments.number("count", in: 1...1_000_000_000, default: 1) : nil
    let directory = try CacheAccess.openDirectory(arguments)
    try StatsWatch(directory: directory, interval: interval, count: count).run()
  }
}

/// The statistics that require reading all entries.
private struct Details {
  var entryCount = 0
  var freshCount = 0
  var bodyByteCount = 0
  var hosts: Set<String> = []
  var statuses: [Int: Int] = [:]

  init(_ directory: CacheDirectory, now: Date) {
    let total = directory.entryCount
    var bar = ProgressBar("Counting")
    directory.forEachEntry(in: .stored) { entry in
      entryCount += 1
      if entry.isFresh(at: now) { freshCount += 1 }
      bodyByteCount += entry.bodyByteCount
      hosts.insert(entry.host)
      statuses[entry.status, default: 0] += 1
      bar.update(done: entryCount, total: total)
      return true
    }
    bar.end()
  }
}

/// The output of the command.
private struct Numbers {
  let directory: CacheDirectory
  let details: Details?

  private var entryCount: Int { details?.entryCount ?? directory.entryCount }
  private var activity: ActivityReport? { directory.statistics.map { ActivityReport(counts: $0) } }

  var json: JSON {
    let storedTimes = directory.storedTimes
    return [
      "directory": .string(directory.path),
      "entryCount": .number(entryCount),
      "freshCount": .number(details?.freshCount),
      "staleCount": .number(details.map { $0.entryCount - $0.freshCount }),
      "hostCount": .number(details?.hosts.count),
      "statuses": details.map { details in
        .object(details.statuses.sorted { $0.key < $1.key }.map { (String($0.key), .number($0.value)) })
      } ?? .null,
      "bodyByteCount": .number(details?.bodyByteCount),
      "payloadByteCount": .number(directory.payloadByteCount),
      "diskByteCount": .number(directory.diskByteCount),
      "capacityByteCount": .number(directory.capacityByteCount),
      "excessByteCount": .number(directory.excessByteCount),
      "pendingPurgeCount": .number(directory.pendingPurgeCount),
      "examinedForPurgesCount": .number(directory.examinedForPurgesCount),
      "unfinishedBodyCount": .number(directory.unfinishedBodyCount),
      "arrivingByteCount": .number(directory.arrivingByteCount),
      "oldestStoredAt": .date(storedTimes?.lowerBound),
      "newestStoredAt": .date(storedTimes?.upperBound),
      "activity": activity?.json ?? .null,
      "processes": .array(directory.processes.map(ProcessReport.json)),
    ]
  }

  var text: String {
    let (diskByteCount, capacityByteCount) = (directory.diskByteCount, directory.capacityByteCount)
    let (excessByteCount, pendingPurgeCount) = (directory.excessByteCount, directory.pendingPurgeCount)
    var rows = [["Directory", Format.visible(directory.path)]]
    if let details {
      let hosts = Format.count(details.hosts.count, "host")
      rows.append(["Responses", "\(Format.count(entryCount)) (\(Format.count(details.freshCount)) fresh) of \(hosts)"])
      rows.append(["Bodies", Format.bytes(details.bodyByteCount)])
    } else {
      rows.append(["Responses", Format.count(entryCount)])
    }
    rows.append(["Data", Format.bytes(directory.payloadByteCount)])
    rows.append([
      "On disk",
      "\(Format.bytes(diskByteCount)) of \(Format.bytes(capacityByteCount))"
        + " (\(diskByteCount * 100 / capacityByteCount)%)",
    ])
    if excessByteCount > 0 {
      rows.append([
        "Excess", "\(Format.bytes(excessByteCount)) above the capacity, still to be evicted or released",
      ])
    }
    if pendingPurgeCount > 0 {
      rows.append([
        "Purges",
        "\(Format.count(pendingPurgeCount)) whose responses are still to be deleted or marked; "
          + "\(Format.count(directory.examinedForPurgesCount)) examined so far",
      ])
    }
    let unfinishedBodyCount = directory.unfinishedBodyCount
    if unfinishedBodyCount > 0 {
      rows.append([
        "Unfinished bodies",
        "\(Format.count(unfinishedBodyCount)), arriving or being deleted: "
          + "\(Format.bytes(directory.arrivingByteCount)) on disk",
      ])
    }
    if let details, !details.statuses.isEmpty {
      let counts = details.statuses.sorted { $0.key < $1.key }.map { "\($0.key) (\(Format.count($0.value)))" }
      rows.append(["Statuses", counts.joined(separator: ", ")])
    }
    if let times = directory.storedTimes {
      rows.append(["Stored", "\(Format.localTime(times.lowerBound)) to \(Format.localTime(times.upperBound))"])
    }
    if let activity { rows += activity.rows }
    return Format.table(rows, rightAligned: []) + ProcessReport.table(directory.processes)
  }
}

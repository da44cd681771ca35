import Foundation
import LMDBURLCache

/// `urlcache stats`: what a directory holds, in a few numbers.
enum StatsCommand: Command {
  static let manual = Manual(
    name: "stats", summary: "Shows what a cache's directory holds, in numbers.", usage: ["DIR [--json]"],
    discussion: """
      Shows how many responses the cache in DIR holds, fresh and stale, the bytes of their bodies and on disk, and the
      capacity. A process may be using the cache meanwhile. Nothing is changed, and nothing is made where no cache is.
      """,
    operandName: "the directory", operandCount: 1...1,
    options: [Option(name: "json", help: "Prints a JSON object; sizes are in bytes, dates in UTC.")],
    failure: "there is no cache in DIR, or it cannot be read")

  static func run(_ arguments: Arguments) async throws -> ExitCode {
    let directory = try CacheDirectory(existingAt: URL(fileURLWithPath: arguments.operands[0]))
    let numbers = Numbers(directory, now: Date())
    try Output.write(arguments.has("json") ? numbers.json.pretty : numbers.text)
    return .success
  }
}

/// What one walk over the entries tells.
private struct Numbers {
  let directory: CacheDirectory
  private var entryCount = 0
  private var freshCount = 0
  private var bodyByteCount = 0
  private var hosts: Set<String> = []
  private var statuses: [Int: Int] = [:]
  private var oldest: Date?
  private var newest: Date?

  init(_ directory: CacheDirectory, now: Date) {
    self.directory = directory
    directory.forEachEntry { entry in
      entryCount += 1
      if entry.isFresh(at: now) { freshCount += 1 }
      bodyByteCount += entry.bodyByteCount
      hosts.insert(entry.host)
      statuses[entry.status, default: 0] += 1
      oldest = min(oldest ?? entry.storedAt, entry.storedAt)
      newest = max(newest ?? entry.storedAt, entry.storedAt)
      return true
    }
  }

  var json: JSON {
    [
      "directory": .string(directory.path),
      "entryCount": .number(entryCount),
      "freshCount": .number(freshCount),
      "staleCount": .number(entryCount - freshCount),
      "hostCount": .number(hosts.count),
      "statuses": .object(statuses.sorted { $0.key < $1.key }.map { (String($0.key), .number($0.value)) }),
      "bodyByteCount": .number(bodyByteCount),
      "payloadByteCount": .number(directory.payloadByteCount),
      "diskByteCount": .number(directory.diskByteCount),
      "capacityByteCount": .number(directory.capacityByteCount),
      "oldestStoredAt": .date(oldest),
      "newestStoredAt": .date(newest),
    ]
  }

  var text: String {
    let disk = directory.diskByteCount
    let capacity = directory.capacityByteCount
    var rows = [
      ["Directory", directory.path],
      [
        "Responses",
        "\(Format.count(entryCount)) (\(Format.count(freshCount)) fresh) of \(Format.count(hosts.count, "host"))",
      ],
      ["Bodies", Format.bytes(bodyByteCount)],
      ["On disk", "\(Format.bytes(disk)) of \(Format.bytes(capacity)) (\(disk * 100 / capacity) %)"],
    ]
    if let oldest, let newest {
      let counts = statuses.sorted { $0.key < $1.key }.map { "\($0.key) (\(Format.count($0.value)))" }
      rows.append(["Statuses", counts.joined(separator: ", ")])
      rows.append(["Stored", "\(Format.localTime(oldest)) to \(Format.localTime(newest))"])
    }
    return Format.table(rows, rightAligned: [])
  }
}

import CacheActivity
import LMDBURLCache

/// The processes that use a directory, as JSON and as a table.
enum ProcessReport {
  static func json(_ process: ProcessStatistics) -> JSON {
    [
      "process": .number(Int(process.processID)), "isSuspended": .bool(process.isSuspended),
      "openedAt": .date(process.openTime), "requests": .number(process.requestCount),
      "hits": .number(process.hitCount), "readerSlots": .number(process.readerSlotCount),
      "snapshots": .number(process.snapshotCount), "commitsBehind": .number(process.snapshotAge),
    ]
  }

  /// Returns an empty line and a table; nothing without a process.
  static func table(_ processes: [ProcessStatistics]) -> String {
    guard !processes.isEmpty else { return "" }
    let rows = processes.map { process in
      [
        String(process.processID), process.openTime.map { Format.localTime($0) } ?? "-",
        Format.count(process.requestCount),
        ActivityReport.percent(
          process.requestCount > 0 ? Double(process.hitCount) / Double(process.requestCount) : nil),
        Format.count(process.readerSlotCount),
        process.snapshotCount > 0 ? Format.count(process.snapshotAge) : "-",
        process.isSuspended ? "suspended" : "running",
      ]
    }
    let header = ["PROCESS", "OPENED", "REQUESTS", "HIT%", "READERS", "BEHIND", "STATE"]
    return "\n" + Format.table([header] + rows, rightAligned: [0, 2, 3, 4, 5])
  }

  /// Formats like `3 processes, 1 suspended`.
  static func summary(_ processes: [ProcessStatistics]) -> String {
    let suspended = processes.count { $0.isSuspended }
    return Format.processes(processes.count) + (suspended > 0 ? ", \(Format.count(suspended)) suspended" : "")
  }
}

extension Format {
  /// Formats like `1 process`, `2 processes`.
  fileprivate static func processes(_ number: Int) -> String {
    "\(count(number)) process\(number == 1 ? "" : "es")"
  }
}

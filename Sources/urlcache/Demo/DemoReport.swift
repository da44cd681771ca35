import Foundation

/// The results of the demonstration.
struct DemoReport {
  struct Phase {
    let name: String
    let interface: String
    let measurements: Measurements
  }

  struct PurgeResult {
    let moment: Date
    /// The duration of the call.
    let nanoseconds: Int
    var removedCount = 0
    var keptCount = 0
    var failures: [String] = []
  }

  /// The results of queries at one URL.
  struct QueryResult {
    var measurements = Measurements()
  }

  let folder: String
  let fileCount: Int
  let readerCount: Int
  private(set) var phases: [Phase] = []
  var purge: PurgeResult?
  var queries: QueryResult?
  var originRequestCount = 0
  /// The bytes on disk, and the bytes of records in them.
  var disk = (byteCount: 0, payloadByteCount: 0)
  /// The bytes in the memory tier, and the resident bytes of the two processes.
  var memory = (tierByteCount: 0, residentByteCount: 0, secondResidentByteCount: 0)

  init(files: DemoFiles, readerCount: Int) {
    folder = files.folder
    fileCount = files.files.count
    self.readerCount = readerCount
  }

  mutating func add(_ name: String, by interface: String, _ measurements: Measurements) {
    phases.append(Phase(name: name, interface: interface, measurements: measurements))
  }

  // MARK: Sums

  private var total: Measurements {
    phases.reduce(into: Measurements()) { $0.add($1.measurements) }
  }

  /// The bytes that one reader receives in one pass over all files.
  private var fileByteCount: Int { (phases.first?.measurements.byteCount ?? 0) / readerCount }

  var failures: [String] {
    total.failures + (purge?.failures ?? []) + (queries?.measurements.failures ?? [])
  }

  private func median(_ kind: DemoResponseKind, by interface: String) -> Int? {
    phases.filter { $0.interface == interface }.reduce(into: Measurements()) { $0.add($1.measurements) }
      .percentile(50, kind)
  }

  // MARK: For people

  var text: String {
    var rows = [["interface", "phase", "result", "requests", "bytes", "p50", "p99"]]
    for phase in phases {
      var isFirst = true
      for kind in DemoResponseKind.allCases where phase.measurements.count(kind) > 0 {
        rows.append([
          isFirst ? phase.interface : "", isFirst ? phase.name : "", kind.rawValue,
          Format.count(phase.measurements.count(kind)), Format.bytes(phase.measurements.byteCounts[kind] ?? 0),
          phase.measurements.percentile(50, kind).map(Format.latency) ?? "",
          phase.measurements.percentile(99, kind).map(Format.latency) ?? "",
        ])
        isFirst = false
      }
    }
    let total = total
    for kind in DemoResponseKind.allCases where total.count(kind) > 0 {
      rows.append([
        kind == .miss ? "total" : "", "", kind.rawValue, Format.count(total.count(kind)),
        Format.bytes(total.byteCounts[kind] ?? 0), "", "",
      ])
    }
    rows.append(["", "", "requests", Format.count(total.requestCount), Format.bytes(total.byteCount), "", ""])
    let table = Format.table(rows, rightAligned: [3, 4, 5, 6]).split(separator: "\n").map { line in
      String(line.reversed().drop { $0 == " " }.reversed())
    }.joined(separator: "\n")
    return """

      \(table)

      files   \(Format.count(fileCount)) of \(folder), \(Format.bytes(fileByteCount)); \(Format.count(readerCount, "reader"))
      disk    \(Format.bytes(disk.byteCount)) for \(Format.bytes(disk.payloadByteCount)) of responses
      memory  \(Format.bytes(memory.tierByteCount)) in the memory tier; \(Format.bytes(memory.residentByteCount)) resident, \
      \(Format.bytes(memory.secondResidentByteCount)) in the second process
      purge   \(Format.count(purge?.removedCount ?? 0)) removed, \(Format.count(purge?.keptCount ?? 0)) kept, in \
      \(Format.latency(purge?.nanoseconds ?? 0))
      queries \(queryText)

      \(summary)

      """
  }

  /// The results of the queries.
  private var queryText: String {
    let measurements = queries?.measurements ?? Measurements()
    return "\(Format.count(DemoQueries.texts.count)) different contents of QUERY at one URL, with a purge of the URL: "
      + "\(Format.count(measurements.count(.miss))) miss, \(Format.count(measurements.count(.hit))) hit, p50 "
      + Format.latency(measurements.percentile(50, .hit) ?? 0)
  }

  /// A sentence with the main results.
  var summary: String {
    let total = total
    var parts = [
      "\(Format.count(total.requestCount, "request")) went to the origin \(Format.count(originRequestCount, "time")) "
        + "(\(Format.count(total.count(.miss))) miss, \(Format.count(total.count(.revalidated))) revalidated) and "
        + "were hits \(Format.count(total.count(.hit) + total.count(.coalesced), "time"))"
    ]
    if let fetch = median(.miss, by: "URLSession"), let session = median(.hit, by: "URLSession"),
      let direct = median(.hit, by: "data(for:)")
    {
      parts.append(
        "a hit took \(Format.latency(direct)) through data(for:) and \(Format.latency(session)) through URLSession, a "
          + "fetch over loopback \(Format.latency(fetch))")
    }
    if let purge {
      parts.append(
        "the purge removed \(Format.count(purge.removedCount)) of \(Format.count(purge.removedCount + purge.keptCount)) "
          + "responses")
    }
    if let second = phases.last?.measurements {
      parts.append(
        "a second process read \(Format.count(second.requestCount)) of \(Format.count(fileCount * readerCount)) "
          + "without the origin")
    }
    let wrong = total.failures.count
    parts.append(
      wrong == 0 ? "and every body was identical to its file" : "and \(Format.count(wrong, "request")) failed")
    return parts.dropLast().joined(separator: "; ") + "; " + parts[parts.count - 1] + "."
  }

  // MARK: For programs

  var json: JSON {
    let total = total
    func microseconds(_ nanoseconds: Int?) -> JSON { nanoseconds.map { .decimal(Double($0) / 1000) } ?? .null }
    let rows = phases.flatMap { phase in
      DemoResponseKind.allCases.filter { phase.measurements.count($0) > 0 }.map { kind -> JSON in
        [
          "interface": .string(phase.interface), "phase": .string(phase.name), "kind": .string(kind.rawValue),
          "requestCount": .number(phase.measurements.count(kind)),
          "byteCount": .number(phase.measurements.byteCounts[kind] ?? 0),
          "p50": microseconds(phase.measurements.percentile(50, kind)),
          "p99": microseconds(phase.measurements.percentile(99, kind)),
        ]
      }
    }
    return [
      "folder": .string(folder), "fileCount": .number(fileCount), "fileByteCount": .number(fileByteCount),
      "readerCount": .number(readerCount), "rows": .array(rows),
      "requestCount": .number(total.requestCount), "byteCount": .number(total.byteCount),
      "missCount": .number(total.count(.miss)), "revalidatedCount": .number(total.count(.revalidated)),
      "hitCount": .number(total.count(.hit)), "coalescedCount": .number(total.count(.coalesced)),
      "originRequestCount": .number(originRequestCount),
      "purge": [
        "since": .date(purge?.moment), "removedCount": .number(purge?.removedCount ?? 0),
        "keptCount": .number(purge?.keptCount ?? 0), "microseconds": microseconds(purge?.nanoseconds),
      ],
      "queries": [
        "contentCount": .number(DemoQueries.texts.count),
        "missCount": .number(queries?.measurements.count(.miss) ?? 0),
        "hitCount": .number(queries?.measurements.count(.hit) ?? 0),
        "p50": microseconds(queries?.measurements.percentile(50, .hit)),
      ],
      "diskByteCount": .number(disk.byteCount), "payloadByteCount": .number(disk.payloadByteCount),
      "memoryTierByteCount": .number(memory.tierByteCount), "residentByteCount": .number(memory.residentByteCount),
      "secondResidentByteCount": .number(memory.secondResidentByteCount),
      "failures": .array(failures.map { .string($0) }), "summary": .string(summary),
    ]
  }
}

import CacheActivity
import Foundation
import LMDBURLCache

/// The counters of a directory as JSON and as rows of text.
struct ActivityReport {
  let counts: DirectoryStatistics

  var json: JSON {
    [
      "since": .date(counts.since),
      "requests": .object(RequestOutcome.allCases.map { ($0.rawValue, .number(counts.requests[$0, default: 0])) }),
      "hitRatio": counts.hitRatio.map { .decimal(($0 * 1e6).rounded() / 1e6) } ?? .null,
      "storageRefusals": .object(counts.storageRefusals.sorted { $0.key < $1.key }.map { ($0.key, .number($0.value)) }),
      "hitByteCount": .number(counts.hitByteCount),
      "originByteCount": .number(counts.originByteCount),
      "backgroundRevalidations": .number(counts.backgroundRevalidations),
      "heldOffRequests": .number(counts.heldOffRequests),
      "unansweredRequests": .number(counts.unansweredRequests),
      "storedParts": .number(counts.storedParts),
      "originFailures": .number(counts.originFailures),
      "originServerErrors": .number(counts.originServerErrors),
      "lookups": .object([
        ("memory", .number(counts.memoryLookups)), ("disk", .number(counts.diskLookups)),
        ("none", .number(counts.missedLookups)),
      ]),
      "writes": .number(counts.writes),
      "writtenByteCount": .number(counts.writtenByteCount),
      "updates": .number(counts.updates),
      "droppedWrites": .number(counts.droppedWrites),
      "supersededWrites": .number(counts.supersededWrites),
      "commits": .number(counts.commits),
      "mapFullRetries": .number(counts.mapFullRetries),
      "corruptRecords": .number(counts.corruptRecords),
      "removals": .object(RemovalReason.allCases.map { ($0.rawValue, .number(counts.removals[$0, default: 0])) }),
      "purges": .number(counts.purges),
      "opens": .number(counts.opens),
      "failures": .number(counts.failures),
      "fleet": counts.fleet.isUsed ? FleetReport(counts: counts.fleet).json : .null,
      "hitSeconds": Self.json(counts.hitLatency),
      "fetchSeconds": Self.json(counts.fetchLatency),
    ]
  }

  private static func json(_ histogram: LatencyHistogram) -> JSON {
    func percentile(_ percentile: Double) -> JSON {
      histogram.seconds(atPercentile: percentile).map { .decimal($0) } ?? .null
    }
    return [
      "count": .number(histogram.count), "p50": percentile(50), "p90": percentile(90), "p99": percentile(99),
    ]
  }

  /// The rows of the table that `stats` prints; without a request only those of a fleet.
  var rows: [[String]] {
    let fleetRows = counts.fleet.isUsed ? FleetReport(counts: counts.fleet).rows : []
    guard counts.requestCount > 0 else { return fleetRows }
    let outcomes = RequestOutcome.allCases.compactMap { outcome -> String? in
      let count = counts.requests[outcome, default: 0]
      return count > 0 ? "\(outcome.rawValue) \(Format.count(count))" : nil
    }
    var rows = [
      ["Requests", "\(Format.count(counts.requestCount)) since \(Format.localTime(counts.since))"],
      ["Hit ratio", Self.percent(counts.hitRatio)],
      ["Outcomes", outcomes.joined(separator: ", ")],
    ]
    if let text = Self.percentiles(counts.hitLatency) { rows.append(["Hits", text]) }
    if let text = Self.percentiles(counts.fetchLatency) { rows.append(["Fetches", text]) }
    rows.append([
      "Bytes",
      "\(Format.bytes(counts.hitByteCount)) from hits, \(Format.bytes(counts.originByteCount)) from the origin",
    ])
    if counts.heldOffRequests + counts.unansweredRequests > 0 {
      rows.append([
        "Stale instead",
        "\(Format.count(counts.heldOffRequests)) held off after a failure, "
          + "\(Format.count(counts.unansweredRequests)) because the origin was slow",
      ])
    }
    if counts.storedParts > 0 { rows.append(["Parts stored", Format.count(counts.storedParts)]) }
    if !counts.storageRefusals.isEmpty {
      let refusals = Format.mostFrequentFirst(counts.storageRefusals).prefix(5)
      let texts = refusals.map { "\(Format.visible($0.key)) \(Format.count($0.value))" }
      rows.append(["Not stored", texts.joined(separator: ", ")])
    }
    return rows + fleetRows
  }

  /// Formats a share as a percentage with one digit after the point.
  static func percent(_ share: Double?) -> String {
    guard let share else { return "-" }
    let tenths = Int((share * 1000).rounded())
    return "\(tenths / 10).\(tenths % 10)%"
  }

  /// Formats percentiles like `p50 1.2 µs, p90 3 µs, p99 15 µs`; nil if the histogram is empty.
  static func percentiles(_ histogram: LatencyHistogram) -> String? {
    guard histogram.count > 0 else { return nil }
    return [50.0, 90, 99].map { "p\(Int($0)) \(Format.latency(seconds: histogram.seconds(atPercentile: $0) ?? 0))" }
      .joined(separator: ", ")
  }
}

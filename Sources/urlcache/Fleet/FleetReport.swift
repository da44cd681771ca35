import CacheActivity

/// The counts of a fleet tier as JSON and as rows of text.
struct FleetReport {
  let counts: FleetActivity

  var json: JSON {
    [
      "lookups": .number(counts.lookups),
      "sharedHits": .number(counts.sharedHits),
      "sharedMisses": .number(counts.sharedMisses),
      "fetchWaits": .number(counts.fetchWaits),
      "failedLookups": .number(counts.failedLookups),
      "sharedStores": .number(counts.sharedStores),
      "refusedObjects": .number(counts.refusedObjects),
      "postedPurges": .number(counts.postedPurges),
      "receivedPurges": .number(counts.receivedPurges),
      "leaseRenewals": .number(counts.leaseRenewals),
      "isLeaseValid": counts.isLeaseValid.map { .bool($0) } ?? .null,
      "cutOffSeconds": .seconds(Double(counts.cutOffMilliseconds) / 1000),
      "reconnects": .number(counts.reconnects),
      "lostLogs": .number(counts.lostLogs),
    ]
  }

  /// The rows of the table that `stats` prints.
  var rows: [[String]] { leaseRows + countRows }

  private var leaseRows: [[String]] { counts.machine.map { [["Lease", LeaseReport(machine: $0).text]] } ?? [] }

  private var countRows: [[String]] {
    func list(_ parts: [(Int, String)]) -> String {
      parts.map { "\(Format.count($0.0)) \($0.1)" }.joined(separator: ", ")
    }
    return [
      [
        "Shared",
        list([
          (counts.sharedHits, "hits"), (counts.sharedMisses, "misses"), (counts.failedLookups, "failed"),
          (counts.fetchWaits, "waited"), (counts.refusedObjects, "refused"), (counts.sharedStores, "stored"),
        ]),
      ],
      [
        "Fleet",
        list([
          (counts.postedPurges, "purges posted"), (counts.receivedPurges, "received"),
          (counts.leaseRenewals, "renewals"), (counts.reconnects, "reconnects"), (counts.lostLogs, "logs lost"),
        ]) + "; \(Format.seconds(Double(counts.cutOffMilliseconds) / 1000)) without a lease",
      ],
    ]
  }
}

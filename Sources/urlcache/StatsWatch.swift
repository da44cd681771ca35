import CacheActivity
import Foundation
import LMDBURLCache

/// `urlcache stats --watch`: the counters of a directory and their rates, again and again.
struct StatsWatch {
  let directory: CacheDirectory
  let interval: Double
  /// The number of refreshes; nil without an end.
  let count: Int?

  func run() throws {
    var screen = Screen(help: "rates since the last refresh, every \(Self.number(interval)) s (--watch)")
    defer { screen.end() }
    let loop = WatchLoop(directory: directory)
    var last = directory.statistics
    var lastTime = ContinuousClock.now
    var lease = LeaseWatch(directory: directory, command: "stats")
    var number = 0
    // The first rates are those of a short time, so that a screen appears at once.
    if try loop.wait(.milliseconds(min(Int(interval * 1000), 250)), &screen) == .quit { return }
    while true {
      guard let counts = directory.statistics else {
        throw ToolError("The directory has no counters. A cache creates them when it opens the directory.")
      }
      let now = ContinuousClock.now
      let rates = Rates(now: counts, before: last ?? counts, seconds: max((now - lastTime) / .seconds(1), 0.001))
      if screen.isTerminal {
        try screen.draw(self.screen(rates))
      } else {
        lease.update()
        try screen.draw((number % 20 == 0 ? [Self.header] : []) + [line(rates)])
      }
      number += 1
      if number == count { return }
      (last, lastTime) = (counts, now)
      let end = ContinuousClock.now + .milliseconds(Int(interval * 1000))
      while let request = try loop.wait(end - .now, &screen) {
        if request == .quit { return }
        try screen.draw(self.screen(rates))
      }
    }
  }

  /// Two readings of the counters.
  struct Rates {
    let now: DirectoryStatistics
    let before: DirectoryStatistics
    let seconds: Double

    func perSecond(_ value: (DirectoryStatistics) -> Int) -> Double {
      Double(max(value(now) - value(before), 0)) / seconds
    }

    /// The share of requests in the interval that needed nothing from the origin.
    var hitRatio: Double? {
      let requests = now.requestCount - before.requestCount
      return requests > 0 ? Double(now.hitCount - before.hitCount) / Double(requests) : nil
    }

    var hitLatency: LatencyHistogram { now.hitLatency.since(before.hitLatency) }
    var fetchLatency: LatencyHistogram { now.fetchLatency.since(before.fetchLatency) }
  }

  // MARK: Lines

  private static let columns =
    [("TIME", 8), ("REQ/S", 8), ("HIT%", 6), ("MISS/S", 7), ("ERR/S", 6), ("HIT p99", 8)]
    + [("FETCH p99", 9), ("WRITE/S", 7), ("EVICT/S", 7), ("DISK%", 5)]

  private static var header: String {
    columns.map { $0.0.aligned(to: $0.1) }.joined(separator: " ")
  }

  private func line(_ rates: Rates) -> String {
    func percentile(_ histogram: LatencyHistogram) -> String {
      histogram.seconds(atPercentile: 99).map { Format.latency(seconds: $0) } ?? "-"
    }
    let cells = [
      String(Format.localTime(Date()).suffix(8)), Self.number(rates.perSecond { $0.requestCount }),
      ActivityReport.percent(rates.hitRatio), Self.number(rates.perSecond { $0.requests[.miss, default: 0] }),
      Self.number(rates.perSecond { $0.originFailures + $0.originServerErrors }), percentile(rates.hitLatency),
      percentile(rates.fetchLatency), Self.number(rates.perSecond { $0.writes }),
      Self.number(rates.perSecond { $0.evictions }),
      String(directory.diskByteCount * 100 / directory.capacityByteCount),
    ]
    return zip(cells, Self.columns).map { $0.aligned(to: $1.1) }.joined(separator: " ")
  }

  // MARK: The screen

  private func screen(_ rates: Rates) -> [String] {
    let counts = rates.now
    var rows = [["", "PER SECOND", "TOTAL"]]
    func row(_ name: String, _ value: (DirectoryStatistics) -> Int) {
      rows.append([name, Self.number(rates.perSecond(value)), Format.count(value(counts))])
    }
    row("Requests") { $0.requestCount }
    for outcome in RequestOutcome.allCases where counts.requests[outcome, default: 0] > 0 {
      row("  " + outcome.rawValue) { $0.requests[outcome, default: 0] }
    }
    row("Lookups in memory") { $0.memoryLookups }
    row("Lookups on disk") { $0.diskLookups }
    row("Lookups without a find") { $0.missedLookups }
    row("Writes") { $0.writes }
    row("Dropped writes") { $0.droppedWrites }
    row("Evictions") { $0.evictions }
    row("Purges") { $0.purges }
    row("Origin errors") { $0.originFailures + $0.originServerErrors }
    for (rule, count) in Format.mostFrequentFirst(counts.storageRefusals).prefix(3) where count > 0 {
      row("Not stored: " + Format.visible(rule)) { $0.storageRefusals[rule, default: 0] }
    }
    func bytes(_ name: String, _ value: (DirectoryStatistics) -> Int) {
      rows.append([name, Format.bytes(Int(rates.perSecond(value))), Format.bytes(value(counts))])
    }
    bytes("Bytes from hits") { $0.hitByteCount }
    bytes("Bytes from the origin") { $0.originByteCount }
    let title = "urlcache stats  \(Format.visible(directory.path))"
    let disk = directory.diskByteCount
    let capacity = directory.capacityByteCount
    let lease = counts.fleet.machine.map { ["Lease      \(LeaseReport(machine: $0).text)"] } ?? []
    return [
      title,
      "\(Format.localTime(Date())), since \(Format.localTime(counts.since)), "
        + ProcessReport.summary(directory.processes), "",
      "Hit ratio  \(ActivityReport.percent(rates.hitRatio)) now, \(ActivityReport.percent(counts.hitRatio)) in total",
      "Hits       \(ActivityReport.percentiles(rates.hitLatency) ?? ActivityReport.percentiles(counts.hitLatency) ?? "-")",
      "Fetches    \(ActivityReport.percentiles(rates.fetchLatency) ?? ActivityReport.percentiles(counts.fetchLatency) ?? "-")",
      "Disk       \(Format.bytes(disk)) of \(Format.bytes(capacity)) (\(disk * 100 / capacity)%), "
        + "\(Format.count(directory.entryCount, "response"))",
    ] + lease + [""] + Format.table(rows, rightAligned: [1, 2]).split(separator: "\n").map(String.init)
  }

  /// Formats a rate: one digit after the point below 10.
  static func number(_ rate: Double) -> String {
    guard rate < 9.95 else { return Format.count(Int(rate.rounded())) }
    let tenths = Int((rate * 10).rounded())
    return tenths % 10 == 0 ? String(tenths / 10) : "\(tenths / 10).\(tenths % 10)"
  }
}

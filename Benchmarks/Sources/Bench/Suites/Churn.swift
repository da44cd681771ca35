import Foundation
import ResponseStore

/// Sustained eviction: writes 20 times the capacity, with sizes from 500 B to 2 MB on a logarithmic distribution.
///
/// Measures dropped writes, the disk usage of the directory, and the time of the first and the last tenth.
struct Churn {
  let report: Report
  let scratch: Scratch

  private struct Round {
    /// The time in milliseconds per megabyte of each tenth of the bytes written after the first full capacity, before
    /// which nothing is evicted.
    var tenths: [Double] = []
    var mostDisk = 0.0
    var statistics: StoreStatistics
  }

  func run() throws {
    let capacity = report.isQuick ? 32 << 20 : 256 << 20
    let scenario = "\(capacity >> 20) MiB"
    let rounds = try (0..<(report.isQuick ? 1 : 3)).map { _ in try round(capacity: capacity) }
    func add(_ measure: String, unit: String, _ samples: [Double]) {
      report.add("churn", measure, scenario, "ResponseStore", unit: unit, samples)
    }
    // Failures are summed over all rounds.
    add("stores refused", unit: "stores", [Double(rounds.reduce(0) { $0 + $1.statistics.droppedWrites })])
    add("map full retries", unit: "times", [Double(rounds.reduce(0) { $0 + $1.statistics.mapFullRetries })])
    add("disk at most", unit: "% of capacity", [rounds.reduce(0) { max($0, $1.mostDisk) }])
    add("first tenth", unit: "ms/MB", rounds.compactMap(\.tenths.first))
    add("last tenth", unit: "ms/MB", rounds.compactMap(\.tenths.last))
  }

  private func round(capacity: Int) throws -> Round {
    var options = ResponseStore.Options(capacityByteCount: capacity)
    options.fullQueueTimeout = .seconds(600)
    let store = try ResponseStore.open(directory: try scratch.folder("churn"), options: options)
    defer { store.close() }
    func disk() -> Double { Double(store.diskByteCount) / Double(capacity) * 100 }
    var random = SeededGenerator(seed: 3)
    let total = 20 * capacity
    var written = 0
    var index = 0
    var most = 0.0
    var tenths: [Double] = []
    var start = now()
    var boundary = capacity
    while written < total {
      let unit = Double(random.next() >> 11) / Double(1 << 53)
      let byteCount = Int(500 * pow(2_097_152.0 / 500, unit))
      store.store(Fixture(count: 1, bodyByteCount: max(500, byteCount)).response(index))
      written += byteCount
      index += 1
      if index % 8 == 0 { most = max(most, disk()) }
      guard written >= boundary else { continue }
      try store.flush()
      let elapsed = Double(now() - start) / 1e6
      if boundary > capacity {
        tenths.append(elapsed / Double(total - capacity) * 10 * 1e6)
      }
      boundary += (total - capacity) / 10
      start = now()
    }
    try store.flush()
    return Round(tenths: tenths, mostDisk: most, statistics: store.statistics)
  }
}

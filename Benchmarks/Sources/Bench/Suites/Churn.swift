import Foundation
import ResponseStore

/// Writes 20 times the capacity, in sizes from 500 B to 2 MB, each power of two as often: what is refused, how many bytes
/// the directory takes, and whether the last tenth is slower than the first.
struct Churn {
  let report: Report
  let scratch: Scratch

  func run() throws {
    let capacity = report.isQuick ? 32 << 20 : 256 << 20
    let scenario = "\(capacity >> 20) MiB"
    let folder = try scratch.folder("churn")
    var options = ResponseStore.Options(capacityByteCount: capacity)
    options.fullQueueTimeout = .seconds(600)
    let store = try ResponseStore.open(directory: folder, options: options)
    var random = SplitMix64(state: 3)
    let total = 20 * capacity
    var written = 0
    var index = 0
    var most = 0
    var tenths: [Double] = []
    // The first tenth of what comes once the store is full: before, there is nothing to evict.
    var start = now()
    var boundary = capacity
    while written < total {
      let unit = Double(random.next() >> 11) / Double(1 << 53)
      let byteCount = Int(500 * pow(2_097_152.0 / 500, unit))
      store.store(Fixture(count: 1, bodyByteCount: max(500, byteCount)).response(index))
      written += byteCount
      index += 1
      if index % 8 == 0 { most = max(most, store.diskByteCount) }
      if written >= boundary {
        try store.flush()
        let elapsed = Double(now() - start) / 1e6
        if boundary > capacity {
          let cost = elapsed / Double(total - capacity) * 10 * 1e6
          tenths.append(cost)
          let share = "\(tenths.count * 10) % written"
          report.add(
            "churn", "disk, \(share)", scenario, "ResponseStore", unit: "% of capacity",
            [Double(store.diskByteCount) / Double(capacity) * 100])
          report.add("churn", "time, \(share)", scenario, "ResponseStore", unit: "ms/MB", [cost])
        }
        boundary += (total - capacity) / 10
        start = now()
      }
    }
    try store.flush()
    let statistics = store.statistics
    report.add("churn", "stores refused", scenario, "ResponseStore", unit: "stores", [Double(statistics.droppedStores)])
    report.add("churn", "full maps met", scenario, "ResponseStore", unit: "times", [Double(statistics.fullMaps)])
    report.add(
      "churn", "disk at most", scenario, "ResponseStore", unit: "% of capacity",
      [Double(most) / Double(capacity) * 100])
    if let first = tenths.first, let last = tenths.last {
      report.add("churn", "first tenth", scenario, "ResponseStore", unit: "ms/MB", [first])
      report.add("churn", "last tenth", scenario, "ResponseStore", unit: "ms/MB", [last])
    }
    store.close()
  }
}

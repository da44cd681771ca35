import Foundation
import ResponseStore

/// The time of eviction per entry, in small steps and of half the entries, with few and with many entries.
struct Evictions {
  let report: Report
  let scratch: Scratch

  func run() throws {
    for count in report.isQuick ? [1_000, 50_000] : [1_000, 1_000_000] {
      for inRandomOrder in [false, true] where count > 1_000 || !inRandomOrder {
        try evict(Fixture(count: count, bodyByteCount: 1 << 10), inRandomOrder: inRandomOrder)
      }
    }
  }

  /// - Parameter inRandomOrder: Whether to store the URLs in random order, not in the order of their keys.
  private func evict(_ fixture: Fixture, inRandomOrder: Bool) throws {
    var options = ResponseStore.Options(capacityByteCount: StorePeer.capacity(fixture))
    options.runsInBackground = false
    options.fullQueueTimeout = .seconds(600)
    let store = try ResponseStore.open(directory: scratch.folder("evict"), options: options)
    var random = SeededGenerator(seed: 5)
    var order = Array(0..<fixture.count)
    if inRandomOrder { order.shuffle(using: &random) }
    for index in order { store.store(fixture.response(index)) }
    try store.flush()
    // Use some entries more than others.
    for _ in 0..<fixture.count {
      _ = store.lookup(fixture.key(Int(random.next() % UInt64(fixture.count)) / Int(1 + random.next() % 64)))
    }
    let scenario = fixture.name + (inRandomOrder ? ", random order" : "")
    // Lower the capacity until entries are evicted. The steps of the eviction thread continue to the low watermark.
    while store.entryCount == fixture.count { store.capacityByteCount = store.capacityByteCount * 97 / 100 }
    var samples: [Double] = []
    var hasMore = true
    while hasMore, samples.count < 16 {
      let before = store.entryCount
      let elapsed = nanoseconds { hasMore = store.maintain() }
      let evicted = before - store.entryCount
      if evicted > 0 { samples.append(elapsed / 1000 / Double(evicted)) }
    }
    report.add("evict", "one step", scenario, "ResponseStore", unit: "us/entry", samples)
    let before = store.entryCount
    let elapsed = nanoseconds { store.capacityByteCount = max(1 << 20, store.capacityByteCount / 2) }
    let evicted = max(1, before - store.entryCount)
    report.add("evict", "half at once", scenario, "ResponseStore", unit: "us/entry", [elapsed / 1000 / Double(evicted)])
    store.close()
  }
}

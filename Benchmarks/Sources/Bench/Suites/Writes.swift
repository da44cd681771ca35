import CRawLMDB
import Foundation
import ResponseStore

/// The latency of the `store` call, the time of durable writes, and writes that are too fast for the disk.
struct Writes {
  let report: Report
  let scratch: Scratch

  func run() throws {
    let quick = report.isQuick
    try latency(Fixture(count: 1_000, bodyByteCount: 16 << 10), rounds: quick ? 3 : 15)
    try sustained(Fixture(count: quick ? 10_000 : 40_000, bodyByteCount: 1 << 10).prepared())
    try sustained(Fixture(count: quick ? 2_000 : 10_000, bodyByteCount: 16 << 10).prepared())
    try fullQueue()
  }

  /// Measures the latency of the `store` call while the queue has space.
  private func latency(_ fixture: Fixture, rounds: Int) throws {
    let peer = try StorePeer(folder: scratch.folder("latency"), fixture: fixture)
    let responses = (0..<fixture.count).map { fixture.response($0) }
    var medians: [Double] = []
    var tails: [Double] = []
    for _ in 0..<rounds {
      var samples = responses.map { response in nanoseconds { peer.store.store(response) } / 1000 }
      try peer.store.flush()
      samples.sort()
      medians.append(percentile(samples, 0.5))
      tails.append(percentile(samples, 0.99))
    }
    report.add("writes", "store call, p50", fixture.name, peer.name, unit: "us", medians)
    report.add("writes", "store call, p99", fixture.name, peer.name, unit: "us", tails)
    peer.close()
  }

  /// Measures the time per entry from the first write until all entries are durable.
  ///
  /// The entries are in memory before, in the form that each implementation takes.
  private func sustained(_ fixture: Fixture) throws {
    let group = max(1, StorePeer.capacity(fixture) / 128 / (fixture.bodyByteCount + 600))
    let names = ["ResponseStore", "raw C, same rows", "SQLite", "one file per entry, synced", "RocksDB, synced"]
    var samples: [String: [Double]] = [:]
    for round in 0...(report.isQuick ? 2 : 5) {
      for name in names {
        let elapsed = try once(name, fixture, group: group)
        if round > 0 { samples[name, default: []].append(elapsed / Double(fixture.count) / 1000) }
      }
    }
    for name in names {
      report.add("writes", "durable store", fixture.name, name, unit: "us/entry", samples[name] ?? [])
    }
  }

  private func once(_ name: String, _ fixture: Fixture, group: Int) throws -> Double {
    let folder = try scratch.folder("write-\(name)")
    defer { try? FileManager.default.removeItem(atPath: folder) }
    let starts = stride(from: 0, to: fixture.count, by: group)
    let ranges = starts.map { $0..<min($0 + group, fixture.count) }
    switch name {
    case "ResponseStore":
      let peer = try StorePeer(folder: folder, fixture: fixture)
      let elapsed = try nanoseconds { try peer.store(0..<fixture.count) }
      peer.close()
      // The C baseline writes the rows of this store.
      try? FileManager.default.removeItem(atPath: scratch.path + "/rows")
      // A new store has its data in the folder of the first generation.
      try FileManager.default.copyItem(atPath: folder + "/data-1", toPath: scratch.path + "/rows")
      return elapsed
    case "raw C, same rows":
      let capacity = StorePeer.capacity(fixture)
      let batch = min(max(capacity / 128, 32 << 10), 4 << 20)
      let elapsed = raw_write(scratch.path + "/rows", folder, capacity * 2, batch)
      guard elapsed > 0 else { throw BenchError("the C baseline could not write") }
      return Double(elapsed)
    case "SQLite":
      let peer = try SQLitePeer(folder: folder, fixture: fixture)
      defer { peer.close() }
      return try nanoseconds {
        for range in ranges { try peer.storeGroup(range) }
        peer.checkpoint()
      }
    case "RocksDB, synced":
      let peer = try RocksDBPeer(folder: folder, fixture: fixture)
      defer { peer.close() }
      return try nanoseconds { for range in ranges { try peer.storeGroup(range, synced: true) } }
    default:
      // Measure some of the files: each takes as long, and syncing all would take minutes.
      let peer = try FilesPeer(folder: folder, fixture: fixture)
      let count = min(fixture.count, 500)
      let elapsed = try nanoseconds { for index in 0..<count { try peer.write(index, synced: true) } }
      return elapsed * Double(fixture.count) / Double(count)
    }
  }

  /// Stores from four threads faster than the disk, with a small queue and a timeout of 50 ms.
  private func fullQueue() throws {
    let fixture = Fixture(count: report.isQuick ? 2_000 : 16_000, bodyByteCount: 16 << 10)
    var options = ResponseStore.Options(capacityByteCount: 1 << 30)
    options.queueByteCount = 1 << 20
    options.fullQueueTimeout = .milliseconds(50)
    options.log = { _ in }
    let store = try ResponseStore.open(directory: scratch.folder("full"), options: options)
    let responses = (0..<1000).map { fixture.response($0) }
    let worst = LockedMaximum()
    let queued = LockedMaximum()
    Harness.inParallel(4) { thread in
      for index in 0..<(fixture.count / 4) {
        worst.note(nanoseconds { store.store(responses[(thread * 250 + index) % 1000]) } / 1e6)
        if index % 64 == 0 { queued.note(Double(store.statistics.queuedByteCount) / 1e6) }
      }
    }
    try store.flush()
    let dropped = Double(store.statistics.droppedWrites)
    let scenario = "1 MB queue, 4 threads"
    report.add("writes", "full queue: longest call", scenario, "ResponseStore", unit: "ms", [worst.value])
    report.add("writes", "full queue: bytes waiting", scenario, "ResponseStore", unit: "MB", [queued.value])
    report.add(
      "writes", "full queue: dropped", scenario, "ResponseStore", unit: "%", [dropped / Double(fixture.count) * 100])
    store.close()
  }
}

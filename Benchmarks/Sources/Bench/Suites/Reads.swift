import CRawLMDB
import Foundation
import ResponseStore

/// Latency of hits: every peer stores the same fixture and looks up the same entries in the same order.
struct Reads {
  let report: Report
  let scratch: Scratch

  func run() throws {
    let quick = report.isQuick
    let counts = quick ? [1_000, 20_000] : [1_000, 100_000, 1_000_000]
    for count in counts { try compare(Fixture(count: count, bodyByteCount: 1 << 10)) }
    try compare(Fixture(count: quick ? 1_000 : 20_000, bodyByteCount: 16 << 10))
    try compare(Fixture(count: quick ? 100 : 1_500, bodyByteCount: 256 << 10))
  }

  /// Returns lists of entries to look up, so that rounds and threads do not share what is in the processor's caches.
  private func picks(_ fixture: Fixture) -> [[UInt32]] {
    let operations = min(20_000, (report.isQuick ? 200 << 20 : 400 << 20) / fixture.bodyByteCount)
    var random = SeededGenerator(seed: 1)
    return (0..<6).map { _ in random.picks(operations, below: fixture.count) }
  }

  private func compare(_ fixture: Fixture) throws {
    let picks = picks(fixture)
    let store = try StorePeer(folder: scratch.folder("store"), fixture: fixture)
    try store.store(0..<fixture.count)
    // Reopen: the first read of each record then verifies its checksum.
    try store.reopen()
    let first = nanoseconds {
      guard store.read(ArraySlice(0..<UInt32(fixture.count))) > 0 else { fatalError("missed") }
    }
    report.add("reads", "first hit", fixture.name, store.name, unit: "ns", [first / Double(fixture.count)])
    store.check(fixture)

    let keys = KeyBytes(fixture)
    let raw = try RawPeer(copying: store.folder, to: scratch.folder("raw"), keys: keys)
    let plain = try PlainPeer(folder: scratch.folder("plain"), fixture: fixture, keys: keys)
    let verifying = try StorePeer(folder: scratch.folder("verify"), fixture: fixture, verifiesEveryRead: true)
    if fixture.count <= 100_000 { try verifying.store(0..<fixture.count) }
    let peers = try others(fixture)
    let urls = (0..<fixture.count).map { fixture.url($0) }

    var cases = [
      store.benchmarkCase(picks),
      raw.benchmarkCase("raw C, head then body", picks, raw_copies_reused),
      plain.benchmarkCase("raw C, one get", picks),
      BenchmarkCase(name: "ResponseStore, body as Data", operations: picks[0].count) { _, round in
        if store.readAsData(picks[round % picks.count][...]) == 0 { fatalError("missed") }
      },
      BenchmarkCase(name: "ResponseStore, URL to fields", operations: picks[0].count) { _, round in
        _ = store.readDecoding(urls, picks[round % picks.count][...])
      },
      BenchmarkCase(name: "ResponseStore, borrowed", operations: picks[0].count) { _, round in
        if store.readBorrowed(picks[round % picks.count][...]) == 0 { fatalError("missed") }
      },
      raw.benchmarkCase("raw C, pointers", picks, raw_copies_none),
    ]
    if fixture.count <= 100_000 { cases.append(verifying.benchmarkCase(picks, suffix: ", verify always")) }
    cases += peers.map { peer in
      // Slow peers need fewer operations.
      let share = peer is FoundationPeer ? 2 : max(1, picks[0].count / 8)
      return peer.benchmarkCase(picks.map { Array($0.prefix(share)) })
    }
    let rounds = report.isQuick ? 9 : 21
    report.add("reads", "hit", fixture, Harness.compare(cases, rounds: rounds), order: cases)

    // The times are per operation of each thread: threads that do not slow each other down take as long as one. Rounds
    // of one thread and of two alternate, because the speed of the machine changes.
    let pairs = [
      store.benchmarkCase(picks, threads: 2),
      store.benchmarkCase(picks, suffix: ", one thread"),
      raw.benchmarkCase("raw C, head then body", picks, raw_copies_reused, threads: 2),
      raw.benchmarkCase("raw C, head then body, one thread", picks, raw_copies_reused),
    ]
    report.add("reads", "hit, 2 threads", fixture, Harness.compare(pairs, rounds: rounds), order: pairs)
    try duringWrites(store, raw, picks, rounds: rounds)

    verifying.close()
    for peer in peers { peer.close() }
    plain.close()
    raw.close()
    store.close()
  }

  private func others(_ fixture: Fixture) throws -> [any Peer] {
    var types: [any Peer.Type] = [SQLitePeer.self, RocksDBPeer.self, RedisPeer.self]
    // A million files would take ten minutes to create and to delete.
    if fixture.count <= 100_000 { types.append(FilesPeer.self) }
    if fixture.count <= (report.isQuick ? 100 : 1_000) { types.append(FoundationPeer.self) }
    return try types.map { type in
      let peer = try type.init(folder: scratch.folder("peer-\(type.name)"), fixture: fixture)
      try peer.store(0..<fixture.count)
      peer.check(fixture)
      return peer
    }
  }

  /// Measures the same hits while another thread stores at full speed.
  ///
  /// The writer stores other entries than the ones that are read, because those would be found among pending writes.
  private func duringWrites(_ store: StorePeer, _ raw: RawPeer, _ picks: [[UInt32]], rounds: Int) throws {
    let fixture = store.fixture
    let isDone = DispatchSemaphore(value: 0)
    let stop = StopFlag()
    let box = UncheckedBox(store.store)
    let others = max(100, min(10_000, (64 << 20) / fixture.bodyByteCount))
    let writer = Thread {
      var index = 0
      while !stop.isSet {
        // Replace the same entries, so that nothing is evicted.
        box.value.store(fixture.response(fixture.count + index % others))
        index += 1
      }
      isDone.signal()
    }
    // The C baseline reads a file that no thread writes: its slowdown is due to the load on the machine.
    let readers = [store.benchmarkCase(picks), raw.benchmarkCase("raw C, head then body", picks, raw_copies_reused)]
    let alone = Harness.compare(readers, rounds: rounds)
    writer.start()
    let during = Harness.compare(readers, rounds: rounds)
    stop.set()
    isDone.wait()
    report.add("reads", "hit, alone", fixture, alone, order: readers)
    report.add("reads", "hit, during writes", fixture, during, order: readers)
  }
}

extension Report {
  func add(
    _ suite: String, _ measure: String, _ fixture: Fixture, _ samples: [String: [Double]], order: [BenchmarkCase],
    unit: String = "ns", scale: Double = 1
  ) {
    for benchmarkCase in order {
      let times = (samples[benchmarkCase.name] ?? []).map { $0 / scale }
      add(suite, measure, fixture.name, benchmarkCase.name, unit: unit, times)
    }
  }
}

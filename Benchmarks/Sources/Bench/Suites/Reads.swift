import CRawLMDB
import Foundation
import ResponseStore

/// Hits: every peer filled with the same fixture, asked for the same entries in the same order.
struct Reads {
  let report: Report
  let scratch: Scratch

  func run() throws {
    let quick = report.isQuick
    let counts = quick ? [1_000, 20_000] : [1_000, 10_000, 100_000, 1_000_000]
    for count in counts { try compare(Fixture(count: count, bodyByteCount: 1 << 10)) }
    try compare(Fixture(count: quick ? 1_000 : 20_000, bodyByteCount: 16 << 10))
    try compare(Fixture(count: quick ? 100 : 1_500, bodyByteCount: 256 << 10))
  }

  /// Entries to ask for, one list for each thread and round, so that no round finds what the last one left in the caches.
  private func picks(_ fixture: Fixture) -> [[UInt32]] {
    let operations = min(20_000, (report.isQuick ? 200 << 20 : 400 << 20) / fixture.bodyByteCount)
    var random = SplitMix64(state: 1)
    return (0..<6).map { _ in random.picks(operations, below: fixture.count) }
  }

  private func compare(_ fixture: Fixture) throws {
    let picks = picks(fixture)
    let store = try StorePeer(folder: scratch.folder("store"), fixture: fixture)
    try store.store(0..<fixture.count)
    // The first read of each record compares checksums.
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

    var contestants = [
      store.contestant(picks),
      raw.contestant("raw C, head then body", picks, raw_copies_reused),
      raw.contestant("raw C, head then body, fresh memory", picks, raw_copies_fresh),
      plain.contestant("raw C, one get", picks),
      Contestant(name: "ResponseStore, body as Data", operations: picks[0].count) { _, round in
        if store.readAsData(picks[round % picks.count][...]) == 0 { fatalError("missed") }
      },
      Contestant(name: "ResponseStore, URL to fields", operations: picks[0].count) { _, round in
        _ = store.readDecoding(urls, picks[round % picks.count][...])
      },
      Contestant(name: "ResponseStore, borrowed", operations: picks[0].count) { _, round in
        if store.readBorrowed(picks[round % picks.count][...]) == 0 { fatalError("missed") }
      },
      raw.contestant("raw C, pointers", picks, raw_copies_none),
    ]
    if fixture.count <= 100_000 { contestants.append(verifying.contestant(picks, suffix: ", verify always")) }
    contestants += peers.map { peer in
      // The slow ones need fewer to be timed well.
      let share = peer is FoundationPeer ? 2 : max(1, picks[0].count / 8)
      return peer.contestant(picks.map { Array($0.prefix(share)) })
    }
    let rounds = report.isQuick ? 9 : 21
    report.add("reads", "hit", fixture, Harness.compare(contestants, rounds: rounds), order: contestants)

    // Per operation of one thread: as long as for one thread alone if they do not hinder each other. One thread takes its turns
    // with two, since the machine is not the same a minute later.
    let pairs = [
      store.contestant(picks, threads: 2),
      store.contestant(picks, suffix: ", one thread"),
      raw.contestant("raw C, head then body", picks, raw_copies_reused, threads: 2),
      raw.contestant("raw C, head then body, one thread", picks, raw_copies_reused),
    ]
    report.add("reads", "hit, 2 threads", fixture, Harness.compare(pairs, rounds: rounds), order: pairs)
    try besideWriter(store, raw, picks, rounds: rounds)

    verifying.close()
    for peer in peers { peer.close() }
    plain.close()
    raw.close()
    store.close()
  }

  private func others(_ fixture: Fixture) throws -> [any Peer] {
    var types: [any Peer.Type] = [FilesPeer.self, SQLitePeer.self, RocksDBPeer.self, RedisPeer.self]
    if fixture.count <= (report.isQuick ? 100 : 1_000) { types.append(FoundationPeer.self) }
    return try types.map { type in
      let peer = try type.init(folder: scratch.folder("peer-\(type.name)"), fixture: fixture)
      try peer.store(0..<fixture.count)
      peer.check(fixture)
      return peer
    }
  }

  /// The same reads while another thread stores other entries as fast as it can: entries that are read would be found in
  /// memory, where they wait for the disk.
  private func besideWriter(_ store: StorePeer, _ raw: RawPeer, _ picks: [[UInt32]], rounds: Int) throws {
    let fixture = store.fixture
    let isDone = DispatchSemaphore(value: 0)
    let stop = StopFlag()
    let box = UncheckedBox(store.store)
    let others = max(100, min(10_000, (64 << 20) / fixture.bodyByteCount))
    let writer = Thread {
      var index = 0
      while !stop.isSet {
        // The same ones again and again, so that nothing need be evicted.
        box.value.store(fixture.response(fixture.count + index % others))
        index += 1
      }
      isDone.signal()
    }
    // The loop in C reads another file, which nobody writes: what it loses beside the writer, it loses to the machine.
    let readers = [store.contestant(picks), raw.contestant("raw C, head then body", picks, raw_copies_reused)]
    let alone = Harness.compare(readers, rounds: rounds)
    writer.start()
    let beside = Harness.compare(readers, rounds: rounds)
    stop.set()
    isDone.wait()
    report.add("reads", "hit, alone", fixture, alone, order: readers)
    report.add("reads", "hit, beside a writer", fixture, beside, order: readers)
  }
}

extension Report {
  func add(
    _ suite: String, _ measure: String, _ fixture: Fixture, _ samples: [String: [Double]], order: [Contestant],
    unit: String = "ns", scale: Double = 1
  ) {
    for contestant in order {
      add(
        suite, measure, fixture.name, contestant.name, unit: unit, (samples[contestant.name] ?? []).map { $0 / scale })
    }
  }
}

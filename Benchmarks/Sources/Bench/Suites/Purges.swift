import Foundation
import ResponseStore

/// Purges by date and eviction, of 1% and 50% of the entries, compared with the peers; and all kinds of purges.
struct Purges {
  let report: Report
  let scratch: Scratch

  func run() throws {
    let fixture = Fixture(count: report.isQuick ? 5_000 : 100_000, bodyByteCount: 1 << 10)
    for percent in [1, 50] {
      try store(fixture, percent)
      try sqlite(fixture, percent)
      try files(fixture, percent)
      try rocksDB(fixture, percent)
    }
    let large = report.isQuick ? fixture : Fixture(count: 1_000_000, bodyByteCount: 1 << 10)
    try scopes(large, isSoft: false)
    try scopes(large, isSoft: true)
  }

  private func filledStore(_ fixture: Fixture, hosts: Int = 1) throws -> ResponseStore {
    let clock = EntryClock()
    var options = ResponseStore.Options(capacityByteCount: StorePeer.capacity(fixture))
    options.clock = { clock.next() }
    options.fullQueueTimeout = .seconds(600)
    let store = try ResponseStore.open(directory: scratch.folder("purge"), options: options)
    for index in 0..<fixture.count { store.store(fixture.response(index)) }
    try store.flush()
    return store
  }

  private func add(_ measure: String, _ fixture: Fixture, _ peer: String, _ milliseconds: [Double]) {
    report.add("purge", measure, fixture.name, peer, unit: "ms", milliseconds)
  }

  /// Measures the time until the call returns, until the rows are deleted, and of eviction.
  private func store(_ fixture: Fixture, _ percent: Int) throws {
    let store = try filledStore(fixture)
    let kept = fixture.count - fixture.count * percent / 100
    let returned = nanoseconds { store.remove(.since(EntryClock.start + Double(kept))) } / 1e6
    var deleted = returned
    deleted += nanoseconds { while store.entryCount > kept { usleep(500) } } / 1e6
    add("since, \(percent)%", fixture, "ResponseStore", [returned])
    add("since, \(percent)%", fixture, "ResponseStore, until deleted", [deleted])
    guard store.lookup(fixture.key(kept + 1)) == nil, store.lookup(fixture.key(0)) != nil else {
      fatalError("the purge removed the wrong entries")
    }
    // Lower the capacity until that share is evicted.
    let before = store.entryCount
    var capacity = store.diskByteCount
    var evicting = 0.0
    while (before - store.entryCount) * 100 < before * percent, capacity > 1 << 20 {
      evicting += nanoseconds { store.capacityByteCount = capacity }
      capacity = capacity * 97 / 100
    }
    let evicted = max(1, before - store.entryCount)
    report.add(
      "purge", "evict \(percent)%", fixture.name, "ResponseStore", unit: "us/entry",
      [evicting / 1000 / Double(evicted)])
    store.close()
  }

  private func sqlite(_ fixture: Fixture, _ percent: Int) throws {
    let peer = try SQLitePeer(folder: scratch.folder("purge"), fixture: fixture)
    try peer.store(0..<fixture.count)
    let kept = fixture.count - fixture.count * percent / 100
    add("since, \(percent)%", fixture, peer.name, [try nanoseconds { try peer.remove(where: ">= \(kept)") } / 1e6])
    let evicted = kept * percent / 100
    let elapsed = try nanoseconds { try peer.remove(where: "< \(evicted)") }
    report.add(
      "purge", "evict \(percent)%", fixture.name, peer.name, unit: "us/entry", [elapsed / 1000 / Double(evicted)])
    peer.close()
  }

  private func files(_ fixture: Fixture, _ percent: Int) throws {
    let peer = try FilesPeer(folder: scratch.folder("purge"), fixture: fixture)
    let kept = fixture.count - fixture.count * percent / 100
    try peer.store(0..<kept)
    let date = Date().timeIntervalSince1970 + 0.02
    usleep(50_000)
    try peer.store(kept..<fixture.count)
    var removed = 0
    add(
      "since, \(percent)%", fixture, peer.name,
      [nanoseconds { removed = peer.removeAll(changedAfter: date) } / 1e6])
    guard removed == fixture.count - kept else { throw BenchError("\(removed) files were removed") }
    // The best case for files: the oldest entries are known without a search.
    let evicted = kept * percent / 100
    let elapsed = nanoseconds { for index in 0..<evicted { peer.remove(index) } }
    report.add(
      "purge", "evict \(percent)%", fixture.name, peer.name, unit: "us/entry", [elapsed / 1000 / Double(evicted)])
  }

  private func rocksDB(_ fixture: Fixture, _ percent: Int) throws {
    let peer = try RocksDBPeer(folder: scratch.folder("purge"), fixture: fixture)
    try peer.store(0..<fixture.count)
    let kept = fixture.count - fixture.count * percent / 100
    add(
      "since, \(percent)%", fixture, "RocksDB, keys by date",
      [try nanoseconds { try peer.remove(kept..<fixture.count) } / 1e6])
    peer.close()
  }

  /// Measures median and p99 of the call while a thread stores at full speed. Each scope is a round.
  ///
  /// `Scripts/reliability purge` counts the validations after soft purges.
  private func scopes(_ fixture: Fixture, isSoft: Bool) throws {
    let store = try filledStore(fixture)
    let stop = StopFlag()
    let ended = DispatchSemaphore(value: 0)
    let writer = Thread {
      var index = 0
      while !stop.isSet {
        store.store(fixture.response(index % fixture.count))
        index += 1
      }
      ended.signal()
    }
    writer.start()
    guard let url = URL(string: "http://assets.example.com/images/00000000"),
      let prefix = RemovalScope.urlPrefix(url), let group = RemovalScope.group("g", ofOrigin: url),
      let tag = RemovalScope.tag("g", in: ["Cache-Groups", "Surrogate-Key"])
    else { fatalError("a scope is invalid") }
    let scopes: [RemovalScope] = [
      .key(fixture.key(7).bytes), .since(EntryClock.start + Double(fixture.count) * 0.99), group, tag, prefix,
      .host("assets.example.com"), .everything,
    ]
    var (medians, tails): ([Double], [Double]) = ([], [])
    for scope in scopes {
      var samples = (0..<(report.isQuick ? 10 : 100)).map { _ in
        nanoseconds { if isSoft { store.softPurge(scope) } else { store.remove(scope) } } / 1e6
      }
      samples.sort()
      medians.append(percentile(samples, 0.5))
      tails.append(percentile(samples, 0.99))
    }
    let measure = isSoft ? "soft call" : "call"
    add("\(measure), p50", fixture, "ResponseStore, during writes", medians)
    add("\(measure), p99", fixture, "ResponseStore, during writes", tails)
    stop.set()
    ended.wait()
    store.close()
  }
}

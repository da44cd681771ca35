import FoundationEssentials
import Glibc
import ResponseStore
import StoreContract

/// One of several processes on a directory, which stores, updates, reads, removes and purges for a given time.
///
/// Only one process stores the keys of a host, so the last version of each key is known. Every process looks up the
/// keys of all hosts and fails if it finds a removed, unknown or wrong response.
enum ConcurrentWorker {
  static let processCount = 8
  static let keyCount = 1600
  static let capacity = 8 << 20

  /// Works for the given time, prints the counts and exits.
  ///
  /// - Parameter count: The number of processes. Each prints its counts after all have stopped storing, because the
  ///   writes of one process can also cause eviction in another.
  static func work(
    directory: String, ledgerPath: String, capacity: Int, number: Int, seconds: Double, count: Int
  ) -> Never {
    let ledger = Ledger(path: ledgerPath, keyCount: keyCount)
    let content = Content(keyCount: keyCount, hostCount: processCount, capacity: capacity)
    let store: ResponseStore
    do {
      store = try Worker.open(directory, capacity: capacity, ledger: ledger)
    } catch {
      fail("\(error)")
    }
    var random = SeededRandom(UInt64(number) &* 7919 &+ UInt64(getpid()))
    var counts = (operations: 0, hits: 0, purges: 0)
    var longest = 0.0
    let end = now() + seconds
    while now() < end {
      counts.operations += 1
      let own = random.below(keyCount / processCount) * processCount + number
      switch random.below(1000) {
      case 0..<300: ledger.store(own, by: number, in: store, content)
      case 300..<330:
        if let found = store.lookup(content.requestKey(own)), let version = content.version(of: found, key: own) {
          let now = ledger.position
          let revision = ledger.beginUpdate(
            of: version, in: own, by: number, basis: .token(after: version, before: now))
          let isAccepted = store.update(
            found, fields: content.fields(own, version: version, update: revision), freshness: found.freshness)
          ledger.endUpdate(revision, in: own, by: number, isAccepted: isAccepted)
        }
      case 330..<335:
        let began = now()
        purge(store, ledger, content, &random, number: number)
        longest = max(longest, now() - began)
        counts.purges += 1
      case 335..<338:
        ledger.flush(store, by: number)
      default:
        let key = random.below(keyCount)
        let isHit = ledger.check(key, by: number, content) { store.lookup(content.requestKey(key)) }
        if isHit { counts.hits += 1 }
      }
    }
    ledger.flush(store, by: number)
    if count > 1 { makeDirectory(ledgerPath + ".done.\(number)") }
    for other in 0..<count where count > 1 { waitForFile(ledgerPath + ".done.\(other)") }
    // Complete the pending deletions, so that they are counted. The store's own thread counts them after its commit.
    var statistics = store.statistics
    repeat {
      statistics = store.statistics
      while store.maintain() {}
      usleep(100_000)
    } while store.statistics.removals != statistics.removals
    let removals = statistics.removals.values.reduce(0, +)
    say(
      "numbers \(statistics.writes) \(removals) \(counts.operations) \(counts.hits) \(counts.purges) "
        + "\(statistics.corruptRecords) \(Int(longest * 1e6)) \(statistics.mapFullRetries)")
    store.close()
    exit(0)
  }

  private static func purge(
    _ store: ResponseStore, _ ledger: Ledger, _ content: Content, _ random: inout SeededRandom, number: Int
  ) {
    let host = random.below(processCount)
    let prefix = random.below(Content.prefixCount)
    let group = random.below(Content.groupCount)
    var isCovered: (Int) -> Bool
    let remove: () -> Void
    switch random.below(30) {
    case 0:
      isCovered = { _ in true }
      remove = { store.remove(.everything) }
    case 1..<5:
      isCovered = { content.host(of: $0) == host }
      remove = { store.remove(.host(Content.hostName(host))) }
    case 5..<12:
      isCovered = { content.host(of: $0) == host && content.prefix(of: $0) == prefix }
      remove = { store.remove(.urlPrefix(content.prefixURL(host: host, prefix: prefix))!) }
    case 12..<20:
      isCovered = { content.host(of: $0) == host && content.group(of: $0) == group }
      remove = { store.remove(.group("g\(group)", ofOrigin: content.prefixURL(host: host, prefix: 0))!) }
    default:
      let key = random.below(keyCount)
      isCovered = { $0 == key }
      remove = { store.remove(content.requestKey(key)) }
    }
    ledger.purge(by: number, isSoft: false, covers: isCovered) {
      remove()
      return true
    }
  }
}

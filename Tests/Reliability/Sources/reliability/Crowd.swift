import FoundationEssentials
import Glibc
import ResponseStore

/// One of several processes on a directory: it stores, updates, reads, removes and purges, for so many seconds.
///
/// The keys of one host are stored by one process alone, so each knows what may be found under its own; under those of
/// the others it looks for what must not be found.
enum Crowd {
  static let processCount = 8
  static let keyCount = 1600
  static let capacity = 8 << 20

  /// - Parameter count: How many are at work. None counts before all are done with storing: another's stores make this one's thread
  ///   evict, too.
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
      case 0..<300:
        let version = ledger.takeVersion()
        ledger[.started, own] = version
        store.store(content.response(own, version: version, at: Ledger.date(version)))
        ledger[.returned, own] = version
      case 300..<330:
        if let found = store.lookup(content.requestKey(own)), let version = content.version(of: found, key: own) {
          store.update(found, fields: content.fields(own, version: version, update: 1), facts: found.facts)
        }
      case 330..<335:
        let began = now()
        purge(store, ledger, content, &random, number: number)
        longest = max(longest, now() - began)
        counts.purges += 1
      case 335..<338:
        do throws(StoreError) { try store.flush() } catch { fail("flush failed: \(error)") }
      default:
        if check(random.below(keyCount), store, ledger, content) { counts.hits += 1 }
      }
    }
    do throws(StoreError) { try store.flush() } catch { fail("flush failed: \(error)") }
    if count > 1 { makeDirectory(ledgerPath + ".done.\(number)") }
    for other in 0..<count where count > 1 { waitForFile(ledgerPath + ".done.\(other)") }
    // What is still to be deleted is to be counted; and the store's own thread counts after its commit.
    var statistics = store.statistics
    repeat {
      statistics = store.statistics
      while store.maintain() {}
      usleep(100_000)
    } while store.statistics.removals != statistics.removals
    let removals = statistics.removals.values.reduce(0, +)
    say(
      "numbers \(statistics.stores) \(removals) \(counts.operations) \(counts.hits) \(counts.purges) "
        + "\(statistics.damagedRecords) \(Int(longest * 1e6)) \(statistics.fullMaps)")
    store.close()
    exit(0)
  }

  /// True if something was found; ends the process if it is wrong.
  private static func check(_ key: Int, _ store: ResponseStore, _ ledger: Ledger, _ content: Content) -> Bool {
    let gone = ledger[.gone, key]
    guard let found = store.lookup(content.requestKey(key)) else { return false }
    guard let version = content.version(of: found, key: key) else { fail("key \(key): a wrong response was found") }
    if version <= gone { fail("key \(key): version \(version) was found, removed up to \(gone)") }
    if version > ledger[.started, key] { fail("key \(key): version \(version) was never stored") }
    return true
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
      remove = { store.removeAll() }
    case 1..<5:
      isCovered = { content.host(of: $0) == host }
      remove = { store.removeResponses(forHost: Content.hostName(host)) }
    case 5..<12:
      isCovered = { content.host(of: $0) == host && content.prefix(of: $0) == prefix }
      remove = { store.removeResponses(withPrefix: content.prefixURL(host: host, prefix: prefix)) }
    case 12..<20:
      isCovered = { content.host(of: $0) == host && content.group(of: $0) == group }
      remove = { store.removeResponses(inGroup: "g\(group)", origin: content.prefixURL(host: host, prefix: 0)) }
    default:
      let key = random.below(keyCount)
      isCovered = { $0 == key }
      remove = { store.remove(content.requestKey(key)) }
    }
    let keys = (0..<keyCount).filter(isCovered)
    let returned = keys.map { ledger[.returned, $0] }
    remove()
    for (key, version) in zip(keys, returned) { ledger.raise(.gone, key, to: version) }
  }
}

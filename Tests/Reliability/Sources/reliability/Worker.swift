import FoundationEssentials
import Glibc
import ResponseStore
import Synchronization

/// The process that gets killed: stores, updates, reads, removes, purges and flushes as fast as it can, and keeps a
/// ledger of what it was promised.
struct Worker {
  static let hostCount = 2
  let content: Content
  let ledger: Ledger
  let store: ResponseStore
  let seed: UInt64

  init(directory: String, ledgerPath: String, keyCount: Int, capacity: Int, seed: UInt64) throws(StoreError) {
    content = Content(keyCount: keyCount, hostCount: Self.hostCount, capacity: capacity)
    ledger = Ledger(path: ledgerPath, keyCount: keyCount)
    self.seed = seed
    store = try Self.open(directory, capacity: capacity, ledger: ledger)
  }

  static func open(_ directory: String, capacity: Int, ledger: Ledger) throws(StoreError) -> ResponseStore {
    var options = ResponseStore.Options(capacityByteCount: capacity)
    options.clock = { Ledger.date(ledger.time) }
    // No store may be dropped because the disk is slow: a flush would promise what was never taken.
    options.fullQueueTimeout = .seconds(60)
    options.log = { say("log: \($0)") }
    return try ResponseStore.open(directory: directory, options: options)
  }

  /// Works until it is killed, or for so many operations of each thread.
  func run(operationCount: Int = .max) {
    let finished = Atomic<Int>(0)
    withoutActuallyEscaping({ (host: Int) in
      if host < Self.hostCount {
        storeAndRemove(host: host, operationCount: operationCount)
      } else {
        purgeAndFlush { finished.load(ordering: .relaxed) == Self.hostCount }
      }
      finished.add(1, ordering: .releasing)
    }) { body in
      nonisolated(unsafe) let body = body
      for host in 0...Self.hostCount { startThread { body(host) } }
      while finished.load(ordering: .acquiring) <= Self.hostCount { usleep(1000) }
    }
  }

  // MARK: One host's keys

  private func storeAndRemove(host: Int, operationCount: Int) {
    var random = SeededRandom(seed &* 31 &+ UInt64(host))
    var updates: UInt64 = 0
    for _ in 0..<operationCount {
      let key = random.below(content.keyCount / Self.hostCount) * Self.hostCount + host
      switch random.below(100) {
      case 0..<65:
        let version = ledger.takeVersion()
        ledger[.started, key] = version
        store.store(content.response(key, version: version, at: Ledger.date(version)))
        ledger[.returned, key] = version
      case 65..<73:
        guard let found = store.lookup(content.requestKey(key)), let version = content.version(of: found, key: key)
        else { continue }
        updates += 1
        store.update(
          found, fields: content.fields(key, version: version, update: updates), facts: found.facts)
      case 73..<80:
        let version = ledger[.returned, key]
        ledger[.removing, key] = version
        store.remove(content.requestKey(key))
        ledger.raise(.gone, key, to: version)
      default:
        check(key)
      }
    }
  }

  /// Reads while everything else goes on; only what held before the lookup counts.
  private func check(_ key: Int) {
    let gone = ledger[.gone, key]
    let goneUpTo = ledger[.goneUpTo, key]
    let goneAbove = ledger[.goneAbove, key]
    let found = store.lookup(content.requestKey(key))
    guard let found else {
      let covered = max(ledger[.mayBeGone, key], ledger[.removing, key])
      if ledger.isEvicting || covered >= ledger[.returned, key] { return }
      fail("key \(key): version \(ledger[.returned, key]) was stored, and cannot be found")
    }
    guard let version = content.version(of: found, key: key) else { fail("key \(key): a wrong response was found") }
    if version <= gone { fail("key \(key): version \(version) was found, removed up to \(gone)") }
    // The two words are not written at once; a half-written pair says nothing.
    if goneUpTo != 0, version > goneAbove, version <= goneUpTo, ledger[.goneUpTo, key] == goneUpTo {
      fail("key \(key): version \(version) was found, removed since \(goneAbove)")
    }
    if version != ledger[.returned, key], !ledger.isEvicting {
      fail("key \(key): version \(version) was found instead of \(ledger[.returned, key])")
    }
  }

  // MARK: Purges and flushes

  private func purgeAndFlush(until isOver: () -> Bool) {
    var random = SeededRandom(seed &* 31 &+ 99)
    while !isOver() {
      usleep(UInt32(random.below(20_000)))
      if random.below(100) < 60 { flush() } else { purge(&random) }
    }
  }

  private func flush() {
    let returned = (0..<content.keyCount).map { ledger[.returned, $0] }
    do throws(StoreError) { try store.flush() } catch { fail("flush failed: \(error)") }
    for key in 0..<content.keyCount { ledger.raise(.flushed, key, to: returned[key]) }
  }

  private func purge(_ random: inout SeededRandom) {
    let host = random.below(Self.hostCount)
    let part = random.below(12)
    switch random.below(20) {
    case 0:
      removing({ _ in true }) { store.removeAll() }
    case 1..<4:
      removing({ content.host(of: $0) == host }) { store.removeResponses(forHost: Content.hostName(host)) }
    case 4..<10:
      let prefix = part % Content.prefixCount
      removing({ content.host(of: $0) == host && content.prefix(of: $0) == prefix }) {
        store.removeResponses(withPrefix: content.prefixURL(host: host, prefix: prefix))
      }
    case 10..<15:
      let group = part % Content.groupCount
      removing({ content.host(of: $0) == host && content.group(of: $0) == group }) {
        store.removeResponses(inGroup: "g\(group)", origin: content.prefixURL(host: host, prefix: 0))
      }
    default:
      let age = UInt64(random.below(400))
      let time = ledger.time
      removeSince(time > age ? time - age : 0)
    }
  }

  private func removing(_ isCovered: (Int) -> Bool, _ body: () -> Void) {
    let keys = (0..<content.keyCount).filter(isCovered)
    let returned = keys.map { ledger[.returned, $0] }
    for key in keys { ledger[.mayBeGone, key] = .max }
    body()
    let end = ledger.time
    for (key, version) in zip(keys, returned) {
      ledger.raise(.gone, key, to: version)
      ledger[.mayBeGone, key] = end
    }
  }

  private func removeSince(_ time: UInt64) {
    let returned = (0..<content.keyCount).map { ledger[.returned, $0] }
    for key in 0..<content.keyCount { ledger[.mayBeGone, key] = .max }
    store.removeResponses(since: Ledger.date(time))
    let end = ledger.time
    for key in 0..<content.keyCount {
      ledger[.goneUpTo, key] = 0
      ledger[.goneAbove, key] = time
      ledger[.goneUpTo, key] = returned[key]
      ledger[.mayBeGone, key] = end
    }
  }
}

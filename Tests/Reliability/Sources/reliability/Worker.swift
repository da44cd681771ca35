import CacheActivity
import CacheModel
import FoundationEssentials
import Glibc
import HTTPCaching
import ResponseStore
import StoreContract
import Synchronization

/// The child process of the series `kill` and `powerloss`.
///
/// It stores, updates, reads, removes, purges and flushes as fast as possible, and records that in the ledger. Each
/// thread that stores also has a body that arrives in pieces.
struct Worker {
  static let hostCount = 2
  /// Words of the ledger: whether the body of a thread that arrives is on disk, and the number of bodies after whose
  /// end a flush has ended.
  static func arrivingWord(host: Int) -> Int { host }
  static let flushedBodyWord = hostCount
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
    options.clock = { Ledger.date(ledger.position) }
    // No write may be dropped because the disk is slow: a flush would count it as durable.
    options.fullQueueTimeout = .seconds(60)
    options.log = { say("log: \($0)") }
    return try ResponseStore.open(directory: directory, options: options)
  }

  /// Works until the process is killed, or for the given number of operations per thread.
  func run(operationCount: Int = .max) {
    let finished = Atomic<Int>(0)
    ledger.countLookups(from: store.directoryStatistics?.storeLookups)
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

  // MARK: Keys of one host

  private func storeAndRemove(host: Int, operationCount: Int) {
    var random = SeededRandom(seed &* 31 &+ UInt64(host))
    var arriving: ArrivingBody?
    for _ in 0..<operationCount {
      let key = random.below(content.keyCount / Self.hostCount) * Self.hostCount + host
      switch random.below(100) {
      case 0..<55: ledger.store(key, in: store, content)
      case 55..<65: arrive(&arriving, key: key, &random)
      case 65..<73: update(key)
      case 73..<80:
        ledger.purge(by: 0, isSoft: false, covers: { $0 == key }) {
          store.remove(content.requestKey(key))
          return true
        }
      default: ledger.check(key, content) { store.lookup(content.requestKey(key)) }
      }
    }
  }

  /// Begins a body, appends to it, stores its response or releases it.
  private func arrive(_ arriving: inout ArrivingBody?, key: Int, _ random: inout SeededRandom) {
    guard var body = arriving else {
      arriving = ArrivingBody(key, of: content, in: store, ledger)
      return
    }
    let word = Self.arrivingWord(host: content.host(of: key))
    arriving = nil
    if random.below(16) == 0 { return ledger.setWord(word, 0) }
    guard body.append(20_000 + random.below(400_000)) else {
      if !ledger.isEvicting { fail("the store refused a body that arrives for key \(body.key)") }
      return ledger.setWord(word, 0)
    }
    ledger.setWord(word, body.isOnDisk && !body.isSent ? 1 : 0)
    guard body.isSent else { return arriving = body }
    body.store()
    guard random.below(2) == 0 else { return }
    ledger.flush(store)
    ledger.addToWord(Self.flushedBodyWord)
  }

  private func update(_ key: Int) {
    let before = ledger.takePosition()
    let found = ledger.countingLookup { store.lookup(content.requestKey(key)) }
    guard let found, let version = content.version(of: found, key: key) else { return }
    let basis = Ledger.Basis.token(after: before, before: ledger.takePosition())
    let revision = ledger.beginUpdate(of: version, in: key, by: 0, basis: basis)
    let isAccepted = store.update(
      found,
      fields: content.fields(
        key, version: version, update: revision, bodyNumber: content.bodyNumber(in: found.fields)),
      freshness: found.freshness)
    ledger.endUpdate(revision, in: key, by: 0, isAccepted: isAccepted)
  }

  // MARK: Purges and flushes

  private func purgeAndFlush(until isOver: () -> Bool) {
    var random = SeededRandom(seed &* 31 &+ 99)
    while !isOver() {
      usleep(UInt32(random.below(20_000)))
      if random.below(100) < 60 { ledger.flush(store) } else { purge(&random) }
    }
  }

  private func purge(_ random: inout SeededRandom) {
    let (host, part) = (random.below(Self.hostCount), random.below(12))
    let isSoft = random.below(3) == 0
    let (prefix, group) = (part % Content.prefixCount, part % Content.groupCount)
    var after: Date?
    let scope: RemovalScope?
    var covers: (Int) -> Bool = { _ in true }
    switch random.below(20) {
    case 0: scope = .everything
    case 1..<4:
      scope = .host(Content.hostName(host))
      covers = { content.host(of: $0) == host }
    case 4..<10:
      scope = .urlPrefix(content.prefixURL(host: host, prefix: prefix))
      covers = { content.host(of: $0) == host && content.prefix(of: $0) == prefix }
    case 10..<12:
      scope = .tag("g\(group)", in: ["Cache-Groups"])
      covers = { content.group(of: $0) == group }
    case 12..<15:
      scope = .group("g\(group)", ofOrigin: content.prefixURL(host: host, prefix: 0))
      covers = { content.host(of: $0) == host && content.group(of: $0) == group }
    default:
      let date = Ledger.date(ledger.position - min(ledger.position, UInt64(random.below(400))))
      after = date
      scope = .since(date)
    }
    guard let scope else { fail("no scope") }
    ledger.purge(by: 0, isSoft: isSoft, after: after, covers: covers) {
      if isSoft { store.softPurge(scope) } else { store.remove(scope) }
      return true
    }
  }
}

extension DirectoryStatistics {
  /// The number of lookups in the store, by all processes.
  var storeLookups: Int { diskLookups + missedLookups }
}

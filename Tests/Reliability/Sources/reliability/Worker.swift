import FoundationEssentials
import Glibc
import HTTPCaching
import ResponseStore
import Synchronization

/// The child process of the series `kill` and `powerloss`.
///
/// It stores, updates, reads, removes, purges and flushes as fast as possible, and records the expected state.
struct Worker {
  static let hostCount = 2
  let content: Content
  let expectedState: ExpectedState
  let store: ResponseStore
  let seed: UInt64

  init(directory: String, expectedStatePath: String, keyCount: Int, capacity: Int, seed: UInt64) throws(StoreError) {
    content = Content(keyCount: keyCount, hostCount: Self.hostCount, capacity: capacity)
    expectedState = ExpectedState(path: expectedStatePath, keyCount: keyCount)
    self.seed = seed
    store = try Self.open(directory, capacity: capacity, expectedState: expectedState)
  }

  static func open(_ directory: String, capacity: Int, expectedState: ExpectedState) throws(StoreError) -> ResponseStore
  {
    var options = ResponseStore.Options(capacityByteCount: capacity)
    options.clock = { ExpectedState.date(expectedState.time) }
    // No write may be dropped because the disk is slow: a flush would count it as durable.
    options.fullQueueTimeout = .seconds(60)
    options.log = { say("log: \($0)") }
    return try ResponseStore.open(directory: directory, options: options)
  }

  /// Works until the process is killed, or for the given number of operations per thread.
  func run(operationCount: Int = .max) {
    let finished = Atomic<Int>(0)
    expectedState.countLookups(from: store.directoryStatistics?.storeLookups)
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
    var updates: UInt64 = 0
    for _ in 0..<operationCount {
      let key = random.below(content.keyCount / Self.hostCount) * Self.hostCount + host
      switch random.below(100) {
      case 0..<65:
        let version = expectedState.takeVersion()
        expectedState[.started, key] = version
        store.store(content.response(key, version: version, at: ExpectedState.date(version)))
        expectedState[.returned, key] = version
      case 65..<73:
        guard let found = lookup(key), let version = content.version(of: found, key: key)
        else { continue }
        updates += 1
        store.update(
          found, fields: content.fields(key, version: version, update: updates), freshness: found.freshness)
      case 73..<80:
        let version = expectedState[.returned, key]
        expectedState[.removing, key] = version
        store.remove(content.requestKey(key))
        expectedState.raise(.gone, key, to: version)
      default:
        check(key)
      }
    }
  }

  private func lookup(_ key: Int) -> StoredResponse? {
    expectedState.countingLookup { store.lookup(content.requestKey(key)) }
  }

  /// Looks a key up during other operations and checks the result against the expected state before the lookup.
  private func check(_ key: Int) {
    let gone = expectedState[.gone, key]
    let goneUpTo = expectedState[.goneUpTo, key]
    let goneAbove = expectedState[.goneAbove, key]
    let stale = expectedState[.stale, key]
    let found = lookup(key)
    guard let found else {
      let covered = max(expectedState[.mayBeGone, key], expectedState[.removing, key])
      if expectedState.isEvicting || covered >= expectedState[.returned, key] { return }
      fail("key \(key): version \(expectedState[.returned, key]) was stored, but cannot be found")
    }
    guard let version = content.version(of: found, key: key) else { fail("key \(key): a wrong response was found") }
    if version <= stale, !found.freshness.flags.contains(.softPurged) {
      fail("key \(key): version \(version) was found fresh, softly purged up to \(stale)")
    }
    if version <= gone { fail("key \(key): version \(version) was found, removed up to \(gone)") }
    // The two words are not written atomically; ignore a pair that changed meanwhile.
    if goneUpTo != 0, version > goneAbove, version <= goneUpTo, expectedState[.goneUpTo, key] == goneUpTo {
      fail("key \(key): version \(version) was found, removed since \(goneAbove)")
    }
    if version != expectedState[.returned, key], !expectedState.isEvicting {
      fail("key \(key): version \(version) was found instead of \(expectedState[.returned, key])")
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
    let returned = (0..<content.keyCount).map { expectedState[.returned, $0] }
    do throws(StoreError) { try store.flush() } catch { fail("flush failed: \(error)") }
    for key in 0..<content.keyCount { expectedState.raise(.flushed, key, to: returned[key]) }
  }

  private func purge(_ random: inout SeededRandom) {
    let host = random.below(Self.hostCount)
    let part = random.below(12)
    if random.below(3) == 0 { return softPurge(host: host, part: part, &random) }
    switch random.below(20) {
    case 0:
      removing({ _ in true }) { store.remove(.everything) }
    case 1..<4:
      removing({ content.host(of: $0) == host }) { store.remove(.host(Content.hostName(host))) }
    case 4..<10:
      let prefix = part % Content.prefixCount
      removing({ content.host(of: $0) == host && content.prefix(of: $0) == prefix }) {
        store.remove(.urlPrefix(content.prefixURL(host: host, prefix: prefix))!)
      }
    case 10..<15:
      let group = part % Content.groupCount
      removing({ content.host(of: $0) == host && content.group(of: $0) == group }) {
        store.remove(.group("g\(group)", ofOrigin: content.prefixURL(host: host, prefix: 0))!)
      }
    default:
      let age = UInt64(random.below(400))
      let time = expectedState.time
      removeSince(time > age ? time - age : 0)
    }
  }

  private func softPurge(host: Int, part: Int, _ random: inout SeededRandom) {
    let prefix = part % Content.prefixCount
    let group = part % Content.groupCount
    switch random.below(5) {
    case 0: softPurging(.everything) { _ in true }
    case 1: softPurging(.since(ExpectedState.date(0))) { _ in true }
    case 2: softPurging(.host(Content.hostName(host))) { content.host(of: $0) == host }
    case 3:
      softPurging(.urlPrefix(content.prefixURL(host: host, prefix: prefix))) {
        content.host(of: $0) == host && content.prefix(of: $0) == prefix
      }
    default:
      softPurging(.group("g\(group)", ofOrigin: content.prefixURL(host: host, prefix: 0))) {
        content.host(of: $0) == host && content.group(of: $0) == group
      }
    }
  }

  private func softPurging(_ scope: RemovalScope?, _ isCovered: (Int) -> Bool) {
    guard let scope else { fail("no scope") }
    let keys = (0..<content.keyCount).filter(isCovered)
    let returned = keys.map { expectedState[.returned, $0] }
    store.softPurge(scope)
    for (key, version) in zip(keys, returned) { expectedState.raise(.stale, key, to: version) }
  }

  private func removing(_ isCovered: (Int) -> Bool, _ body: () -> Void) {
    let keys = (0..<content.keyCount).filter(isCovered)
    let returned = keys.map { expectedState[.returned, $0] }
    for key in keys { expectedState[.mayBeGone, key] = .max }
    body()
    let end = expectedState.time
    for (key, version) in zip(keys, returned) {
      expectedState.raise(.gone, key, to: version)
      expectedState[.mayBeGone, key] = end
    }
  }

  private func removeSince(_ time: UInt64) {
    let returned = (0..<content.keyCount).map { expectedState[.returned, $0] }
    for key in 0..<content.keyCount { expectedState[.mayBeGone, key] = .max }
    store.remove(.since(ExpectedState.date(time)))
    let end = expectedState.time
    for key in 0..<content.keyCount {
      expectedState[.goneUpTo, key] = 0
      expectedState[.goneAbove, key] = time
      expectedState[.goneUpTo, key] = returned[key]
      expectedState[.mayBeGone, key] = end
    }
  }
}

extension DirectoryStatistics {
  /// The number of lookups in the store, by all processes.
  var storeLookups: Int { diskLookups + missedLookups }
}

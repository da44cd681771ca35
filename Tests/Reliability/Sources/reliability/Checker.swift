import FoundationEssentials
import Glibc
import HTTPCaching
import ResponseStore

/// The child process that opens a store after a fault and compares its contents with the expected state.
enum Checker {
  struct Options {
    var keyCount: Int
    var capacity: Int
    var hostCount = Worker.hostCount
    /// Whether all guarantees must hold; after corruption, only the bytes that are found must be correct.
    var holdsPromises = true
    /// Whether to update the expected state for the next worker.
    var settles = false
  }

  /// Checks a store and exits.
  ///
  /// The exit code is 0 if the check passes, 1 if the store violates a guarantee, and 2 if it cannot be opened.
  /// After corruption it is 4 if the store failed at run time, and 5 if the store found corrupt records and
  /// lost or did not replace some of the responses stored by the check.
  static func run(directory: String, expectedStatePath: String, options: Options) -> Never {
    let expectedState = ExpectedState(path: expectedStatePath, keyCount: options.keyCount)
    let content = Content(keyCount: options.keyCount, hostCount: options.hostCount, capacity: options.capacity)
    let store: ResponseStore
    do {
      store = try Worker.open(directory, capacity: options.capacity, expectedState: expectedState)
    } catch {
      say("cannot be opened: \(error)")
      exit(2)
    }
    var violations: [String] = []
    // Before this process looks anything up.
    if options.settles, let counters = expectedState.comparison(withCounted: store.directoryStatistics?.storeLookups) {
      say("counters compared")
      if !counters.isRight { violations.append("counters: \(counters.text)") }
      expectedState.countLookups(from: nil)
    }
    if options.holdsPromises { violations += store.checkInvariants().map { "invariant: \($0)" } }
    var foundCount = 0
    // A lookup misses records that are not in the index yet, until a background rebuild is complete.
    let patience = options.holdsPromises ? 2000 : 0
    var waits = 0
    for key in 0..<options.keyCount {
      var version: UInt64?
      while store.lookup(content.requestKey(key)) == nil, expectedState.violation(about: key, found: nil) != nil,
        waits < patience
      {
        waits += 1
        usleep(5000)
      }
      if let found = store.lookup(content.requestKey(key)) {
        version = content.version(of: found, key: key)
        if version == nil { violations.append("key \(key): a wrong response was found") } else { foundCount += 1 }
        let stale = expectedState[.stale, key]
        if options.holdsPromises, let version, version <= stale, !found.freshness.flags.contains(.softPurged) {
          violations.append("key \(key): version \(version) was found fresh, softly purged up to \(stale)")
        }
      }
      if options.holdsPromises, let violation = expectedState.violation(about: key, found: version) {
        violations.append(violation)
      }
      if options.settles { expectedState.settle(key, found: version) }
    }
    for entry in store.entries() where entry.key.bytes.isEmpty { violations.append("an entry without a key") }
    say("entries \(foundCount)")
    violations += use(store, content: content, expectedState: expectedState, options: options)
    for violation in violations.prefix(20) { say(violation) }
    let hasFailed = !options.holdsPromises && !violations.isEmpty && hasFailed(store)
    let foundCorruption = !options.holdsPromises && store.statistics.corruptRecords > 0
    store.close()
    if hasFailed, !violations.contains(where: { $0.contains("wrong response") }) { exit(4) }
    if foundCorruption, !violations.isEmpty, violations.allSatisfy({ $0.contains(": stored again, but ") }) { exit(5) }
    exit(violations.isEmpty ? 0 : 1)
  }

  private static func hasFailed(_ store: ResponseStore) -> Bool {
    do throws(StoreError) {
      try store.flush()
      return false
    } catch {
      // Busy: a thread does not return from a corrupt list in liblmdb.
      return error.code == .failed || error.code == .busy
    }
  }

  /// Stores, removes and flushes some responses, because an opened store must also work; returns the violations.
  private static func use(
    _ store: ResponseStore, content: Content, expectedState: ExpectedState, options: Options
  ) -> [String] {
    var violations: [String] = []
    var versions: [Int: UInt64] = [:]
    for key in stride(from: 0, to: content.keyCount, by: max(1, content.keyCount / 24)) {
      let version = expectedState.takeVersion()
      if options.settles { expectedState[.started, key] = version }
      store.store(content.response(key, version: version, at: ExpectedState.date(version)))
      versions[key] = version
    }
    func compare(_ when: String) {
      for (key, version) in versions.sorted(by: { $0.key < $1.key }) {
        let found = store.lookup(content.requestKey(key)).flatMap { content.version(of: $0, key: key) }
        if found != version {
          violations.append(
            "key \(key): stored again, but version \(found.map(String.init) ?? "none") was found \(when)")
        }
      }
    }
    compare("immediately")
    do {
      try store.flush()
    } catch {
      violations.append("flush failed: \(error)")
      return violations
    }
    if !expectedState.isEvicting { compare("after a flush") }
    guard let removed = versions.keys.min() else { return violations }
    store.remove(content.requestKey(removed))
    if store.lookup(content.requestKey(removed)) != nil {
      violations.append("key \(removed): removed, but still found")
    }
    versions[removed] = nil
    // Corruption may leave records that no key refers to; eviction deletes them eventually.
    if options.holdsPromises { violations += store.checkInvariants().map { "invariant, after use: \($0)" } }
    if options.settles {
      for (key, version) in versions { expectedState.settle(key, found: version) }
      expectedState.settle(removed, found: nil)
      expectedState.raise(.gone, removed, to: expectedState[.started, removed])
    }
    return violations
  }
}

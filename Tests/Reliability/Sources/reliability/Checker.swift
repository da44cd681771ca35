import FoundationEssentials
import Glibc
import HTTPCaching
import ResponseStore
import StoreContract

/// The child process that opens a store after a fault and compares its contents with the ledger.
enum Checker {
  struct Options {
    var keyCount: Int
    var capacity: Int
    var hostCount = Worker.hostCount
    /// Whether all guarantees must hold; after corruption, only the bytes that are found must be correct.
    var holdsPromises = true
    /// Whether to update the ledger for the next worker.
    var settles = false
  }

  /// Checks a store and exits.
  ///
  /// The exit code is 0 if the check passes, 1 if the store violates a guarantee, and 2 if it cannot be opened.
  /// After corruption it is 4 if the store failed at run time, and 5 if the store found corrupt records and
  /// lost or did not replace some of the responses stored by the check.
  static func run(directory: String, ledgerPath: String, options: Options) -> Never {
    let ledger = Ledger(path: ledgerPath, keyCount: options.keyCount)
    // Every other process has ended. What it had not flushed may be lost.
    for process in 0..<ledger.shape.processCount { ledger.processDied(process) }
    let content = Content(keyCount: options.keyCount, hostCount: options.hostCount, capacity: options.capacity)
    let store: ResponseStore
    do {
      store = try Worker.open(directory, capacity: options.capacity, ledger: ledger)
    } catch {
      say("cannot be opened: \(error)")
      exit(2)
    }
    var violations: [String] = []
    // Before this process looks anything up.
    if options.settles, let counters = ledger.comparison(withCounted: store.directoryStatistics?.storeLookups) {
      say("counters compared")
      if !counters.isRight { violations.append("counters: \(counters.text)") }
      ledger.countLookups(from: nil)
    }
    if options.settles, store.excessByteCount > 0 {
      violations.append("\(store.excessByteCount) bytes on disk above the capacity and its 10%")
    }
    if options.holdsPromises {
      violations += store.checkInvariants().map { "invariant: \($0)" }
      if let text = Scenarios.leftBodies(in: store) { violations.append(text) }
    }
    var foundCount = 0
    // A lookup misses records that are not in the index yet, until a background rebuild is complete.
    let patience = options.holdsPromises ? 2000 : 0
    var waits = 0
    for key in 0..<options.keyCount {
      let facts = ledger.facts(key, by: 0)
      while store.lookup(content.requestKey(key)) == nil, ledger.violation(nil, after: facts) != nil, waits < patience {
        waits += 1
        usleep(5000)
      }
      let found = store.lookup(content.requestKey(key))
      let answer = found.flatMap { content.answer(of: $0, key: key) }
      if found != nil { foundCount += 1 }
      if let violation = ledger.violation(found, key, content, after: facts),
        options.holdsPromises || violation.kind == .wrong
      {
        violations.append("key \(key): \(violation)")
      }
      if options.settles { ledger.settle(key, found: answer?.newest ?? 0) }
    }
    for entry in store.entries() where entry.key.bytes.isEmpty { violations.append("an entry without a key") }
    say("entries \(foundCount)")
    violations += use(store, content: content, ledger: ledger, options: options)
    for violation in violations.prefix(20) { say(violation) }
    let hasFailed = !options.holdsPromises && !violations.isEmpty && hasFailed(store)
    let foundCorruption = !options.holdsPromises && store.statistics.corruptRecords > 0
    store.close()
    if hasFailed, !violations.contains(where: { $0.contains(Ledger.Violation.Kind.wrong.rawValue) }) { exit(4) }
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
    _ store: ResponseStore, content: Content, ledger: Ledger, options: Options
  ) -> [String] {
    var violations: [String] = []
    let keys = stride(from: 0, to: content.keyCount, by: max(1, content.keyCount / 24))
    for key in keys { ledger.store(key, in: store, content) }
    func compare(_ when: String) {
      for key in keys {
        let expected = ledger.accepted(key, by: 0)
        let found = store.lookup(content.requestKey(key)).flatMap { content.version(of: $0, key: key) }
        if found != expected {
          violations.append(
            "key \(key): stored again, but version \(found.map(String.init) ?? "none") was found \(when)")
        }
      }
    }
    compare("immediately")
    let accepted = ledger.beginFlush(by: 0)
    do {
      try store.flush()
    } catch {
      violations.append("flush failed: \(error)")
      return violations
    }
    ledger.endFlush(accepted, by: 0, isDurable: true)
    if !ledger.isEvicting { compare("after a flush") }
    ledger.purge(by: 0, isSoft: false, covers: { $0 == 0 }) {
      store.remove(content.requestKey(0))
      return true
    }
    if store.lookup(content.requestKey(0)) != nil { violations.append("key 0: removed, but still found") }
    // Corruption may leave records that no key refers to; eviction deletes them eventually.
    if options.holdsPromises { violations += store.checkInvariants().map { "invariant, after use: \($0)" } }
    return violations
  }
}

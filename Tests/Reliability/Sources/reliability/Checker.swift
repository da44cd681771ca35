import FoundationEssentials
import Glibc
import ResponseStore

/// The process that opens a store after something has happened to it, and compares it with the ledger.
enum Checker {
  struct Options {
    var keyCount: Int
    var capacity: Int
    var hostCount = Worker.hostCount
    /// Whether what was promised must hold; after damage only each byte that is found must be right.
    var holdsPromises = true
    /// Whether the ledger goes on from here.
    var settles = false
  }

  /// Exits with 0 when all is well, 1 when the store broke its word, 2 when it could not be opened, 4 when it found damage
  /// while running and gave itself up, 5 when it found damage, and misses some of what is stored anew or finds what it was before.
  static func run(directory: String, ledgerPath: String, options: Options) -> Never {
    let ledger = Ledger(path: ledgerPath, keyCount: options.keyCount)
    let content = Content(keyCount: options.keyCount, hostCount: options.hostCount, capacity: options.capacity)
    let store: ResponseStore
    do {
      store = try Worker.open(directory, capacity: options.capacity, ledger: ledger)
    } catch {
      say("cannot be opened: \(error)")
      exit(2)
    }
    var complaints: [String] = []
    if options.holdsPromises { complaints += store.checkInvariants().map { "invariant: \($0)" } }
    var foundCount = 0
    // Until the index of a large file is rebuilt, what it lacks is a miss. That is soon, and not at once beside other work.
    let patience = options.holdsPromises ? 2000 : 0
    var waits = 0
    for key in 0..<options.keyCount {
      var version: UInt64?
      while store.lookup(content.requestKey(key)) == nil, ledger.complaint(about: key, found: nil) != nil,
        waits < patience
      {
        waits += 1
        usleep(5000)
      }
      if let found = store.lookup(content.requestKey(key)) {
        version = content.version(of: found, key: key)
        if version == nil { complaints.append("key \(key): a wrong response is there") } else { foundCount += 1 }
      }
      if options.holdsPromises, let complaint = ledger.complaint(about: key, found: version) {
        complaints.append(complaint)
      }
      if options.settles { ledger.settle(key, found: version) }
    }
    store.forEachEntry { entry in
      if entry.key.bytes.isEmpty { complaints.append("an entry without a key") }
      return true
    }
    say("entries \(foundCount)")
    complaints += use(store, content: content, ledger: ledger, options: options)
    for complaint in complaints.prefix(20) { say(complaint) }
    let isGivenUp = !options.holdsPromises && !complaints.isEmpty && isGivenUp(store)
    let foundDamage = !options.holdsPromises && store.statistics.damagedRecords > 0
    store.close()
    if isGivenUp, !complaints.contains(where: { $0.contains("wrong response") }) { exit(4) }
    if foundDamage, !complaints.isEmpty, complaints.allSatisfy({ $0.contains(": stored anew, and ") }) { exit(5) }
    exit(complaints.isEmpty ? 0 : 1)
  }

  private static func isGivenUp(_ store: ResponseStore) -> Bool {
    do throws(StoreError) {
      try store.flush()
      return false
    } catch {
      // Busy: a thread is lost in a damaged list within liblmdb.
      return error.code == .givenUp || error.code == .busy
    }
  }

  /// Stores, removes and flushes a little: what was opened must also work.
  private static func use(
    _ store: ResponseStore, content: Content, ledger: Ledger, options: Options
  ) -> [String] {
    var complaints: [String] = []
    var versions: [Int: UInt64] = [:]
    for key in stride(from: 0, to: content.keyCount, by: max(1, content.keyCount / 24)) {
      let version = ledger.takeVersion()
      if options.settles { ledger[.started, key] = version }
      store.store(content.response(key, version: version, at: Ledger.date(version)))
      versions[key] = version
    }
    func compare(_ when: String) {
      for (key, version) in versions.sorted(by: { $0.key < $1.key }) {
        let found = store.lookup(content.requestKey(key)).flatMap { content.version(of: $0, key: key) }
        if found != version {
          complaints.append("key \(key): stored anew, and \(when) version \(found.map(String.init) ?? "none") is found")
        }
      }
    }
    compare("at once")
    do {
      try store.flush()
    } catch {
      complaints.append("flush failed: \(error)")
      return complaints
    }
    if !ledger.isEvicting { compare("after a flush") }
    guard let removed = versions.keys.min() else { return complaints }
    store.remove(content.requestKey(removed))
    if store.lookup(content.requestKey(removed)) != nil {
      complaints.append("key \(removed): removed, and still there")
    }
    versions[removed] = nil
    // Damage may leave records that no key leads to any more; eviction takes them away in time.
    if options.holdsPromises { complaints += store.checkInvariants().map { "invariant, after use: \($0)" } }
    if options.settles {
      for (key, version) in versions { ledger.settle(key, found: version) }
      ledger.settle(removed, found: nil)
      ledger.raise(.gone, removed, to: ledger[.started, removed])
    }
    return complaints
  }
}

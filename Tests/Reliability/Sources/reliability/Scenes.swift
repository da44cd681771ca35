import FoundationEssentials
import Glibc
import HTTPCaching
import LMDB
import ResponseStore

/// What single child processes of ``ProcessesSeries`` do.
enum Scenes {
  static func options(_ capacity: Int) -> ResponseStore.Options {
    var options = ResponseStore.Options(capacityByteCount: capacity)
    options.log = { say("log: \($0)") }
    return options
  }

  static func expect(_ condition: Bool, _ text: String) {
    if !condition { fail(text) }
  }

  private static func milliseconds(_ body: () throws(StoreError) -> Void) throws(StoreError) -> Int {
    let began = now()
    try body()
    return Int((now() - began) * 1000)
  }

  /// Fails if an invariant of the stored data does not hold.
  static func invariants(_ directory: String, capacity: Int) throws(StoreError) {
    let store = try ResponseStore.open(directory: directory, options: options(capacity))
    let violations = store.checkInvariants()
    expect(violations.isEmpty, violations.joined(separator: "\n"))
    store.close()
  }

  static func count(_ directory: String, capacity: Int) throws(StoreError) {
    let store = try ResponseStore.open(directory: directory, options: options(max(capacity, 4 << 20)))
    while store.statistics.queuedByteCount > 0 { usleep(1000) }
    say("\(store.entryCount)")
  }

  /// Beside a process that is stopped while it holds LMDB's write lock.
  static func besideStopped(_ directory: String, ledgerPath: String, capacity: Int) throws(StoreError) {
    let ledger = Ledger(path: ledgerPath, keyCount: Crowd.keyCount)
    let content = Content(keyCount: Crowd.keyCount, hostCount: Crowd.processCount, capacity: capacity)
    var timed = options(capacity)
    timed.stallTimeout = .seconds(1)
    timed.clock = { Ledger.date(ledger.time) }
    let store = try ResponseStore.open(directory: directory, options: timed)
    makeDirectory(directory + ".ready")
    while access(directory + ".go", F_OK) != 0 { usleep(1000) }
    let keys = stride(from: 0, to: Crowd.keyCount, by: Crowd.processCount)
    let found = keys.filter { store.lookup(content.requestKey($0)) != nil }
    expect(found.count > 1, "nothing can be read")
    say("others read on (\(found.count) responses)")
    let version = ledger.takeVersion()
    ledger[.started, found[0]] = version
    let storing = try milliseconds { () throws(StoreError) in
      store.store(content.response(found[0], version: version, at: Ledger.date(version)))
    }
    expect(storing < 500, "a store waited")
    expect(store.lookup(content.requestKey(found[0])) != nil, "what was stored cannot be read")
    let flushing = try milliseconds { () throws(StoreError) in
      do throws(StoreError) { try store.flush() } catch { expect(error.code == .busy, "flush: \(error)") }
    }
    let removed = ledger[.returned, found[1]]
    ledger[.removing, found[1]] = removed
    let removing = try milliseconds { () throws(StoreError) in store.remove(content.requestKey(found[1])) }
    ledger.raise(.gone, found[1], to: removed)
    expect(store.lookup(content.requestKey(found[1])) == nil, "what was removed can be read")
    expect(store.lookup(content.requestKey(found[0])) != nil, "what was not removed cannot be read")
    let closing = try milliseconds { () throws(StoreError) in store.close() }
    say("with a stallTimeout of 1 s a flush throws after \(flushing) ms")
    say("a removal holds after \(removing) ms, closing takes \(closing) ms")
    expect(flushing < 5000 && removing < 1000 && closing < 8000, "something waited too long")
  }

  /// Sets another capacity beside such a process.
  static func capacityBesideStopped(_ directory: String, capacity: Int, newCapacity: Int) throws(StoreError) {
    var timed = options(capacity)
    timed.stallTimeout = .seconds(1)
    let store = try ResponseStore.open(directory: directory, options: timed)
    // What the crowd left may be little: it purges, too.
    var count = 0
    while store.diskByteCount < capacity / 10 * 9, count < 200 {
      store.store(
        NewResponse(
          key: RequestKey(urlString: "http://filler.example/\(count)")!, status: 200, fields: HTTPFields([]),
          body: Data(repeating: 7, count: capacity / 100), facts: Content.facts(at: timed.clock()),
          vary: VarySelection(selectors: [])))
      try store.flush()
      count += 1
    }
    makeDirectory(directory + ".ready")
    while access(directory + ".go", F_OK) != 0 { usleep(1000) }
    let before = store.diskByteCount
    expect(before > newCapacity / 10 * 11, "only \(before) bytes are stored")
    let setting = try milliseconds { () throws(StoreError) in store.capacityByteCount = newCapacity }
    say("with a stallTimeout of 1 s setting it returns after \(setting) ms")
    expect(setting < 5000, "setting the capacity waited too long")
    let began = now()
    expect(store.diskByteCount > newCapacity / 10 * 11, "room was made beside a process that has the right to write")
    makeDirectory(directory + ".set")
    while store.diskByteCount > newCapacity / 10 * 11 {
      expect(now() - began < 20, "\(store.diskByteCount) bytes are still on disk")
      usleep(1000)
    }
    say(
      "it holds \(Int((now() - began) * 1000)) ms after the process is let go: \(before) bytes on disk become "
        + "\(store.diskByteCount)")
    try store.flush()
    store.close()
  }

  /// The capacity that a store has.
  static func capacity(_ directory: String) throws(StoreError) {
    say("\(try ResponseStore.open(directory: directory, options: .existing).capacityByteCount)")
  }

  /// Opening beside such a process.
  static func openBeside(_ directory: String, capacity: Int) throws(StoreError) {
    var timed = options(capacity)
    timed.openTimeout = .seconds(1)
    let began = now()
    do throws(StoreError) {
      _ = try ResponseStore.open(directory: directory, options: timed)
      fail("it was opened")
    } catch {
      expect(error.code == .busy, "opening: \(error)")
    }
    say("with an openTimeout of 1 s opening throws after \(Int((now() - began) * 1000)) ms")
  }

  static func fork(_ directory: String, capacity: Int) throws(StoreError) {
    let content = Content(keyCount: 100, hostCount: 1, capacity: capacity)
    let date = Ledger.date(1)
    let store = try ResponseStore.open(directory: directory, options: options(capacity))
    for key in 0..<100 { store.store(content.response(key, version: 1, at: date)) }
    // What the child is going to do, too, and by the store's threads twice: where another thread makes a type of Swift's runtime in the
    // moment of the fork, the child would wait for its lock without end.
    _ = store.lookup(content.requestKey(0))
    store.remove(content.requestKey(0))
    for capacity in [2 * capacity, capacity] {
      store.store(content.response(1, version: 1, at: date))
      try store.flush()
      store.capacityByteCount = capacity
    }
    typealias Fork = @convention(c) () -> pid_t
    let child = unsafeBitCast(dlsym(nil, "fork"), to: Fork.self)()
    if child == 0 {
      alarm(20)
      expect(store.lookup(content.requestKey(3)) == nil, "a forked child reads")
      store.store(content.response(3, version: 2, at: date))
      store.remove(content.requestKey(4))
      let anew = try ResponseStore.open(directory: directory, options: options(capacity))
      expect(anew !== store, "a forked child got its parent's store")
      expect(anew.lookup(content.requestKey(4)) != nil, "a forked child that opened anew does not read")
      anew.store(content.response(5, version: 3, at: date))
      try anew.flush()
      anew.close()
      exit(0)
    }
    var status: Int32 = 0
    waitpid(child, &status, 0)
    expect(status == 0, "the forked child ended with \(status)")
    let version = { (key: Int) in store.lookup(content.requestKey(key)).flatMap { content.version(of: $0, key: key) } }
    expect(version(3) == 1 && version(4) == 1 && version(5) == 3, "the parent finds the wrong responses")
    expect(store.checkInvariants().isEmpty, "invariants: \(store.checkInvariants())")
  }

  /// A store whose format record names another version, first with a user, then without.
  static func otherFormat(_ directory: String, capacity: Int) throws(StoreError) {
    let content = Content(keyCount: 100, hostCount: 1, capacity: capacity)
    do {
      let store = try ResponseStore.open(directory: directory, options: options(capacity))
      store.store(content.response(3, version: 1, at: Ledger.date(1)))
      store.close()
    }
    do throws(LMDBError) {
      let environment = try Environment.open(directory: directory, options: .init(mapByteCount: capacity * 2))
      let meta = try environment.table("meta", key: UTF8String.self, value: BytesCodec.self)
      try environment.write { (transaction) throws(LMDBError) in
        var record = try meta.value(for: "format", in: transaction) ?? []
        expect(record.count > 8, "the store has no format record")
        record[0] = 99
        _ = try meta.put(record, for: "format", in: transaction)
      }
      try environment.synchronize()
    } catch {
      fail("\(error)")
    }
    let user = Glibc.open(directory + "/users.lock", O_RDWR | O_CLOEXEC)
    expect(flock(user, LOCK_SH) == 0, "users.lock cannot be locked")
    do {
      _ = try ResponseStore.open(directory: directory, options: options(capacity))
      fail("a store of another version was opened while it is in use")
    } catch {
      expect(error.code == .otherVersionInUse, "\(error)")
    }
    close(user)
    let store = try ResponseStore.open(directory: directory, options: options(capacity))
    expect(store.lookup(content.requestKey(3)) == nil, "a record of another version was read")
    store.store(content.response(3, version: 1, at: Ledger.date(1)))
    try store.flush()
    expect(store.lookup(content.requestKey(3)) != nil, "nothing can be stored")
    expect(access(directory + "/data.mdb.other-version", F_OK) == 0, "the other version's data is gone")
  }
}

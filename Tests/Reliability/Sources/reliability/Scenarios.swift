import CacheModel
import FoundationEssentials
import Glibc
import HTTPCaching
import LMDB
import ResponseStore
import StoreContract

/// The child processes of ``ProcessesSeries`` and ``DiskFaults``.
enum Scenarios {
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

  /// Checks the invariants of the stored data and fails if one does not hold.
  static func invariants(_ directory: String, capacity: Int) throws(StoreError) {
    let store = try ResponseStore.open(directory: directory, options: options(capacity))
    let violations = store.checkInvariants()
    expect(violations.isEmpty, violations.joined(separator: "\n"))
    if let text = leftBodies(in: store) { fail(text) }
    store.close()
  }

  /// Waits until a store has freed the bodies that other processes have left. Returns a text if it does not.
  static func leftBodies(in store: ResponseStore) -> String? {
    let deadline = now() + 10
    while store.unfinishedBodyCount > 0, now() < deadline { usleep(1000) }
    let count = store.unfinishedBodyCount
    return count > 0 ? "\(count) bodies that ended processes have left, of \(store.arrivingByteCount) bytes" : nil
  }

  static func count(_ directory: String, capacity: Int) throws(StoreError) {
    let store = try ResponseStore.open(directory: directory, options: options(max(capacity, 4 << 20)))
    while store.statistics.queuedByteCount > 0 { usleep(1000) }
    say("\(store.entryCount)")
  }

  /// Uses a store while another process is suspended with LMDB's write lock.
  static func nextToSuspended(_ directory: String, ledgerPath: String, capacity: Int) throws(StoreError) {
    let ledger = Ledger(path: ledgerPath, keyCount: ConcurrentWorker.keyCount)
    let content = Content(
      keyCount: ConcurrentWorker.keyCount, hostCount: ConcurrentWorker.processCount, capacity: capacity)
    var timed = options(capacity)
    timed.stallTimeout = .seconds(1)
    timed.clock = { Ledger.date(ledger.position) }
    let store = try ResponseStore.open(directory: directory, options: timed)
    makeDirectory(directory + ".ready")
    while access(directory + ".go", F_OK) != 0 { usleep(1000) }
    let keys = stride(from: 0, to: ConcurrentWorker.keyCount, by: ConcurrentWorker.processCount)
    let found = keys.filter { store.lookup(content.requestKey($0)) != nil }
    expect(found.count > 1, "lookups do not continue")
    say("other processes read \(found.count) responses")
    let storing = try milliseconds { () throws(StoreError) in ledger.store(found[0], in: store, content) }
    expect(storing < 500, "store(_:) waited")
    expect(store.lookup(content.requestKey(found[0])) != nil, "a stored response cannot be read")
    let flushing = try milliseconds { () throws(StoreError) in
      do throws(StoreError) { try store.flush() } catch { expect(error.code == .busy, "flush: \(error)") }
    }
    let removal = ledger.beginPurge(by: 0, isSoft: false) { $0 == found[1] }
    let removing = try milliseconds { () throws(StoreError) in store.remove(content.requestKey(found[1])) }
    ledger.end(removal)
    expect(store.lookup(content.requestKey(found[1])) == nil, "a removed response can be read")
    expect(store.lookup(content.requestKey(found[0])) != nil, "a response that was not removed cannot be read")
    let closing = try milliseconds { () throws(StoreError) in store.close() }
    say("with a stallTimeout of 1 s, a flush throws after \(flushing) ms")
    say("a removal takes effect after \(removing) ms, closing takes \(closing) ms")
    expect(flushing < 5000 && removing < 1000 && closing < 8000, "an operation waited too long")
  }

  /// Sets another capacity while another process is suspended with LMDB's write lock.
  static func capacityNextToSuspended(_ directory: String, capacity: Int, newCapacity: Int) throws(StoreError) {
    var timed = options(capacity)
    timed.stallTimeout = .seconds(1)
    let store = try ResponseStore.open(directory: directory, options: timed)
    // Fill the store, because the concurrent workers may have purged most of it.
    var count = 0
    while store.diskByteCount < capacity / 10 * 9, count < 200 {
      store.store(
        CacheableResponse(
          status: 200, fields: HeaderFields([]), body: Data(repeating: 7, count: capacity / 100),
          freshness: Content.freshness(at: timed.clock()), vary: VaryKey(fields: [])),
        for: RequestKey(urlString: "http://filler.example/\(count)")!)
      try store.flush()
      count += 1
    }
    makeDirectory(directory + ".ready")
    while access(directory + ".go", F_OK) != 0 { usleep(1000) }
    let before = store.diskByteCount
    expect(before > newCapacity / 10 * 11, "only \(before) bytes are stored")
    let setting = try milliseconds { () throws(StoreError) in store.capacityByteCount = newCapacity }
    say("with a stallTimeout of 1 s, setting the capacity returns after \(setting) ms")
    expect(setting < 5000, "setting the capacity waited too long")
    let began = now()
    expect(store.diskByteCount > newCapacity / 10 * 11, "space was freed while another process has the write lock")
    makeDirectory(directory + ".set")
    while store.diskByteCount > newCapacity / 10 * 11 {
      expect(now() - began < 20, "\(store.diskByteCount) bytes are still on disk")
      usleep(1000)
    }
    say(
      "it takes effect \(Int((now() - began) * 1000)) ms after the process resumes or is killed: "
        + "\(before) bytes on disk become \(store.diskByteCount)")
    try store.flush()
    store.close()
  }

  /// Prints the capacity of a store.
  static func capacity(_ directory: String) throws(StoreError) {
    say("\(try ResponseStore.open(directory: directory, options: .existing).capacityByteCount)")
  }

  /// Opens a store while another process is suspended with LMDB's write lock.
  static func openSecond(_ directory: String, capacity: Int) throws(StoreError) {
    var timed = options(capacity)
    timed.openTimeout = .seconds(1)
    let began = now()
    do throws(StoreError) {
      _ = try ResponseStore.open(directory: directory, options: timed)
      fail("the store was opened")
    } catch {
      expect(error.code == .busy, "opening: \(error)")
    }
    say("with an openTimeout of 1 s, opening throws after \(Int((now() - began) * 1000)) ms")
  }

  /// Forks and checks that the child cannot use its parent's store but can open the directory itself.
  static func fork(_ directory: String, capacity: Int) throws(StoreError) {
    let content = Content(keyCount: 100, hostCount: 1, capacity: capacity)
    let date = Ledger.date(1)
    let store = try ResponseStore.open(directory: directory, options: options(capacity))
    for key in 0..<100 { store.store(content.response(key, version: 1, at: date)) }
    // Do everything that the child will do, so that the runtime has instantiated all types before the fork.
    // Otherwise the child could wait forever for a runtime lock that another thread held during the fork.
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
      expect(store.lookup(content.requestKey(3)) == nil, "a forked child reads through its parent's store")
      store.store(content.response(3, version: 2, at: date))
      store.remove(content.requestKey(4))
      let reopened = try ResponseStore.open(directory: directory, options: options(capacity))
      expect(reopened !== store, "a forked child got its parent's store")
      expect(reopened.lookup(content.requestKey(4)) != nil, "a forked child cannot read through its own store")
      reopened.store(content.response(5, version: 3, at: date))
      try reopened.flush()
      reopened.close()
      exit(0)
    }
    var status: Int32 = 0
    waitpid(child, &status, 0)
    expect(status == 0, "the forked child exited with status \(status)")
    let version = { (key: Int) in store.lookup(content.requestKey(key)).flatMap { content.version(of: $0, key: key) } }
    expect(version(3) == 1 && version(4) == 1 && version(5) == 3, "the parent finds the wrong responses")
    expect(store.checkInvariants().isEmpty, "invariants: \(store.checkInvariants())")
  }

  /// Opens a store of another format version, first while it is in use, then while it is not.
  static func otherFormat(_ directory: String, capacity: Int) throws(StoreError) {
    let content = Content(keyCount: 100, hostCount: 1, capacity: capacity)
    do {
      let store = try ResponseStore.open(directory: directory, options: options(capacity))
      store.store(content.response(3, version: 1, at: Ledger.date(1)))
      store.close()
    }
    do throws(LMDBError) {
      let environment = try LMDBEnvironment.open(
        directory: directory + "/data-1", options: .init(mapByteCount: capacity * 2))
      let meta = try environment.table("meta", key: UTF8Codec.self, value: BytesCodec.self)
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
      fail("a store of another version was opened while it was in use")
    } catch {
      expect(error.code == .otherVersionInUse, "\(error)")
    }
    close(user)
    let store = try ResponseStore.open(directory: directory, options: options(capacity))
    expect(store.lookup(content.requestKey(3)) == nil, "a record of another version was read")
    store.store(content.response(3, version: 1, at: Ledger.date(1)))
    try store.flush()
    expect(store.lookup(content.requestKey(3)) != nil, "the recreated store does not store")
    expect(access(directory + "/data-1", F_OK) != 0, "the other version's data was not deleted")
  }
}

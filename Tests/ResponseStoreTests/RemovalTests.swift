import Foundation
import HTTPCaching
import LMDB
import Testing

@testable import ResponseStore

@Suite("Removals")
struct RemovalTests {
  @Test("Since a date is strictly newer, to the last bit of a Date", arguments: [false, true])
  func strictlyNewer(isCommitted: Bool) throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    let start = fixture.clock.now
    let step = start.timeIntervalSinceReferenceDate.ulp
    for number in 0..<10 {
      fixture.clock.set(
        Date(timeIntervalSinceReferenceDate: start.timeIntervalSinceReferenceDate + Double(number) * step))
      fixture.store.store(fixture.response("http://a.example/\(number)"))
    }
    if isCommitted { fixture.drain() }
    fixture.store.removeResponses(
      since: Date(timeIntervalSinceReferenceDate: start.timeIntervalSinceReferenceDate + 4 * step))
    for number in 0..<10 { #expect((fixture.body("http://a.example/\(number)") != nil) == (number <= 4)) }
    fixture.drain()
    #expect(fixture.store.entryCount == 5)
  }

  @Test("Dates before and after 2001 keep their order on disk")
  func orderedTime() {
    let times = [-1e300, -1e9, -1, -1e-9, -0.0, 0.0, 1e-9, 1, 8e8, 8e8.nextUp, 1e300]
    let encoded = times.map { OrderedTime.encode(Date(timeIntervalSinceReferenceDate: $0)) }
    #expect(encoded == encoded.sorted())
    for (time, code) in zip(times, encoded) { #expect(OrderedTime.decode(code).timeIntervalSinceReferenceDate == time) }
  }

  @Test("Removing a queued response does not bring back the one that it was to replace")
  func replacedStaysGone() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    fixture.store.store(fixture.response("http://a.example/", body: Data("old".utf8)))
    fixture.drain()
    let moment = fixture.clock.now
    fixture.clock.advance(by: 1)
    fixture.store.store(fixture.response("http://a.example/", body: Data("new".utf8)))
    fixture.store.removeResponses(since: moment)
    #expect(fixture.body("http://a.example/") == nil)
    fixture.drain()
    #expect(fixture.body("http://a.example/") == nil)
  }

  @Test("A reader of an older snapshot does not see what a purge, finished since, hid")
  func olderSnapshot() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    for number in 0..<400 { fixture.store.store(fixture.response("http://a.example/\(number)")) }
    while fixture.store.writePending() {}
    fixture.store.removeAll()
    let store = fixture.store
    let key = fixture.key("http://a.example/1")
    let purgeCount = try store.file.environment.read { transaction throws(LMDBError) in
      // Another thread sees the purge finished while this snapshot still has all rows.
      let isFinished = DispatchSemaphore(value: 0)
      Thread {
        while store.maintain() {}
        _ = store.lookup(key)
        isFinished.signal()
      }.start()
      isFinished.wait()
      return try store.removals.purges(in: transaction).count
    }
    #expect(purgeCount == 1)
    #expect(store.entryCount == 0)
  }

  @Test("A hundred thousand characters of URL are stored, found and removed")
  func longURL() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    let long = "http://a.example/" + String(repeating: "x", count: 100_000)
    for end in ["1", "2"] { fixture.store.store(fixture.response(long + end, body: Data(end.utf8))) }
    fixture.drain()
    #expect(fixture.body(long + "1") == Data("1".utf8))
    #expect(fixture.body(long + "2") == Data("2".utf8))
    fixture.store.store(fixture.response(long + "3"))
    fixture.store.remove(fixture.key(long + "1"))
    #expect(fixture.body(long + "1") == nil)
    #expect(fixture.body(long + "3") != nil)
    fixture.drain()
    #expect(fixture.body(long + "3") != nil)
    fixture.store.removeResponses(withPrefix: URL(string: long)!)
    #expect(fixture.store.entryCount == 0)
  }

  @Test("More removals than the log holds are all in force, and what it has forgotten counts as removed")
  func logOverflow() throws {
    // Where syncing costs nothing, if there is such a place.
    let memory = FileManager.default.isWritableFile(atPath: "/dev/shm") ? "/dev/shm/store-\(UUID().uuidString)" : nil
    let fixture = try StoreFixture(capacity: 1 << 20, directory: memory)
    defer { fixture.finish() }
    let key = fixture.key("http://a.example/")
    var snapshot = fixture.store.snapshot
    let storedAt = fixture.clock.now
    let other = fixture.key("http://b.example/")
    for _ in 0..<(RemovalView.longestMemory / 2) { fixture.store.remove(other) }
    var copy = snapshot
    #expect(!fixture.store.wasRemoved(key, storedAt: storedAt, groups: { [] }, since: &copy))
    for _ in 0..<RemovalView.longestMemory {
      fixture.store.remove(fixture.key("http://b.example/" + String(repeating: "x", count: 9000)))
    }
    #expect(fixture.store.wasRemoved(key, storedAt: storedAt, groups: { [] }, since: &snapshot))
    #expect(!fixture.store.wasRemoved(key, storedAt: storedAt, groups: { [] }, since: &snapshot))
    // The log has left room for what matters.
    fixture.store.store(fixture.response("http://a.example/", body: pseudorandomData(50_000, seed: 1)))
    fixture.drain()
    #expect(fixture.body("http://a.example/") != nil)
  }

  @Test("Removals do not wait for a writer; when their log is full and nothing is written, the store is given up")
  func besideAWriterThatHangs() throws {
    let fixture = try StoreFixture(capacity: 1 << 20, background: true) { $0.stallTimeout = .milliseconds(50) }
    for number in 0..<100 { fixture.store.store(fixture.response("http://a.example/\(number)")) }
    try fixture.store.flush()
    let keys = (0...fixture.store.removalLog.slotCount).map { fixture.key("http://a.example/\($0)") }
    try removeWhileAnotherWrites(keys, fixture.store)
    fixture.close()
    try fixture.open()
    for number in 0..<100 { #expect(fixture.body("http://a.example/\(number)") == nil) }
    fixture.finish()
  }

  private func removeWhileAnotherWrites(_ keys: [RequestKey], _ store: ResponseStore) throws {
    try store.file.environment.write { (_) throws(LMDBError) in
      // On another thread, as this one has the right to write. It is waited for to its end, where it lets go of the store.
      let thread = BackgroundThread {
        for key in keys.dropLast() {
          store.remove(key)
          #expect(store.lookup(key) == nil)
        }
        #expect(store.lookup(keys[keys.count - 1]) != nil)
        #expect(!store.isCondemned)
        store.remove(keys[keys.count - 1])
        #expect(store.lookup(keys[keys.count - 1]) == nil)
        #expect(store.isCondemned)
      }
      #expect(thread?.join { $0.wait { $0 ? true : nil } ?? false } == true)
    }
  }

  @Test("What was removed and not yet deleted stays hidden in the next process", arguments: [false, true])
  func reopened(isLogDamaged: Bool) throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    for number in 0..<10 { fixture.store.store(fixture.response("http://a.example/\(number)")) }
    fixture.drain()
    // As a process leaves it that is killed right after the removal.
    try fixture.store.removalLog.append(.key(fixture.key("http://a.example/3").bytes), timeout: .seconds(1)) {}
    #expect(fixture.body("http://a.example/3") == nil)
    fixture.close()
    let path = fixture.path(RemovalLog.name)
    if isLogDamaged {
      var log = try Data(contentsOf: URL(fileURLWithPath: path))
      log[RemovalLog.headerByteCount + RemovalLog.slotByteCount + 30] ^= 1
      try log.write(to: URL(fileURLWithPath: path))
    }
    try fixture.open()
    #expect(fixture.body("http://a.example/3") == nil)
    // Of a log that cannot be read nobody knows what it hid.
    #expect((fixture.body("http://a.example/4") == nil) == isLogDamaged)
    #expect(fixture.logged.all.count == (isLogDamaged ? 1 : 0))
    fixture.drain()
    #expect(fixture.store.entryCount == (isLogDamaged ? 0 : 9))
    fixture.store.store(fixture.response("http://a.example/3"))
    fixture.drain()
    #expect(fixture.body("http://a.example/3") != nil)
  }

  @Test("A log of removals that is missing, foreign or cut short takes everything with it", arguments: 0..<4)
  func lostLog(damage: Int) throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    fixture.store.store(fixture.response("http://a.example/1"))
    fixture.drain()
    fixture.close()
    let url = URL(fileURLWithPath: fixture.path(RemovalLog.name))
    switch damage {
    case 0: try FileManager.default.removeItem(at: url)
    case 1: try Data("something else".utf8).write(to: url)
    case 2: try Data(contentsOf: url).dropLast(1).write(to: url)
    default: try Data(count: RemovalLog.byteCount(slotCount: 64)).write(to: url)
    }
    try fixture.open()
    #expect(fixture.body("http://a.example/1") == nil)
    #expect(fixture.logged.all.count == 1)
    fixture.store.store(fixture.response("http://a.example/1"))
    fixture.drain()
    try fixture.reopen()
    #expect(fixture.body("http://a.example/1") != nil)
  }

  @Test("Many threads that remove at once share the log, and each finds its own gone")
  func manyThreads() async throws {
    let fixture = try StoreFixture(background: true)
    defer { fixture.finish() }
    let store = fixture.store
    for number in 0..<200 { store.store(fixture.response("http://a.example/\(number)")) }
    try store.flush()
    let keys = (0..<200).map { fixture.key("http://a.example/\($0)") }
    let before = store.snapshot
    await withTaskGroup(of: Bool.self) { group in
      for thread in 0..<4 {
        group.addTask {
          (0..<25).allSatisfy { number in
            let key = keys[thread * 50 + number]
            store.remove(key)
            return store.lookup(key) == nil && store.lookup(keys[thread * 50 + 25 + number]) != nil
          }
        }
      }
      for await isRight in group { #expect(isRight) }
    }
    #expect(store.snapshot - before == 100)
  }

  @Test("A copy in memory is told of removals by key, date, host and group")
  func copies() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    let store = fixture.store
    let key = fixture.key("http://a.example/x")
    let storedAt = fixture.clock.now
    func isRemoved(_ removal: () -> Void) -> Bool {
      var snapshot = store.snapshot
      removal()
      return store.wasRemoved(key, storedAt: storedAt, groups: { ["g"] }, since: &snapshot)
    }
    #expect(isRemoved { store.remove(key) })
    #expect(!isRemoved { store.remove(fixture.key("http://a.example/y")) })
    #expect(isRemoved { store.removeResponses(since: storedAt - 1) })
    #expect(!isRemoved { store.removeResponses(since: storedAt) })
    #expect(isRemoved { store.removeResponses(forHost: "a.example") })
    #expect(isRemoved { store.removeResponses(inGroup: "g", origin: URL(string: "http://a.example")!) })
    #expect(!isRemoved { store.removeResponses(inGroup: "g", origin: URL(string: "https://a.example")!) })
    #expect(isRemoved { store.removeAll() })
  }

  @Test("Much that was removed takes no room on the disk any more")
  func diskUse() throws {
    let fixture = try StoreFixture(capacity: 16 << 20)
    defer { fixture.finish() }
    for number in 0..<500 {
      fixture.store.store(fixture.response("http://a.example/\(number)", body: pseudorandomData(20_000, seed: 1)))
    }
    fixture.drain()
    #expect(fixture.store.diskByteCount > 9 << 20)
    fixture.store.removeAll()
    fixture.drain()
    #expect(fixture.store.entryCount == 0)
    #expect(fixture.store.diskByteCount < 1 << 20)
    fixture.store.store(fixture.response("http://a.example/", body: pseudorandomData(100_000, seed: 2)))
    fixture.drain()
    #expect(fixture.body("http://a.example/") == pseudorandomData(100_000, seed: 2))
  }
}

import CacheModel
import Foundation
import HTTPCaching
import LMDB
import ResponseStore
import Testing

@Suite("Removals", .endsFixtures)
struct RemovalTests {
  @Test(
    "A removal since a date covers strictly newer responses, at the full precision of a Date", arguments: [false, true])
  func strictlyNewer(isCommitted: Bool) throws {
    let fixture = try StoreFixture()
    let start = fixture.clock.now
    let step = start.timeIntervalSinceReferenceDate.ulp
    for number in 0..<10 {
      fixture.clock.set(
        Date(timeIntervalSinceReferenceDate: start.timeIntervalSinceReferenceDate + Double(number) * step))
      fixture.store.store(fixture.response("http://a.example/\(number)"))
    }
    if isCommitted { fixture.drain() }
    fixture.store.remove(.since(Date(timeIntervalSinceReferenceDate: start.timeIntervalSinceReferenceDate + 4 * step)))
    for number in 0..<10 { #expect((fixture.body("http://a.example/\(number)") != nil) == (number <= 4)) }
    fixture.drain()
    #expect(fixture.store.entryCount == 5)
  }

  @Test("A URL of 100,000 characters is stored, found and removed")
  func longURL() throws {
    let fixture = try StoreFixture()
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
    fixture.store.remove(.urlPrefix(URL(string: long)!)!)
    #expect(fixture.store.entryCount == 0)
  }

  /// A scope of a URL, of its prefix, or of its key.
  enum URLScope: CaseIterable, Sendable {
    case prefix, target, key

    func scope(_ url: URL) throws -> RemovalScope {
      switch self {
      case .prefix: try #require(.urlPrefix(url))
      case .target: try #require(.target(of: url))
      case .key: .key(try #require(RequestKey(url: url)).bytes)
      }
    }
  }

  @Test(
    "A removal covers a URL regardless of the case of percent-encoding's digits", arguments: URLScope.allCases,
    [0, 10_000])
  func percentEncoding(_ kind: URLScope, byteCount: Int) throws {
    let fixture = try StoreFixture()
    let padding = String(repeating: "x", count: byteCount)
    let spellings = ["%d8%af", "%D8%AF", "%d8%Af"].map { "http://a.example/\(padding)\($0)" }
    let others = ["%D8%AE", "D8AF", "%d9"].map { "http://a.example/\(padding)\($0)" }
    for spelling in spellings {
      for stored in spellings {
        for url in others + [stored] { fixture.store.store(fixture.response(url)) }
        #expect(fixture.body(spelling) != nil)
        let scope = try kind.scope(try #require(URL(string: spelling)))
        fixture.store.remove(scope)
        #expect(fixture.body(stored) == nil)
        for url in others { #expect(fixture.body(url) != nil) }
      }
    }
    fixture.drain()
  }

  @Test(
    "A tag or a cache group with a name of any length is purged alone", arguments: [32, 10_000],
    [(false, false), (false, true), (true, false), (true, true)])
  func tagWithALongName(byteCount: Int, _ state: (isCommitted: Bool, isGroup: Bool)) throws {
    let (isCommitted, isGroup) = state
    let fixture = try StoreFixture()
    let names = ["1", "2"].map { String(repeating: "x", count: byteCount - 1) + $0 }
    for (number, name) in names.enumerated() {
      let fields: HeaderFields = isGroup ? ["Cache-Groups": "\"\(name)\""] : ["xkey": name]
      fixture.store.store(fixture.response("http://a.example/\(number)", fields: fields))
    }
    fixture.store.store(fixture.response("http://a.example/2"))
    if isCommitted { fixture.drain() }
    let origin = try #require(URL(string: "http://a.example/"))
    let scope = try #require(isGroup ? RemovalScope.group(names[0], ofOrigin: origin) : .tag(names[0], in: ["xkey"]))
    fixture.store.remove(scope)
    for round in 0..<2 {
      #expect(fixture.body("http://a.example/0") == nil)
      for number in 1...2 { #expect(fixture.body("http://a.example/\(number)") != nil, "in round \(round)") }
      fixture.drain()
    }
    #expect(fixture.store.entryCount == 2)
  }

  @Test("More removals than the log holds all take effect, and forgotten ones count as covering everything")
  func logOverflow() throws {
    let fixture = try StoreFixture(capacity: 1 << 20)
    let key = fixture.key("http://a.example/")
    var token = fixture.store.removalToken
    let storedAt = fixture.clock.now
    let other = Removal(.key(fixture.key("http://b.example/").bytes))
    // Fewer at a time than the log holds. A process knows the last 4,096.
    let some = [Removal](repeating: other, count: 32)
    for _ in 0..<64 { #expect(fixture.store.removeDurably(some) != nil) }
    var copy = token
    func effect(since token: inout RemovalToken) -> RemovalEffect {
      fixture.store.effectOfRemovals(on: key, storedAt: storedAt, fields: { [:] }, since: &token)
    }
    #expect(effect(since: &copy) == .none)
    for _ in 0..<64 { #expect(fixture.store.removeDurably(some) != nil) }
    for _ in 0..<100 { fixture.store.remove(fixture.key("http://b.example/" + String(repeating: "x", count: 9000))) }
    #expect(effect(since: &token) == .removed)
    #expect(effect(since: &token) == .none)
    // The removals use little of the capacity.
    fixture.store.store(fixture.response("http://a.example/", body: pseudorandomData(50_000, seed: 1)))
    fixture.drain()
    #expect(fixture.body("http://a.example/") != nil)
  }

  @Test("Removals do not wait for a writer; if the log is full and no process commits, the store fails")
  func duringAWriteThatHangs() throws {
    let fixture = try StoreFixture(capacity: 1 << 20, background: true) { $0.stallTimeout = .milliseconds(50) }
    for number in 0..<100 { fixture.store.store(fixture.response("http://a.example/\(number)")) }
    try fixture.flush()
    let keys = (0...fixture.store.removalFrameCount).map { fixture.key("http://a.example/\($0)") }
    try removeWhileAnotherWrites(keys, fixture.store)
    fixture.close()
    try openWhenReleased(fixture)
    for number in 0..<100 { #expect(fixture.body("http://a.example/\(number)") == nil) }
  }

  /// Closing does not wait longer than the stall timeout. On a busy machine, a thread releases the failed store later.
  private func openWhenReleased(_ fixture: StoreFixture) throws {
    let deadline = ContinuousClock.now + .seconds(30)
    while true {
      do {
        return try fixture.open()
      } catch let error as StoreError where .now < deadline {
        guard error.reason.contains("still open") else { throw error }
        sched_yield()
      }
    }
  }

  private func removeWhileAnotherWrites(_ keys: [RequestKey], _ store: ResponseStore) throws {
    try store.environment.write { (_) throws(LMDBError) in
      // Runs on another thread because this one holds the write lock. Joined, so that the thread has released the
      // store.
      let thread = BackgroundThread {
        for key in keys.dropLast() {
          store.remove(key)
          #expect(store.lookup(key) == nil)
        }
        #expect(store.lookup(keys[keys.count - 1]) != nil)
        #expect(!store.hasFailed)
        store.remove(keys[keys.count - 1])
        #expect(store.lookup(keys[keys.count - 1]) == nil)
        #expect(store.hasFailed)
      }
      #expect(thread?.join { $0.wait { $0 ? true : nil } ?? false } == true)
    }
  }

  @Test("Removed responses that are not deleted yet stay hidden in the next process", arguments: [false, true])
  func reopened(isLogDamaged: Bool) throws {
    let fixture = try StoreFixture()
    for number in 0..<10 { fixture.store.store(fixture.response("http://a.example/\(number)")) }
    fixture.drain()
    try fixture.store.logOnly(Removal(.key(fixture.key("http://a.example/3").bytes)))
    #expect(fixture.body("http://a.example/3") == nil)
    fixture.close()
    let path = fixture.dataPath("LMDBURLCache.removals")
    if isLogDamaged {
      var log = try Data(contentsOf: URL(fileURLWithPath: path))
      log[4096 + 512 + 30] ^= 1
      try log.write(to: URL(fileURLWithPath: path))
    }
    try fixture.open()
    #expect(fixture.body("http://a.example/3") == nil)
    // With an unreadable log it is unknown which responses were removed.
    #expect((fixture.body("http://a.example/4") == nil) == isLogDamaged)
    #expect(fixture.logged.all.count == (isLogDamaged ? 1 : 0))
    fixture.drain()
    #expect(fixture.store.entryCount == (isLogDamaged ? 0 : 9))
    fixture.store.store(fixture.response("http://a.example/3"))
    fixture.drain()
    #expect(fixture.body("http://a.example/3") != nil)
  }

  private func scribble(_ frames: [Int], of fixture: StoreFixture) throws {
    let url = URL(fileURLWithPath: fixture.dataPath("LMDBURLCache.removals"))
    var log = try Data(contentsOf: url)
    for frame in frames { log[4096 + frame * 512 + 30] ^= 1 }
    try log.write(to: url)
  }

  @Test("Inspecting a store with a corrupt removal log changes nothing and announces the effect of the next open")
  func lookAtScribbledLog() throws {
    let fixture = try StoreFixture()
    fixture.store.store(fixture.response("http://a.example/1"))
    fixture.drain()
    fixture.close()
    try scribble([7], of: fixture)
    #expect {
      _ = try ResponseStore.open(directory: fixture.directory, options: .existing)
    } throws: { error in
      let error = error as? StoreError
      return error?.code == .corrupt && error?.reason == "LMDBURLCache.removals is missing or corrupt"
        && error?.remedy.contains("starts empty") == true
    }
    try fixture.open()
    #expect(fixture.body("http://a.example/1") == nil)
    fixture.close()
    try ResponseStore.open(directory: fixture.directory, options: .existing).close()
  }

  @Test("If the removal log is missing, foreign or truncated, the store starts empty", arguments: 0..<4)
  func lostLog(damage: Int) throws {
    let fixture = try StoreFixture()
    fixture.store.store(fixture.response("http://a.example/1"))
    fixture.drain()
    fixture.close()
    let url = URL(fileURLWithPath: fixture.dataPath("LMDBURLCache.removals"))
    switch damage {
    case 0: try FileManager.default.removeItem(at: url)
    case 1: try Data("something else".utf8).write(to: url)
    case 2: try Data(contentsOf: url).dropLast(1).write(to: url)
    default: try Data(count: 4096 + 64 * 512).write(to: url)
    }
    try fixture.open()
    #expect(fixture.body("http://a.example/1") == nil)
    #expect(fixture.logged.all.count == 1)
    fixture.store.store(fixture.response("http://a.example/1"))
    fixture.drain()
    try fixture.reopen()
    #expect(fixture.body("http://a.example/1") != nil)
  }

  @Test("A copy in memory is invalid after removals by key, date, host and group")
  func copies() throws {
    let fixture = try StoreFixture()
    let store = fixture.store
    let key = fixture.key("http://a.example/x")
    let storedAt = fixture.clock.now
    func isRemoved(_ removal: () -> Void) -> Bool {
      var token = store.removalToken
      removal()
      return store.effectOfRemovals(on: key, storedAt: storedAt, fields: { ["Cache-Groups": "\"g\""] }, since: &token)
        == .removed
    }
    #expect(isRemoved { store.remove(key) })
    #expect(!isRemoved { store.remove(fixture.key("http://a.example/y")) })
    #expect(isRemoved { store.remove(.since(storedAt - 1)) })
    #expect(!isRemoved { store.remove(.since(storedAt)) })
    #expect(isRemoved { store.remove(.host("a.example")) })
    #expect(isRemoved { store.remove(.group("g", ofOrigin: URL(string: "http://a.example")!)!) })
    #expect(!isRemoved { store.remove(.group("g", ofOrigin: URL(string: "https://a.example")!)!) })
    #expect(isRemoved { store.remove(.everything) })
  }

  @Test("Several removals of another machine are in force after one sync of the removal log")
  func severalRemovals() throws {
    let fixture = try StoreFixture()
    let urls = (0..<200).map { "http://a.example/\($0)" }
    for url in urls { fixture.store.store(fixture.response(url)) }
    fixture.store.store(fixture.response("http://a.example/kept"))
    let disk = try FailingDisk(path: fixture.dataPath("LMDBURLCache.removals"))
    defer { disk.remove() }
    let number = fixture.store.removeDurably(urls.map { Removal(.key(fixture.key($0).bytes)) })
    #expect(number == 200)
    #expect(disk.syncCount == 1)
    #expect(urls.allSatisfy { fixture.body($0) == nil })
    #expect(fixture.body("http://a.example/kept") != nil)
    // They are durable: after a power failure the log has them.
    try fixture.reopen()
    #expect(fixture.store.removalToken & 0xFFFF == 200)
  }

  @Test("Removed responses no longer use disk space")
  func diskUse() throws {
    let fixture = try StoreFixture(capacity: 16 << 20)
    for number in 0..<500 {
      fixture.store.store(fixture.response("http://a.example/\(number)", body: pseudorandomData(20_000, seed: 1)))
    }
    fixture.drain()
    #expect(fixture.store.diskByteCount > 9 << 20)
    fixture.store.remove(.everything)
    fixture.drain()
    #expect(fixture.store.entryCount == 0)
    #expect(fixture.store.diskByteCount < 1 << 20)
    fixture.store.store(fixture.response("http://a.example/", body: pseudorandomData(100_000, seed: 2)))
    fixture.drain()
    #expect(fixture.body("http://a.example/") == pseudorandomData(100_000, seed: 2))
  }

  @Test("A removal by tag deletes or marks its records among many of several hosts", arguments: [false, true])
  func tagAmongMany(isSoft: Bool) throws {
    let fixture = try StoreFixture()
    let urls = (0..<1500).map { "http://\($0 % 5).example/\($0)" }
    for (number, url) in urls.enumerated() {
      fixture.store.store(fixture.response(url, fields: ["xkey": "all t\(number % 7)"]))
    }
    fixture.drain()
    for tag in ["t3", "t5", "t"] {
      let scope = try #require(RemovalScope.tag(tag, in: ["xkey"]))
      if isSoft { fixture.store.softPurge(scope) } else { fixture.store.remove(scope) }
    }
    for _ in 0..<2 {
      for (number, url) in urls.enumerated() {
        let found = fixture.store.lookup(fixture.key(url))
        let isCovered = [3, 5].contains(number % 7)
        #expect((found == nil) == (isCovered && !isSoft))
        #expect((found?.freshness.flags.contains(.softPurged) ?? isCovered) == isCovered)
      }
      fixture.drain()
    }
    #expect(fixture.store.removalOverview { _, _ in }?.removals.isEmpty == true)
    #expect(fixture.store.entryCount == (isSoft ? 1500 : urls.indices.count { ![3, 5].contains($0 % 7) }))
  }
}

import Foundation
import HTTPCaching
import LMDB
import Testing

@testable import CacheModel
@testable import ResponseStore

@Suite("Soft purges of a store")
struct SoftPurgeTests {
  /// A scope that covers `http://a.example/dir/x`, and not `http://b.example/`.
  enum Scope: CaseIterable, Sendable {
    case since, host, prefix, longPrefix, group, url, key

    func scope(_ fixture: StoreFixture) -> RemovalScope {
      let url = SoftPurgeTests.covered
      return switch self {
      case .since: .since(fixture.clock.now - 30)
      case .host: .host("a.example")
      case .prefix: .urlPrefix(URL(string: "http://a.example/dir/")!)!
      case .longPrefix: .urlPrefix(URL(string: "http://a.example/dir/" + String(repeating: "x", count: 500))!)!
      case .group: .group("g", ofOrigin: URL(string: url)!)!
      case .url: .target(of: URL(string: url)!)!
      case .key: .key(fixture.key(url).bytes)
      }
    }
  }

  private static let covered = "http://a.example/dir/" + String(repeating: "x", count: 600)
  private static let other = "http://b.example/"

  /// Stores a covered response, and another one a minute earlier.
  private static func store(in fixture: StoreFixture, body: Data = Data("body".utf8)) {
    fixture.store.store(fixture.response(other))
    fixture.clock.advance(by: 60)
    var response = fixture.response(covered, body: body, fields: ["Cache-Groups": "\"g\"", "ETag": "\"1\""])
    response.freshness = fixture.freshness(lifetime: 1000)
    response.freshness.flags = [.strongETag]
    fixture.store.store(response)
    fixture.clock.advance(by: 10)
  }

  private static func isSoftPurged(_ fixture: StoreFixture, _ url: String) -> Bool? {
    fixture.store.lookup(fixture.key(url)).map { $0.freshness.flags.contains(.softPurged) }
  }

  /// Logs a soft removal as another process does. This process has it only in the log.
  private static func log(_ scope: RemovalScope, in fixture: StoreFixture) throws {
    try fixture.store.context.removalLog.append(scope, mode: .soft(at: fixture.clock.now), timeout: .seconds(1)) {}
  }

  /// Where the response is when it is purged, and when it is looked up.
  enum State: CaseIterable, Sendable { case pending, logged, applied, reopened }

  @Test(
    "A soft purge makes what its scope covers stale, whether pending, only in the log, applied or after reopening",
    arguments: Scope.allCases, State.allCases)
  func scopes(_ scope: Scope, _ state: State) throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    Self.store(in: fixture)
    if state != .pending { fixture.drain() }
    let stored = try #require(fixture.store.lookup(fixture.key(Self.covered)))
    switch state {
    case .pending, .logged: try Self.log(scope.scope(fixture), in: fixture)
    case .applied:
      fixture.store.softPurge(scope.scope(fixture))
      fixture.drain()
    case .reopened:
      try Self.log(scope.scope(fixture), in: fixture)
      try fixture.reopen()
    }
    func expectStale() throws {
      let found = try #require(fixture.store.lookup(fixture.key(Self.covered)))
      #expect(found.freshness == stored.freshness.softPurged(at: fixture.clock.now))
      #expect(!found.freshness.isFresh(at: fixture.clock.now))
      #expect(found.freshness.lifetime == 10)
      #expect(found.body == stored.body)
      #expect(found.fields == stored.fields)
      let borrowed = fixture.store.withResponse(fixture.key(Self.covered), where: { _ in true }) { $0.freshness }
      #expect(borrowed == found.freshness)
      #expect(Self.isSoftPurged(fixture, Self.other) == false)
    }
    try expectStale()
    fixture.drain()
    try expectStale()
    #expect(fixture.store.pendingRemovalCount == 0)
    #expect(fixture.store.entries(in: .time).map { $0.freshness.flags.contains(.softPurged) } == [false, true])
    #expect(fixture.store.statistics.removals == [:])
  }

  @Test(
    "What may have been removed on another machine is suspect, whether pending, only in the log, applied or reopened",
    arguments: State.allCases)
  func suspicion(_ state: State) throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    Self.store(in: fixture)
    if state != .pending { fixture.drain() }
    let stored = try #require(fixture.store.lookup(fixture.key(Self.covered)))
    // A soft purge before or after it changes nothing.
    fixture.store.softPurge(.host("a.example"))
    #expect(fixture.store.removeDurably([FleetRemoval(.everything, effect: .suspect)]) != nil)
    fixture.store.softPurge(.everything)
    if state == .applied { fixture.drain() }
    if state == .reopened { try fixture.reopen() }
    for _ in 0..<2 {
      let found = try #require(fixture.store.lookup(fixture.key(Self.covered)))
      #expect(found.freshness == stored.freshness.softPurged(at: FreshnessInfo.suspicionDate))
      #expect(found.freshness.flags.isSuperset(of: [.softPurged, .suspect]))
      #expect(found.body == stored.body)
      fixture.drain()
    }
    // A validation that was sent afterwards ends the suspicion.
    let found = try #require(fixture.store.lookup(fixture.key(Self.covered)))
    fixture.store.update(found, fields: found.fields, freshness: stored.freshness)
    fixture.drain()
    #expect(fixture.store.lookup(fixture.key(Self.covered))?.freshness == stored.freshness)
  }

  @Test("A soft purge covers a large pending body, and one that lookups leave in the store", arguments: [false, true])
  func largeBody(isCommitted: Bool) throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    let body = pseudorandomData(1 << 20, seed: 1)
    Self.store(in: fixture, body: body)
    if isCommitted { fixture.drain() }
    let key = fixture.key(Self.covered)
    func isStale() throws -> Bool {
      let found = try #require(fixture.store.lookup(key, leavingBodiesBeyond: 1000) { _ in true })
      let bytes = found.storedBody.map { $0.read(0..<body.count) } ?? found.body
      #expect(bytes == body)
      return found.freshness.flags.contains(.softPurged)
    }
    #expect(try !isStale())
    try Self.log(.key(key.bytes), in: fixture)
    #expect(try isStale())
    fixture.drain()
    #expect(try isStale())
  }

  @Test(
    "Many covered responses are stale at once, and are marked behind the purge, for each scope",
    arguments: [nil, Scope.since, .host, .prefix, .group])
  func many(_ scope: Scope?) throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    fixture.store.store(fixture.response(Self.other))
    fixture.clock.advance(by: 60)
    let urls = (0..<2000).map { "http://a.example/dir/\($0)" }
    for url in urls { fixture.store.store(fixture.response(url, fields: ["Cache-Groups": "\"g\""])) }
    fixture.drain()
    fixture.clock.advance(by: 10)
    fixture.store.softPurge(scope?.scope(fixture) ?? .everything)
    #expect(fixture.store.pendingRemovalCount == 1)
    #expect(urls.allSatisfy { Self.isSoftPurged(fixture, $0) == true })
    #expect(Self.isSoftPurged(fixture, Self.other) == (scope == nil))
    // Stored while the tombstone is in force.
    fixture.store.store(fixture.response(urls[0]))
    #expect(Self.isSoftPurged(fixture, urls[0]) == false)
    while fixture.store.writePending() {}
    #expect(Self.isSoftPurged(fixture, urls[0]) == false)
    fixture.drain()
    #expect(fixture.store.pendingRemovalCount == 0)
    #expect(Self.isSoftPurged(fixture, urls[0]) == false)
    #expect(urls.dropFirst().allSatisfy { Self.isSoftPurged(fixture, $0) == true })
    #expect(Self.isSoftPurged(fixture, Self.other) == (scope == nil))
    #expect(fixture.store.entryCount == urls.count + 1)
  }

  @Test("A hard purge before or after a soft one removes what it covers", arguments: [false, true], [false, true])
  func hard(isFirst: Bool, isMany: Bool) throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    let urls = (0..<(isMany ? 600 : 3)).map { "http://a.example/\($0)" }
    for url in urls { fixture.store.store(fixture.response(url)) }
    fixture.store.store(fixture.response(Self.other))
    fixture.drain()
    if isFirst { fixture.store.remove(.host("a.example")) }
    fixture.store.softPurge(.everything)
    if !isFirst { fixture.store.remove(.host("a.example")) }
    #expect(urls.allSatisfy { Self.isSoftPurged(fixture, $0) == nil })
    #expect(Self.isSoftPurged(fixture, Self.other) == true)
    fixture.drain()
    #expect(urls.allSatisfy { Self.isSoftPurged(fixture, $0) == nil })
    #expect(Self.isSoftPurged(fixture, Self.other) == true)
    #expect(fixture.store.entryCount == 1)
    #expect(fixture.store.pendingRemovalCount == 0)
  }

  @Test("The earliest of several soft purges ends the freshness")
  func several() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    Self.store(in: fixture)
    fixture.drain()
    let date = fixture.clock.now
    for _ in 0..<2 {
      fixture.store.softPurge(.everything)
      fixture.clock.advance(by: 5)
    }
    let found = try #require(fixture.store.lookup(fixture.key(Self.covered)))
    #expect(found.freshness.lifetime == 10)
    // The clock is set back.
    fixture.clock.set(date - 100)
    #expect(!found.freshness.isFresh(at: fixture.clock.now))
  }

  @Test(
    "An update makes a response fresh only if its validation was sent after the soft purge",
    arguments: [false, true], [false, true])
  func validation(isCommitted: Bool, isPurgedBefore: Bool) throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    Self.store(in: fixture)
    if isCommitted { fixture.drain() }
    let key = fixture.key(Self.covered)
    if isPurgedBefore { try Self.log(.everything, in: fixture) }
    let token = fixture.store.removalToken
    let stored = try #require(fixture.store.lookup(key))
    if !isPurgedBefore { try Self.log(.everything, in: fixture) }
    var freshness = fixture.freshness(lifetime: 500)
    freshness.flags = [.strongETag]
    #expect(fixture.store.update(stored, fields: stored.fields, freshness: freshness, askedAt: token))
    #expect(Self.isSoftPurged(fixture, Self.covered) == !isPurgedBefore)
    fixture.drain()
    #expect(Self.isSoftPurged(fixture, Self.covered) == !isPurgedBefore)
    #expect(fixture.store.lookup(key)?.freshness.lifetime == (isPurgedBefore ? 500 : 0))
    #expect(fixture.body(Self.covered) != nil)
  }

  @Test("An update by a validation that was sent after a hard purge does not restore the response")
  func updateAfterRemoval() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    for number in 0..<600 { fixture.store.store(fixture.response("http://a.example/\(number)")) }
    fixture.drain()
    let stored = try #require(fixture.store.lookup(fixture.key("http://a.example/1")))
    fixture.store.remove(.everything)
    let token = fixture.store.removalToken
    #expect(!fixture.store.update(stored, fields: stored.fields, freshness: stored.freshness, askedAt: token))
    #expect(fixture.body("http://a.example/1") == nil)
    fixture.drain()
    #expect(fixture.store.entryCount == 0)
  }

  @Test("A record that eviction moves during a soft purge stays stale")
  func moved() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    let urls = (0..<600).map { "http://a.example/\($0)" }
    for url in urls { fixture.store.store(fixture.response(url)) }
    fixture.drain()
    fixture.clock.advance(by: 10)
    let (store, database) = (fixture.store, fixture.store.context.database)
    store.softPurge(.everything)
    #expect(store.pendingRemovalCount == 1)
    try database.write { (transaction) throws(LMDBError) in
      var counters = try database.counters(in: transaction)
      let tombstones = try store.context.removals.tombstones(in: transaction)
      for url in urls.prefix(10) {
        let digest = database.keyDigest(of: fixture.key(url).bytes)
        guard let index = database.index.current, let rowID = database.indexedRows(of: digest).first,
          let cell = index.cell(of: IndexEntry.tag(of: digest), rowID: rowID)
        else { return }
        let isMoved = try database.move(
          index.entry(in: cell), unlessHiddenBy: tombstones, counters: &counters, in: transaction)
        #expect(isMoved)
      }
      try database.setCounters(counters, in: transaction)
    }
    #expect(urls.allSatisfy { Self.isSoftPurged(fixture, $0) == true })
    fixture.drain()
    #expect(urls.allSatisfy { Self.isSoftPurged(fixture, $0) == true })
  }

  @Test("A corrupt record that a soft purge covers is not made valid")
  func corrupt() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    fixture.store.store(fixture.response(Self.other))
    fixture.drain()
    let database = fixture.store.context.database
    try database.write { (transaction) throws(LMDBError) in
      var rows: [(UInt64, [UInt8])] = []
      try database.heads.forEachRow(from: 0, in: transaction) { (rowID, record) in
        rows.append((rowID, [UInt8](record)))
        return true
      }
      for (rowID, var record) in rows {
        record[record.count - 1] ^= 1
        try database.heads.put(record, for: rowID, in: transaction)
      }
    }
    fixture.store.softPurge(.everything)
    #expect(fixture.body(Self.other) == nil)
    fixture.drain()
    #expect(fixture.store.entryCount == 0)
  }

  @Test("A soft purge is in force in another process at once, also for its copies and pending writes")
  func otherProcess() async throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    for number in 0..<400 { fixture.store.store(fixture.response("http://a.example/\(number)")) }
    fixture.drain()
    let turns = Turns(directory: fixture.directory)
    defer { turns.remove() }
    let store = fixture.store
    async let parent: Void = turns.answerChild { store.softPurge(.everything) }
    await #expect(processExitsWith: .success) { [directory = fixture.directory as String, turns = turns as Turns] in
      let store = try ResponseStore.open(directory: directory, options: quietOptions(capacity: 16 << 20))
      func isStale(_ url: String) -> Bool? {
        store.lookup(RequestKey(urlString: url)!).map { $0.freshness.flags.contains(.softPurged) }
      }
      guard isStale("http://a.example/7") == false else { exit(2) }
      store.store(childResponse("http://a.example/pending"))
      guard let old = store.lookup(RequestKey(urlString: "http://a.example/8")!) else { exit(3) }
      var token = store.removalToken
      let before = token
      turns.childIsReady()
      turns.waitForParent()
      guard isStale("http://a.example/7") == true, isStale("http://a.example/pending") == true else { exit(4) }
      let effect = store.effectOfRemovals(on: old.key, storedAt: old.storedAt, groups: { [] }, since: &token)
      guard case .stale = effect, token != before else { exit(5) }
      // The first validation was sent before the purge, the second one after it.
      store.update(old, fields: old.fields, freshness: old.freshness, askedAt: before)
      guard isStale("http://a.example/8") == true else { exit(6) }
      while store.writePending() {}
      guard isStale("http://a.example/8") == true, isStale("http://a.example/pending") == true else { exit(7) }
      guard let stale = store.lookup(old.key) else { exit(8) }
      store.update(stale, fields: old.fields, freshness: old.freshness, askedAt: token)
      guard isStale("http://a.example/8") == false else { exit(9) }
      while store.writePending() {}
      guard isStale("http://a.example/8") == false else { exit(10) }
      // Ended without closing, like a killed process: the parent marks what is left.
      _exit(0)
    }
    await parent
    fixture.drain()
    #expect(Self.isSoftPurged(fixture, "http://a.example/8") == false)
    for url in ["7", "9", "pending"] { #expect(Self.isSoftPurged(fixture, "http://a.example/\(url)") == true) }
    #expect(fixture.store.pendingRemovalCount == 0)
    #expect(fixture.store.entryCount == 401)
  }

  @Test("The longest scope of a soft removal fits into a frame of the log")
  func longestScope() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    let date = fixture.clock.now
    for byteCount in [447, 448, 449, 9000] {
      let scope = RemovalScope.key([UInt8](repeating: 1, count: byteCount))
      let number = try fixture.store.context.removalLog.append(scope, mode: .soft(at: date), timeout: .seconds(1)) {}
      guard case .removal(let logged, let mode) = fixture.store.context.removalLog.content(of: number) else {
        Issue.record("The removal is not in the log")
        continue
      }
      #expect(logged == scope.abbreviated)
      #expect(mode == .soft(at: date))
    }
  }
}

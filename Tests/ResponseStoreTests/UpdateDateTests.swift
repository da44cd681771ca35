import Foundation
import HTTPCaching
import LMDB
import ResponseStore
import Testing

/// Removals by date cover what was stored or updated since.
@Suite("Dates of updates", .endsFixtures)
struct UpdateDateTests {
  private static let url = "http://a.example/"

  /// Updates the stored response of a URL, as a 304 does.
  @discardableResult
  private func update(_ fixture: StoreFixture, _ url: String = Self.url, askedAt token: RemovalToken? = nil) -> Bool {
    guard let found = fixture.store.lookup(fixture.key(url)) else { return false }
    return fixture.store.update(
      found, fields: found.fields, freshness: fixture.freshness(lifetime: 1e6), askedAt: token)
  }

  /// The writes that are committed when the removal takes effect.
  enum State: String, CaseIterable {
    case nothing, insertion, all
  }

  @Test("A removal by date covers a response that was updated since", arguments: State.allCases, [false, true])
  func update(state: State, isSoft: Bool) throws {
    let fixture = try StoreFixture()
    fixture.store.store(fixture.response(Self.url))
    let storedAt = fixture.clock.now
    if state != .nothing { fixture.drain() }
    fixture.clock.advance(by: 10)
    #expect(update(fixture))
    let updatedAt = fixture.clock.now
    if state == .all { fixture.drain() }
    func remove(since date: Date) {
      isSoft ? fixture.store.softPurge(.since(date)) : fixture.store.remove(.since(date))
    }
    func isCovered() -> Bool {
      fixture.store.lookup(fixture.key(Self.url)).map { $0.freshness.flags.contains(.softPurged) } ?? true
    }
    let found = try #require(fixture.store.lookup(fixture.key(Self.url)))
    #expect(found.storedAt == storedAt && found.updatedAt == updatedAt)
    fixture.clock.advance(by: 10)
    remove(since: updatedAt)
    #expect(!isCovered())
    remove(since: updatedAt - 1)
    #expect(isCovered())
    fixture.drain()
    #expect(isCovered())
    #expect(fixture.store.entryCount == (isSoft ? 1 : 0))
    try fixture.reopen()
    #expect(isCovered())
  }

  @Test("An update of which the validation began before a removal by date takes no effect, and the response stays")
  func inFlight() throws {
    let fixture = try StoreFixture()
    fixture.store.store(fixture.response(Self.url))
    fixture.drain()
    let lifetime = try #require(fixture.store.lookup(fixture.key(Self.url))).freshness.lifetime
    fixture.clock.advance(by: 10)
    let token = fixture.store.removalToken
    let found = try #require(fixture.store.lookup(fixture.key(Self.url)))
    fixture.store.remove(.since(fixture.clock.now - 5))
    #expect(
      !fixture.store.update(found, fields: found.fields, freshness: fixture.freshness(lifetime: 1e6), askedAt: token))
    fixture.drain()
    #expect(fixture.store.lookup(fixture.key(Self.url))?.freshness.lifetime == lifetime)
    // A validation after the removal updates it.
    #expect(update(fixture, askedAt: fixture.store.removalToken))
    fixture.drain()
    #expect(fixture.store.lookup(fixture.key(Self.url))?.freshness.lifetime == 1e6)
  }

  @Test("A removal by date covers an earlier validation that arrives after another one, when the clock was set back")
  func clockSetBack() throws {
    let fixture = try StoreFixture()
    fixture.store.store(fixture.response(Self.url))
    fixture.drain()
    let early = try #require(fixture.store.lookup(fixture.key(Self.url)))
    fixture.store.remove(.since(fixture.clock.now + 5))
    fixture.clock.advance(by: 10)
    #expect(update(fixture, askedAt: fixture.store.removalToken))
    fixture.drain()
    fixture.clock.advance(by: -30)
    // The record keeps the later date, which the removal covers.
    #expect(fixture.store.update(early, fields: early.fields, freshness: fixture.freshness(lifetime: 1e6)))
    fixture.drain()
    #expect(fixture.store.lookup(fixture.key(Self.url)) == nil)
  }

  @Test(
    "The sweep deletes exactly the responses that were stored or updated since, also if others are updated meanwhile")
  func sweep() throws {
    let fixture = try StoreFixture()
    // More than are deleted directly.
    let count = 1200
    for number in 0..<count { fixture.store.store(fixture.response("http://a.example/\(number)")) }
    fixture.drain()
    fixture.clock.advance(by: 10)
    let date = fixture.clock.now - 5
    for number in 0..<count / 2 { update(fixture, "http://a.example/\(number)") }
    while fixture.store.writePending() {}
    fixture.store.remove(.since(date))
    while fixture.store.writePending() {}
    #expect(fixture.store.removalOverview { _, _ in }?.removals.first?.entryCount ?? 0 > 0, "a tombstone")
    for number in count / 2..<count {
      fixture.clock.advance(by: 0.001)
      #expect(update(fixture, "http://a.example/\(number)"))
      if number % 50 == 0 {
        while fixture.store.writePending() {}
        fixture.store.maintain()
      }
    }
    fixture.drain()
    #expect(fixture.store.entryCount == count / 2)
    for number in 0..<count { #expect((fixture.body("http://a.example/\(number)") == nil) == (number < count / 2)) }
    #expect(fixture.store.removalOverview { _, _ in }?.removals.isEmpty == true)
  }

  @Test("The date of an update never becomes earlier than the last one, also if the clock does")
  func clock() throws {
    let fixture = try StoreFixture()
    fixture.store.store(fixture.response(Self.url))
    fixture.drain()
    fixture.clock.advance(by: 10)
    update(fixture)
    let latest = fixture.clock.now
    for isPending in [true, false] {
      if !isPending { fixture.drain() }
      fixture.clock.advance(by: -100)
      #expect(update(fixture))
      #expect(fixture.store.lookup(fixture.key(Self.url))?.updatedAt == latest)
    }
    fixture.drain()
    #expect(fixture.store.lookup(fixture.key(Self.url))?.updatedAt == latest)
    // A response that was looked up before the last update.
    fixture.clock.advance(by: 1000)
    let old = try #require(fixture.store.lookup(fixture.key(Self.url)))
    update(fixture)
    fixture.drain()
    let newest = fixture.clock.now
    fixture.clock.advance(by: -500)
    #expect(fixture.store.update(old, fields: old.fields, freshness: old.freshness))
    fixture.drain()
    #expect(fixture.store.lookup(fixture.key(Self.url))?.updatedAt == newest)
    #expect(fixture.store.entries(in: .time).map(\.updatedAt) == [newest])
  }

  @Test("An update in one process is covered by a removal by date in another")
  func processes() async throws {
    let fixture = try StoreFixture()
    for name in ["updated", "other"] { fixture.store.store(fixture.response("http://\(name).example/")) }
    fixture.drain()
    fixture.clock.advance(by: 10)
    let now = fixture.clock.now
    await #expect(processExitsWith: .success) { [directory = fixture.directory as String, now = now as Date] in
      var options = quietOptions(capacity: 16 << 20)
      options.clock = { now }
      let store = try ResponseStore.open(directory: directory, options: options)
      guard let found = store.lookup(RequestKey(urlString: "http://updated.example/")!) else { exit(2) }
      guard store.update(found, fields: found.fields, freshness: found.freshness) else { exit(3) }
      while store.writePending() {}
      store.close()
    }
    fixture.store.remove(.since(now - 1))
    #expect(fixture.body("http://updated.example/") == nil)
    #expect(fixture.body("http://other.example/") != nil)
    fixture.drain()
    #expect(fixture.store.entryCount == 1)
  }

  @Test("An update of a large response moves its date, and writes no byte of its body")
  func bodyStays() throws {
    let fixture = try StoreFixture()
    fixture.store.store(fixture.response(Self.url, body: pseudorandomData(256 << 10, seed: 1)))
    fixture.drain()
    let before = try fixture.store.chunkAddresses()
    #expect(before.count > 4)
    let live = try fixture.store.livePageCount()
    for _ in 0..<20 {
      fixture.clock.advance(by: 1)
      #expect(update(fixture))
      fixture.drain()
    }
    #expect(try fixture.store.chunkAddresses() == before)
    #expect(try fixture.store.livePageCount() <= live + 2)
    #expect(fixture.store.lookup(fixture.key(Self.url))?.updatedAt == fixture.clock.now)
  }
}

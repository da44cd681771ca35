import CacheModel
import Foundation
import HTTPCaching
import LMDB
import ResponseStore
import Testing

/// ``ContractTests`` has soft purges of all scopes, in any state of the responses.
@Suite("Soft purges of a store", .endsFixtures)
struct SoftPurgeTests {
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

  /// Where the response is when it is purged, and when it is looked up.
  enum State: CaseIterable, Sendable { case pending, logged, applied, reopened }

  @Test(
    "What may have been removed on another machine is suspect, whether pending, only in the log, applied or reopened",
    arguments: State.allCases)
  func suspicion(_ state: State) throws {
    let fixture = try StoreFixture()
    Self.store(in: fixture)
    if state != .pending { fixture.drain() }
    let stored = try #require(fixture.store.lookup(fixture.key(Self.covered)))
    // A soft purge before or after it changes nothing.
    fixture.store.softPurge(.host("a.example"))
    #expect(fixture.store.removeDurably([Removal(.everything, .suspect)]) != nil)
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

  @Test("The earliest of several soft purges ends the freshness")
  func several() throws {
    let fixture = try StoreFixture()
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

  @Test("A record that eviction moves during a soft purge stays stale")
  func moved() throws {
    let fixture = try StoreFixture()
    let urls = (0..<600).map { "http://a.example/\($0)" }
    for url in urls { fixture.store.store(fixture.response(url)) }
    fixture.drain()
    fixture.clock.advance(by: 10)
    fixture.store.softPurge(.everything)
    #expect(fixture.store.pendingRemovalCount == 1)
    #expect(try fixture.store.move(urls.prefix(10).map { fixture.key($0) }) == 10)
    #expect(urls.allSatisfy { Self.isSoftPurged(fixture, $0) == true })
    fixture.drain()
    #expect(urls.allSatisfy { Self.isSoftPurged(fixture, $0) == true })
  }

  @Test("A corrupt record that a soft purge covers is not made valid")
  func corrupt() throws {
    let fixture = try StoreFixture()
    fixture.store.store(fixture.response(Self.other))
    fixture.drain()
    try fixture.store.corruptRecords()
    fixture.store.softPurge(.everything)
    #expect(fixture.body(Self.other) == nil)
    fixture.drain()
    #expect(fixture.store.entryCount == 0)
  }
}

import Foundation
import HTTPCaching
import LMDB
import ResponseStore
import Testing

/// Eviction appends surviving records again. Lookups, updates and removals do not notice this.
@Suite("Records that eviction moves", .endsFixtures)
struct MovedRecordTests {
  private static func url(_ number: Int) -> String { "http://a.example/\(number)" }

  /// Returns a body; every third one is stored in `bodies`.
  private static func body(_ number: Int) -> Data {
    pseudorandomData(number.isMultiple(of: 3) ? 20_000 : 300, seed: UInt64(number))
  }

  private func filled(_ count: Int, capacity: Int = 16 << 20, background: Bool = false) throws -> StoreFixture {
    let fixture = try StoreFixture(capacity: capacity, background: background)
    for number in 0..<count {
      fixture.store.store(fixture.response(Self.url(number), body: Self.body(number)))
    }
    try fixture.store.flush()
    return fixture
  }

  private func move(_ number: Int, in fixture: StoreFixture) throws {
    #expect(try fixture.store.move([fixture.key(Self.url(number))]) == 1)
  }

  private func rowID(_ number: Int, in fixture: StoreFixture) -> UInt64? {
    fixture.store.lookup(fixture.key(Self.url(number)))?.rowID
  }

  @Test("An update finds a record that was moved after the lookup", arguments: [0, 1])
  func update(number: Int) throws {
    let fixture = try filled(4)
    let found = try #require(fixture.store.lookup(fixture.key(Self.url(number))))
    try move(number, in: fixture)
    #expect(fixture.store.update(found, fields: ["ETag": "\"new\""], freshness: fixture.freshness()))
    fixture.drain()
    let updated = try #require(fixture.store.lookup(fixture.key(Self.url(number))))
    #expect(updated.fields["ETag"] == "\"new\"")
    #expect(fixture.body(Self.url(number)) == Self.body(number))
    #expect(fixture.store.statistics.droppedWrites == 0)
    // A further move keeps the updated fields.
    try move(number, in: fixture)
    #expect(fixture.store.lookup(fixture.key(Self.url(number)))?.fields["ETag"] == "\"new\"")
    #expect(fixture.body(Self.url(number)) == Self.body(number))
  }

  @Test("No lookup misses a record while it is moved")
  func lookups() throws {
    let fixture = try filled(8)
    let store = fixture.store
    let keys = (0..<8).map { fixture.key(Self.url($0)) }
    let state = Monitor((isDone: false, misses: 0, ended: 0))
    for _ in 0..<2 {
      Thread {
        var misses = 0
        while !state.withLock({ $0.isDone }) {
          for key in keys where store.lookup(key) == nil { misses += 1 }
        }
        state.update { ($0.misses, $0.ended) = ($0.misses + misses, $0.ended + 1) }
      }.start()
    }
    for round in 0..<100 { try move(round % 8, in: fixture) }
    state.update { $0.isDone = true }
    let misses = state.wait { $0.ended == 2 ? $0.misses : nil }
    #expect(misses == 0)
  }

  @Test("A full store keeps used records over several turnovers, and every body is intact")
  func turnovers() throws {
    let fixture = try StoreFixture(capacity: 1 << 20)
    let favorites = 0..<10
    for number in favorites { fixture.store.store(fixture.response(Self.url(number), body: Self.body(number))) }
    for number in 1000..<2000 {
      fixture.store.store(fixture.response(Self.url(number), body: Self.body(number)))
      let favorite = number % favorites.count
      if let body = fixture.body(Self.url(favorite)) { #expect(body == Self.body(favorite)) }
      if number.isMultiple(of: 10) { fixture.drain() }
    }
    fixture.drain()
    let statistics = fixture.store.statistics
    #expect(statistics.evictions > 500, "\(statistics)")
    #expect(statistics.droppedWrites == 0)
    // Records that are rarely among the best of their segment may be evicted.
    #expect(favorites.count { fixture.body(Self.url($0)) == Self.body($0) } >= 8)
    #expect(fixture.store.checkInvariants() == [])
  }
}

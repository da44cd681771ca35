import Foundation
import HTTPCaching
import LMDB
import Testing

@testable import CacheModel
@testable import ResponseStore

@Suite("Rebuilding a lost index")
struct IndexRebuildTests: NumberedResponses {
  private static let count = 20

  /// Replaces the index by an empty one, like a power failure.
  private func loseIndex(of fixture: StoreFixture) throws {
    let file = fixture.store.context.database
    try file.write { (_) throws(LMDBError) in file.index.discard() }
    try file.write { (_) throws(LMDBError) in }
    #expect(!file.isIndexComplete)
  }

  private func step(_ fixture: StoreFixture, limit: Int) throws -> Bool {
    let file = fixture.store.context.database
    return try file.write { (transaction) throws(LMDBError) in
      try file.rebuildIndex(limit: limit, in: transaction)
    }
  }

  private func tombstoneCount(_ fixture: StoreFixture) throws -> Int {
    let file = fixture.store.context.database
    return try file.environment.read { (transaction) throws(LMDBError) in try file.tombstones(in: transaction).count }
  }

  @Test(
    "A rebuild finds the latest records first, and keeps a newer response for the same key")
  func rebuilding() throws {
    let fixture = try fixture(withResponsesBelow: Self.count)
    defer { fixture.finish() }
    try loseIndex(of: fixture)
    for number in 0..<Self.count { #expect(text(number, in: fixture) == nil) }
    store(3, "newer", in: fixture)
    #expect(text(3, in: fixture) == "newer")
    #expect(try step(fixture, limit: 6))
    // The rebuild finds the newer record first; the index contains it already.
    for number in 0..<Self.count where number != 3 { #expect((text(number, in: fixture) != nil) == (number >= 15)) }
    while try step(fixture, limit: 6) { #expect(text(3, in: fixture) == "newer") }
    #expect(fixture.store.entryCount == Self.count)
    for number in 0..<Self.count { #expect(text(number, in: fixture) == (number == 3 ? "newer" : "older")) }
    #expect(fixture.store.statistics.corruptRecords == 0)
  }

  @Test(
    "If the index is lost again during a rebuild, no lookup finds the older of two responses", arguments: [1, 3, 50])
  func lostTwice(limit: Int) throws {
    let fixture = try fixture(withResponsesBelow: Self.count)
    defer { fixture.finish() }
    try loseIndex(of: fixture)
    // By its date, a rebuild would find this record last.
    fixture.clock.advance(by: -1000)
    store(3, "newer", in: fixture)
    _ = try step(fixture, limit: 2)
    try loseIndex(of: fixture)
    while true {
      let hasMore = try step(fixture, limit: limit)
      #expect(text(3, in: fixture) != "older")
      guard hasMore else { break }
    }
    #expect(text(3, in: fixture) == "newer")
    #expect(fixture.store.entryCount == Self.count)
    for number in 0..<Self.count where number != 3 { #expect(text(number, in: fixture) == "older") }
  }

  enum Removal: CaseIterable {
    case key, host, since, target
  }

  @Test(
    "A removal takes effect during a rebuild, and its tombstone remains until the rebuild ends",
    arguments: Removal.allCases)
  func removal(_ removal: Removal) throws {
    let fixture = try fixture(withResponsesBelow: Self.count)
    defer { fixture.finish() }
    try loseIndex(of: fixture)
    fixture.clock.advance(by: 1)
    let date = fixture.clock.now
    fixture.clock.advance(by: 1)
    store(4, "newer", in: fixture)
    let last = url(4)
    switch removal {
    case .key: fixture.store.remove(fixture.key(last))
    case .host: fixture.store.remove(.host("host0.example"))
    case .since: fixture.store.remove(.since(date))
    case .target: fixture.store.remove(.target(of: URL(string: last)!)!)
    }
    #expect(text(4, in: fixture) == nil)
    #expect(try tombstoneCount(fixture) == 1)
    #expect(try fixture.store.sweep.step().removedCount == 0)
    #expect(try tombstoneCount(fixture) == 1)
    while try step(fixture, limit: 7) { #expect(text(4, in: fixture) == nil) }
    #expect(text(4, in: fixture) == nil)
    fixture.drain()
    #expect(text(4, in: fixture) == nil)
    #expect(try tombstoneCount(fixture) == 0)
    #expect(fixture.store.entryCount == (removal == .host ? Self.count / 2 : Self.count - 1))
    store(4, "newest", in: fixture)
    #expect(text(4, in: fixture) == "newest")
  }

  @Test("A response that is not stored removes the older one, also during a rebuild")
  func discarded() throws {
    let fixture = try fixture(withResponsesBelow: Self.count)
    defer { fixture.finish() }
    try loseIndex(of: fixture)
    store(4, "newer", in: fixture)
    fixture.store.discard(fixture.response(url(4)).response, for: fixture.key(url(4)))
    fixture.store.writePending()
    #expect(text(4, in: fixture) == nil)
    fixture.drain()
    #expect(text(4, in: fixture) == nil)
    #expect(text(5, in: fixture) == "older")
    #expect(fixture.store.checkInvariants() == [])
    #expect(fixture.store.entryCount == Self.count - 1)
  }

  @Test("Eviction deletes the oldest rows during a rebuild")
  func eviction() throws {
    let fixture = try fixture(withResponsesBelow: Self.count)
    defer { fixture.finish() }
    try loseIndex(of: fixture)
    #expect(try fixture.store.evictor.evict(pageCount: .max, entryCount: 5) == 5)
    fixture.drain()
    for number in 0..<Self.count { #expect((text(number, in: fixture) == nil) == (number < 5)) }
  }

  @Test("Without space for an index the store misses and drops writes; it recovers when there is space")
  func noSpace() throws {
    let fixture = try fixture(withResponsesBelow: Self.count)
    defer { fixture.finish() }
    fixture.close()
    try FileManager.default.removeItem(atPath: fixture.path(IndexLayout.fileName))
    // Blocks the creation of the new file.
    let obstacle = fixture.path(IndexLayout.fileName + ".new")
    try FileManager.default.createDirectory(atPath: obstacle, withIntermediateDirectories: false)
    try fixture.open()
    #expect(text(7, in: fixture) == nil)
    store(30, "refused", in: fixture)
    #expect(text(30, in: fixture) == nil)
    #expect(fixture.store.statistics.droppedWrites == 1)
    fixture.store.remove(fixture.key(url(8)))
    fixture.drain()
    try FileManager.default.removeItem(atPath: obstacle)
    fixture.drain()
    for number in 0..<Self.count { #expect(text(number, in: fixture) == (number == 8 ? nil : "older")) }
    store(30, "stored", in: fixture)
    #expect(text(30, in: fixture) == "stored")
  }

  @Test("Records without rows in the dates table are found by a scan of all rows")
  func lostDates() throws {
    let fixture = try fixture(withResponsesBelow: Self.count)
    defer { fixture.remove() }
    let file = fixture.store.context.database
    try file.write { (transaction) throws(LMDBError) in
      for _ in 0..<5 {
        try file.dates.withCursor(in: transaction) { (cursor) throws(LMDBError) in
          if try cursor.first() { try cursor.remove() }
        }
      }
    }
    try loseIndex(of: fixture)
    fixture.drain()
    for number in 0..<Self.count { #expect(text(number, in: fixture) == "older") }
    #expect(file.isIndexComplete)
    fixture.close()
  }

  @Test("An index with fewer records than the database is rebuilt at open")
  func inexact() throws {
    let fixture = try fixture(withResponsesBelow: Self.count)
    defer { fixture.finish() }
    let index = try #require(fixture.store.context.database.index.current)
    let tag = IndexEntry.tag(of: fixture.store.useDigest(of: fixture.key(url(7))))
    index.remove(tag: tag, rowID: try #require(fixture.store.lookup(fixture.key(url(7)))).rowID)
    #expect(text(7, in: fixture) == nil)
    try fixture.reopen()
    #expect(text(7, in: fixture) == "older")
  }

  @Test("Many older records of keys that were stored again are deleted in few transactions")
  func manyDuplicates() throws {
    let fixture = try StoreFixture(capacity: 16 << 20)
    defer { fixture.finish() }
    for number in 0..<1000 { fixture.store.store(fixture.response(url(number), body: Data("older".utf8))) }
    try fixture.store.flush()
    try loseIndex(of: fixture)
    for number in 0..<1000 { fixture.store.store(fixture.response(url(number), body: Data("newer".utf8))) }
    try fixture.store.flush()
    #expect(fixture.store.entryCount == 2000)
    #expect(fixture.store.checkInvariants() == [])
    let commits = fixture.store.context.database.environment.lastTransactionID
    fixture.drain()
    #expect(fixture.store.entryCount == 1000)
    #expect(fixture.store.context.database.environment.lastTransactionID - commits < 200)
    for number in 0..<1000 { #expect(text(number, in: fixture) == "newer") }
  }
}

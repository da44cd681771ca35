import FoundationEssentials
import HTTPCaching
import LMDB
import Testing

@testable import CacheActivity
@testable import ResponseStore

/// Records are read in one transaction and removed in a later one.
@Suite("Removal of records read in an earlier transaction")
struct RemovableRecordTests {
  private static func url(_ number: Int) -> String { "http://a.example/\(number)" }

  private func filled(_ count: Int) throws -> StoreFixture {
    let fixture = try StoreFixture(capacity: 16 << 20, background: false)
    for number in 0..<count {
      let body = pseudorandomData(number % 3 == 0 ? 20_000 : 300, seed: UInt64(number))
      fixture.store.store(fixture.response(Self.url(number), body: body))
    }
    try fixture.store.flush()
    return fixture
  }

  private func read(_ fixture: StoreFixture) throws -> [RemovableRecord] {
    let file = fixture.store.context.database
    return try file.environment.read { (transaction) throws(LMDBError) in
      var rowIDs: [UInt64] = []
      try file.heads.forEachRow(from: 0, in: transaction) { (rowID, _) in
        rowIDs.append(rowID)
        return true
      }
      return try file.removableRecords(rowIDs.sorted(), in: transaction) { (_, _) in .forget }.records
    }
  }

  private func remove(_ records: [RemovableRecord], in fixture: StoreFixture) throws -> RecordDatabase.Removal {
    let file = fixture.store.context.database
    return try file.write { (transaction) throws(LMDBError) in
      try file.change(in: transaction) { (changes) throws(LMDBError) in
        try file.remove(records, changes: &changes, isInRun: true, in: transaction)
      }
    }
  }

  @Test("Removing records deletes their dates, bodies and index cells")
  func all() throws {
    let fixture = try filled(40)
    defer { fixture.finish() }
    let records = try read(fixture)
    #expect(Set(records.map { Band(rowID: $0.rowID) }).count > 1)
    #expect(records.contains { $0.chunkCount > 0 })
    let removal = try remove(records, in: fixture)
    #expect(removal.rowIDs.sorted() == records.map(\.rowID) && removal.changed.isEmpty && removal.next == nil)
    #expect(fixture.store.entryCount == 0)
    #expect(fixture.store.checkInvariants() == [])
  }

  @Test("A record that was removed since is skipped, and one with a changed header is reported")
  func changed() throws {
    let fixture = try filled(30)
    defer { fixture.finish() }
    let records = try read(fixture)
    for number in 0..<10 { fixture.store.remove(.target(of: URL(string: Self.url(number))!)!) }
    for number in 10..<20 {
      let stored = try #require(fixture.store.lookup(fixture.key(Self.url(number))))
      #expect(fixture.store.update(stored, fields: stored.fields, freshness: fixture.freshness(lifetime: 6000)))
    }
    try fixture.store.flush()
    let before = fixture.store.entryCount
    #expect(before == 20)
    let removal = try remove(records, in: fixture)
    #expect(removal.rowIDs.count == 10 && removal.changed.count == 10)
    #expect(fixture.store.entryCount == 10)
    #expect(fixture.store.checkInvariants() == [])
    for number in 10..<20 { #expect(fixture.store.lookup(fixture.key(Self.url(number))) != nil) }
  }

  @Test("A removal stops when the transaction has freed enough pages, and returns where to continue")
  func enough() throws {
    let fixture = try filled(60)
    defer { fixture.finish() }
    var records = try read(fixture)
    var rounds = 0
    while !records.isEmpty, rounds < 1000 {
      let file = fixture.store.context.database
      let part = records
      let removal = try file.write { (transaction) throws(LMDBError) in
        try file.change(in: transaction, freeing: 8) { (changes) throws(LMDBError) in
          try file.remove(part, changes: &changes, isInRun: true, in: transaction)
        }
      }
      #expect(!removal.rowIDs.isEmpty)
      records = removal.next.map { next in records.filter { $0.rowID >= next } } ?? []
      rounds += 1
    }
    #expect(rounds > 10 && fixture.store.entryCount == 0)
    while try fixture.store.evictor.deleteOrphanedChunks() {}
    #expect(fixture.store.checkInvariants() == [])
  }

  @Test("Eviction does not count rows that another process has removed since they were read")
  func countedOnce() throws {
    let fixture = try filled(20)
    defer { fixture.finish() }
    let rows = try read(fixture).map {
      SegmentCleaner.Row(rowID: $0.rowID, entry: nil, removable: $0, reason: .overCapacity, survives: false)
    }
    _ = try remove(rows.prefix(5).compactMap(\.removable), in: fixture)
    let file = fixture.store.context.database
    var removed: [RemovalReason: Int] = [:]
    let next = try file.write { (transaction) throws(LMDBError) in
      try file.change(in: transaction) { (changes) throws(LMDBError) in
        try fixture.store.evictor.evict(rows[...], changes: &changes, &removed, in: transaction)
      }
    }
    #expect(next == nil && removed == [.overCapacity: 15] && fixture.store.entryCount == 0)
  }

  @Test("A removal of more records than the index journal can hold takes several steps")
  func moreThanTheJournal() throws {
    let fixture = try StoreFixture(capacity: 1 << 30, background: false)
    defer { fixture.finish() }
    let count = 3000
    for number in 0..<count { fixture.store.store(fixture.response(Self.url(number), body: Data([1]))) }
    try fixture.store.flush()
    let journalCapacity = fixture.store.context.database.index.journalCapacity
    #expect(journalCapacity < count)
    fixture.store.remove(.everything)
    fixture.drain()
    #expect(fixture.store.entryCount == 0)
    #expect(fixture.store.checkInvariants() == [])
  }
}

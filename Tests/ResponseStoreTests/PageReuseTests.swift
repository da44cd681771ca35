import Foundation
import HTTPCaching
import LMDB
import Testing

@testable import ResponseStore

/// Reuse of the pages of evicted and removed records.
@Suite("Page reuse")
struct PageReuseTests {
  /// Returns how full the leaf pages of the record logs are, and how many records have single-page chunks.
  private func heads(of fixture: StoreFixture) throws -> (fill: Double, withSinglePageChunks: Int) {
    let file = fixture.store.context.database
    return try file.environment.read { (transaction) throws(LMDBError) in
      var byteCount = 0
      var withSinglePageChunks = 0
      try file.heads.forEachRow(from: 0, in: transaction) { (_, record) in
        byteCount += record.count
        withSinglePageChunks += RecordHeaderView(record)?.hasSinglePageChunks == true ? 1 : 0
        return true
      }
      let leafPageCount = try file.heads.leafPageCount(in: transaction)
      return (Double(byteCount) / Double(leafPageCount * file.pageByteCount), withSinglePageChunks)
    }
  }

  @Test("Large bodies fit after many bodies of one page each were evicted", arguments: [1] as [UInt64])
  func largeAfterSmall(_ seed: UInt64) throws {
    let fixture = try StoreFixture(capacity: 4 << 20)
    defer { fixture.finish() }
    var random = SeededGenerator(seed: seed)
    for number in 0..<1500 {
      let url = "http://a.example/\(number)"
      fixture.store.store(fixture.response(url, body: pseudorandomData(3000, seed: UInt64(number))))
      if Int.random(in: 0..<2, using: &random) == 0 { _ = fixture.body(url) }
      if number % 8 == 7 { fixture.drain() }
    }
    for number in 0..<8 {
      let large = pseudorandomData(400_000 + number, seed: UInt64(number))
      fixture.store.store(fixture.response("http://large.example/\(number)", body: large))
      fixture.drain()
      #expect(fixture.body("http://large.example/\(number)") == large)
    }
    #expect(fixture.store.statistics.droppedWrites == 0)
  }

  @Test("Large bodies fit even if the free pages are scattered")
  func scatteredPages() throws {
    let fixture = try StoreFixture(capacity: 8 << 20)
    defer { fixture.finish() }
    fixture.drain()
    try scatterFreePages(of: fixture.store.context.database)
    let large = pseudorandomData(400_007, seed: 7)
    fixture.store.store(fixture.response("http://large.example/7", body: large))
    fixture.drain()
    #expect(fixture.body("http://large.example/7") == large)
    #expect(fixture.store.statistics.droppedWrites == 0)
    #expect(try heads(of: fixture).withSinglePageChunks > 0)

    // Such a record can be borrowed, updated, read after reopening, and removed.
    let url = "http://large.example/7"
    let found = try #require(fixture.store.lookup(fixture.key(url)))
    fixture.store.update(found, fields: ["ETag": "\"new\""], freshness: fixture.freshness())
    fixture.drain()
    try fixture.reopen()
    var borrowed = Data()
    let wasBorrowed: Void? = fixture.store.withResponse(fixture.key(url)) { response in
      #expect(response.fields["ETag"] == "\"new\"")
      response.forEachPiece { piece in piece.withUnsafeBytes { borrowed.append(contentsOf: $0) } }
    }
    #expect(wasBorrowed != nil)
    #expect(borrowed == pseudorandomData(400_007, seed: 7))
    fixture.store.remove(fixture.key(url))
    fixture.drain()
    #expect(fixture.body(url) == nil)
  }

  /// Occupies all free pages except isolated ones, with rows in `meta` that the store ignores.
  private func scatterFreePages(of file: RecordDatabase) throws {
    let mapPageCount = file.environment.information.mapByteCount / file.pageByteCount
    var numbers = 0..<0
    func key(_ number: Int) -> [UInt8] { Array("test/\(number)".utf8) }
    func put(_ count: Int, byteCount: Int) throws(LMDBError) {
      let new = numbers.upperBound..<numbers.upperBound + count
      try file.write { (transaction) throws(LMDBError) in
        for number in new {
          try file.meta.put([UInt8](repeating: 0, count: byteCount), for: key(number), in: transaction)
        }
      }
      numbers = numbers.lowerBound..<new.upperBound
    }
    // One page per row, in the order of the file; some pages stay free for transactions.
    while file.environment.information.lastPageNumber < mapPageCount - 128 { try put(32, byteCount: 4000) }
    for start in stride(from: 0, to: numbers.upperBound, by: 16) {
      try file.write { (transaction) throws(LMDBError) in
        for number in stride(from: start, to: min(start + 16, numbers.upperBound), by: 2) {
          try file.meta.remove(key(number), in: transaction)
        }
      }
    }
    #expect(throws: LMDBError.self) {
      while true { try put(1, byteCount: 8000) }
    }
  }

  /// A cause for deleting a body of many pages.
  enum Removal: CaseIterable {
    case removal, eviction, replacement
  }

  @Test("A body of many pages is deleted even if no two free pages are adjacent", arguments: Removal.allCases)
  func scatteredFreePages(_ removal: Removal) throws {
    let fixture = try StoreFixture(capacity: 8 << 20)
    defer { fixture.finish() }
    let (large, small) = ("http://large.example/", "http://small.example/")
    fixture.store.store(fixture.response(large, body: pseudorandomData(3_400_000, seed: 0)))
    fixture.store.store(fixture.response(small))
    for _ in 0..<3 { _ = fixture.body(small) }
    fixture.drain()
    try scatterFreePages(of: fixture.store.context.database)
    let before = fixture.store.statistics
    let pageCount = try fixture.store.space.livePageCount()
    switch removal {
    case .removal: fixture.store.remove(fixture.key(large))
    case .eviction: #expect(try fixture.store.evictor.evict(pageCount: 1) == 1)
    case .replacement: fixture.store.store(fixture.response(large))
    }
    fixture.drain()
    #expect(fixture.body(large) == (removal == .replacement ? Data("body".utf8) : nil))
    #expect(try fixture.store.space.livePageCount() < pageCount - 800)
    #expect(fixture.body(small) != nil)
    #expect(fixture.store.statistics.droppedWrites == 0)
    #expect(fixture.store.statistics.mapFullRetries == before.mapFullRetries)
    #expect(fixture.logged.all == [])
  }
}

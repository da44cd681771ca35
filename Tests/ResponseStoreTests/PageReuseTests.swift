import Foundation
import HTTPCaching
import ResponseStore
import Testing

/// Reuse of the pages of evicted and removed records.
@Suite("Page reuse", .endsFixtures)
struct PageReuseTests {
  @Test("Large bodies fit after many bodies of one page each were evicted", arguments: [1] as [UInt64])
  func largeAfterSmall(_ seed: UInt64) throws {
    let fixture = try StoreFixture(capacity: 4 << 20)
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
    fixture.drain()
    try fixture.store.scatterFreePages()
    let large = pseudorandomData(400_007, seed: 7)
    fixture.store.store(fixture.response("http://large.example/7", body: large))
    fixture.drain()
    #expect(fixture.body("http://large.example/7") == large)
    #expect(fixture.store.statistics.droppedWrites == 0)
    #expect(try fixture.store.hasSinglePageChunks())

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

  /// A cause for deleting a body of many pages.
  enum Removal: CaseIterable {
    case removal, eviction, replacement
  }

  @Test("A body of many pages is deleted even if no two free pages are adjacent", arguments: Removal.allCases)
  func scatteredFreePages(_ removal: Removal) throws {
    let fixture = try StoreFixture(capacity: 8 << 20)
    let (large, small) = ("http://large.example/", "http://small.example/")
    fixture.store.store(fixture.response(large, body: pseudorandomData(3_400_000, seed: 0)))
    fixture.store.store(fixture.response(small))
    for _ in 0..<3 { _ = fixture.body(small) }
    fixture.drain()
    try fixture.store.scatterFreePages()
    let before = fixture.store.statistics
    let pageCount = try fixture.store.livePageCount()
    switch removal {
    case .removal: fixture.store.remove(fixture.key(large))
    case .eviction: #expect(try fixture.store.evictSegment() == 1)
    case .replacement: fixture.store.store(fixture.response(large))
    }
    fixture.drain()
    #expect(fixture.body(large) == (removal == .replacement ? Data("body".utf8) : nil))
    #expect(try fixture.store.livePageCount() < pageCount - 800)
    #expect(fixture.body(small) != nil)
    #expect(fixture.store.statistics.droppedWrites == 0)
    #expect(fixture.store.statistics.mapFullRetries == before.mapFullRetries)
    #expect(fixture.logged.all == [])
  }
}

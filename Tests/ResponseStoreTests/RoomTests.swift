import Foundation
import HTTPCaching
import LMDB
import Testing

@testable import ResponseStore

/// What becomes of the room that evicted records leave.
@Suite("Room that evicted records leave")
struct RoomTests {
  /// The share of the logs' leaves that records take, and how many records have their body in single pages.
  private func heads(of fixture: StoreFixture) throws -> (fill: Double, inSinglePages: Int) {
    let file = fixture.store.file
    return try file.environment.read { (transaction) throws(LMDBError) in
      var byteCount = 0
      var inSinglePages = 0
      try file.heads.forEachRow(from: 0, in: transaction) { (_, record) in
        byteCount += record.count
        inSinglePages += HeadLayout(record)?.hasSinglePageChunks == true ? 1 : 0
        return true
      }
      let leafPageCount = try file.heads.leafPageCount(in: transaction)
      return (Double(byteCount) / Double(leafPageCount * file.pageByteCount), inSinglePages)
    }
  }

  @Test("comes free in whole leaves: those that stay are well filled")
  func leaves() throws {
    let seed: UInt64 = 1
    let fixture = try StoreFixture(capacity: 4 << 20)
    defer { fixture.finish() }
    var random = SplitMix64(state: seed)
    let urls = (0..<9000).map { "http://a.example/\($0)" }
    for number in urls.indices {
      let byteCount = Int.random(in: 100...900, using: &random)
      fixture.store.store(fixture.response(urls[number], body: pseudorandomData(byteCount, seed: UInt64(number))))
      // Some are used, so that victims lie scattered.
      if Int.random(in: 0..<3, using: &random) == 0 { _ = fixture.body(urls[number / 2]) }
      if number % 16 == 15 { fixture.drain() }
    }
    fixture.drain()
    #expect(fixture.store.statistics.evictions > 2500)
    #expect(fixture.store.statistics.droppedStores == 0)
    let fill = try heads(of: fixture).fill
    #expect(fill > 0.7, "seed \(seed)")
    // One that was just stored may be the one that is thought least of.
    #expect(urls.suffix(5).filter { fixture.body($0) != nil }.count >= 3)
  }

  @Test("serves large bodies, too, when its pages lie scattered", arguments: [1, 2] as [UInt64])
  func scatteredPages(_ seed: UInt64) throws {
    let fixture = try StoreFixture(capacity: 4 << 20)
    defer { fixture.finish() }
    var random = SplitMix64(state: seed)
    // Bodies of one page each leave hardly any four pages in a row.
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
    #expect(fixture.store.statistics.droppedStores == 0)
    let inSinglePages = try heads(of: fixture).inSinglePages
    #expect(inSinglePages > 0, "seed \(seed): nothing met the case that this is about")

    // Such a record can be lent, updated, read by a store that is opened anew, and removed.
    let url = "http://large.example/7"
    let found = try #require(fixture.store.lookup(fixture.key(url)))
    fixture.store.update(found, fields: ["ETag": "\"new\""], facts: fixture.facts())
    fixture.drain()
    try fixture.reopen()
    var lent = Data()
    let isLent: Void? = fixture.store.withResponse(fixture.key(url)) { response in
      #expect(response.fields["ETag"] == "\"new\"")
      response.forEachPiece { piece in piece.withUnsafeBytes { lent.append(contentsOf: $0) } }
    }
    #expect(isLent != nil)
    #expect(lent == pseudorandomData(400_007, seed: 7))
    fixture.store.remove(fixture.key(url))
    fixture.drain()
    #expect(fixture.body(url) == nil)
  }

  /// Takes all free pages but those that lie alone: with rows of `meta` that are no concern of the store's.
  private func scatterFreePages(of file: StoreFile) throws {
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
    // A page each, in the order of the file, with some left to work in.
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

  /// What makes a body of many pages go.
  enum Removal: CaseIterable {
    case removal, purge, eviction, replacement
  }

  @Test("comes free of a body of many pages, though no two free pages lie side by side", arguments: Removal.allCases)
  func scatteredFreePages(_ removal: Removal) throws {
    let fixture = try StoreFixture(capacity: 8 << 20)
    defer { fixture.finish() }
    let (large, small) = ("http://large.example/", "http://small.example/")
    fixture.store.store(fixture.response(large, body: pseudorandomData(3_400_000, seed: 0)))
    fixture.store.store(fixture.response(small))
    for _ in 0..<3 { _ = fixture.body(small) }
    fixture.drain()
    try scatterFreePages(of: fixture.store.file)
    let before = fixture.store.statistics
    let pageCount = try fixture.store.livePageCount()
    switch removal {
    case .removal: fixture.store.remove(fixture.key(large))
    case .purge: fixture.store.removeAll()
    case .eviction: #expect(try fixture.store.evict(pageCount: 1) == 1)
    case .replacement: fixture.store.store(fixture.response(large))
    }
    fixture.drain()
    #expect(fixture.body(large) == (removal == .replacement ? Data("body".utf8) : nil))
    #expect(try fixture.store.livePageCount() < pageCount - 800)
    #expect((fixture.body(small) == nil) == (removal == .purge))
    #expect(fixture.store.statistics.droppedStores == 0)
    #expect(fixture.store.statistics.fullMaps == before.fullMaps)
    #expect(fixture.logged.all == [])
  }

  @Test(
    "comes free of a body of many pages with a large capacity, which takes its chance of pages in a row first",
    arguments: [Removal.eviction, .purge])
  func scatteredFreePagesOfLargeCapacity(_ removal: Removal) throws {
    let fixture = try StoreFixture(capacity: 64 << 20)
    defer { fixture.finish() }
    let large = "http://large.example/"
    fixture.store.store(fixture.response(large, body: pseudorandomData(7_000_000, seed: 0)))
    // So many that a purge leaves a mark.
    for number in 0..<(removal == .purge ? StoreFile.directRemovalLimit : 0) {
      fixture.store.store(fixture.response("http://small.example/\(number)"))
    }
    fixture.drain()
    try scatterFreePages(of: fixture.store.file)
    let pageCount = try fixture.store.livePageCount()
    if removal == .purge {
      fixture.store.removeAll()
    } else {
      #expect(throws: LMDBError.self) { try fixture.store.evict(pageCount: 1) }
      #expect(fixture.store.recoverFromFullMap())
    }
    #expect(fixture.body(large) == nil)
    fixture.drain()
    #expect(fixture.store.statistics.removals[removal == .purge ? .requested : .overCapacity] ?? 0 > 0)
    #expect(fixture.store.statistics.evictions == (removal == .purge ? 0 : 1))
    #expect(try fixture.store.livePageCount() < pageCount - 1600)
    #expect(fixture.logged.all == [])
  }

  @Test("comes free of many bodies that are replaced at once, though no two free pages lie side by side")
  func scatteredFreePagesOfMany() throws {
    let fixture = try StoreFixture(capacity: 8 << 20)
    defer { fixture.finish() }
    let urls = (0..<60).map { "http://a.example/\($0)" }
    for url in urls { fixture.store.store(fixture.response(url, body: pseudorandomData(56_000, seed: 0))) }
    fixture.drain()
    try scatterFreePages(of: fixture.store.file)
    for url in urls { fixture.store.store(fixture.response(url)) }
    fixture.drain()
    for url in urls { #expect(fixture.body(url) == Data("body".utf8)) }
    #expect(fixture.store.statistics.fullMaps > 0, "nothing met the case that this is about")
    #expect(fixture.store.statistics.droppedStores == 0)
    #expect(fixture.logged.all == [])
  }
}

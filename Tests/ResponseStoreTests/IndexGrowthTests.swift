import Foundation
import Testing

@testable import ResponseStore

/// ``RecordIndexTests`` tests the copying.
@Suite("Growth of a store's index")
struct IndexGrowthTests {
  private func expectAllFound(_ count: Int, in fixture: StoreFixture) {
    #expect((0..<count).filter { fixture.body("http://a.example/\($0)") == nil } == [])
  }

  @Test("The index grows while responses are stored, and each of them is found")
  func growth() throws {
    let fixture = try StoreFixture(background: true)
    defer { fixture.finish() }
    let index = fixture.store.context.database.index
    let cellCount = try #require(index.current?.cellCount)
    for number in 0..<2 * cellCount {
      fixture.store.store(fixture.response("http://a.example/\(number)"))
    }
    try fixture.store.flush()
    #expect(try #require(index.current?.cellCount) > 2 * cellCount)
    expectAllFound(2 * cellCount, in: fixture)
  }

  @Test("A step of the eviction thread lets an index grow that is nearly full")
  func maintained() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    let index = fixture.store.context.database.index
    let cellCount = try #require(index.current?.cellCount)
    index.setMaximumByteCount(IndexLayout.byteCount(cellCount: cellCount))
    let count = cellCount * 70 / 100
    for number in 0..<count { fixture.store.store(fixture.response("http://a.example/\(number)")) }
    try fixture.store.flush()
    #expect(index.current?.cellCount == cellCount)
    index.setMaximumByteCount(1 << 20)
    while fixture.store.maintain() {}
    #expect(try #require(index.current?.cellCount) > cellCount)
    expectAllFound(count, in: fixture)
  }

  @Test("While another process has claimed the larger file, the free cells of the index are used")
  func claimed() throws {
    let fixture = try StoreFixture { $0.stallTimeout = .milliseconds(20) }
    defer { fixture.finish() }
    let index = fixture.store.context.database.index
    let cellCount = try #require(index.current?.cellCount)
    let claim = try #require(IndexClaim(fixture, 0))
    let count = cellCount * 70 / 100
    for number in 0..<count { fixture.store.store(fixture.response("http://a.example/\(number)")) }
    try fixture.store.flush()
    #expect(index.current?.cellCount == cellCount && fixture.store.entryCount == count)
    claim.end()
    while fixture.store.maintain() {}
    #expect(try #require(index.current?.cellCount) > cellCount)
    expectAllFound(count, in: fixture)
  }

  @Test("In a full index, the changes of a purge take no cells from the writes of the same transaction")
  func purgeInFullIndex() throws {
    let fixture = try StoreFixture(capacity: 4 << 20)
    defer { fixture.finish() }
    let limit = fixture.store.evictor.space.budget.entryCount
    for number in 0..<limit {
      let host = number < Writer.directRemovalLimit / 2 ? "b.example" : "a.example"
      fixture.store.store(fixture.response("http://\(host)/\(number)", body: Data()))
    }
    try fixture.store.flush()
    // The next write transaction applies it.
    try fixture.store.context.removalLog.append(.host("b.example"), timeout: .seconds(10)) {}
    let urls = (0..<300).map { "http://c.example/\($0)" }
    for url in urls { fixture.store.store(fixture.response(url, body: Data())) }
    try fixture.store.flush()
    #expect(fixture.store.statistics.droppedWrites == 0 && fixture.store.statistics.mapFullRetries == 0)
    #expect(urls.filter { fixture.body($0) == nil } == [])
  }

  @Test("If the index cannot grow, records are evicted, although few pages are in use")
  func noSpaceForGrowth() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    let index = fixture.store.context.database.index
    let cellCount = try #require(index.current?.cellCount)
    index.setMaximumByteCount(IndexLayout.byteCount(cellCount: cellCount))
    for number in 0..<2 * cellCount {
      fixture.store.store(fixture.response("http://a.example/\(number)", body: Data()))
      if number % 100 == 99 { try fixture.store.flush() }
    }
    try fixture.store.flush()
    #expect(index.current?.cellCount == cellCount)
    #expect(fixture.store.statistics.droppedWrites == 0)
    #expect(fixture.store.entryCount > cellCount / 4)
    #expect(fixture.body("http://a.example/\(2 * cellCount - 1)") != nil)
  }
}

import Foundation
import Testing

@testable import ResponseStore

/// The index of a store grows in steps of new records and of the eviction thread. ``RecordIndexTests`` tests the steps.
@Suite("Growth of a store's index")
struct IndexGrowthTests {
  /// Stores responses, one per transaction, until the index begins to grow. Returns their number.
  private func beginGrowth(_ fixture: StoreFixture) throws -> Int {
    var count = 0
    repeat {
      fixture.store.store(fixture.response("http://a.example/\(count)"))
      try fixture.store.flush()
      count += 1
    } while !fixture.store.context.database.index.isBeingReplaced
    return count
  }

  private func expectAllFound(_ count: Int, in fixture: StoreFixture) {
    #expect((0..<count).filter { fixture.body("http://a.example/\($0)") == nil } == [])
  }

  @Test("The eviction thread's steps complete the growth, without new records")
  func maintained() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    let count = try beginGrowth(fixture)
    let index = fixture.store.context.database.index
    let cellCount = try #require(index.current?.cellCount)
    expectAllFound(count, in: fixture)
    while fixture.store.maintain() {}
    #expect(!index.isBeingReplaced)
    #expect(try #require(index.current?.cellCount) > cellCount)
    expectAllFound(count, in: fixture)
  }

  @Test("The writer wakes the eviction thread when the index begins to grow")
  func woken() throws {
    let fixture = try StoreFixture(background: true)
    defer { fixture.finish() }
    let index = fixture.store.context.database.index
    let cellCount = try #require(index.current?.cellCount)
    var count = 0
    // One step of the eviction thread copies all records of so small an index.
    while count * 100 <= cellCount * IndexLayout.growthPercent {
      fixture.store.store(fixture.response("http://a.example/\(count)"))
      count += 1
    }
    try fixture.store.flush()
    while index.isBeingReplaced { sched_yield() }
    #expect(try #require(index.current?.cellCount) > cellCount)
    expectAllFound(count, in: fixture)
  }

  @Test("In a full index, the changes of a purge take no cells from the writes of the same transaction")
  func purgeInFullIndex() throws {
    let fixture = try StoreFixture(capacity: 4 << 20)
    defer { fixture.finish() }
    let limit = fixture.store.evictor.space.budget.entryCount
    for number in 0..<limit {
      let host = number < RecordDatabase.directRemovalLimit / 2 ? "b.example" : "a.example"
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
    index.setMaximumByteCount(0)
    let cellCount = try #require(index.current?.cellCount)
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

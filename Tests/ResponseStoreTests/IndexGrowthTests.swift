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
}

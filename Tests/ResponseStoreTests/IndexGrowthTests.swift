import Foundation
import ResponseStore
import Testing

/// ``RecordIndexTests`` tests the copying.
@Suite("Growth of a store's index", .endsFixtures)
struct IndexGrowthTests {
  private func expectAllFound(_ count: Int, in fixture: StoreFixture) {
    #expect((0..<count).filter { fixture.body("http://a.example/\($0)") == nil } == [])
  }

  @Test("The index grows while responses are stored, and each of them is found")
  func growth() throws {
    let fixture = try StoreFixture(background: true)
    let cellCount = try #require(fixture.store.indexCellCount)
    for number in 0..<2 * cellCount {
      fixture.store.store(fixture.response("http://a.example/\(number)"))
    }
    try fixture.store.flush()
    #expect(try #require(fixture.store.indexCellCount) > 2 * cellCount)
    expectAllFound(2 * cellCount, in: fixture)
  }

  @Test("If the index cannot grow, records are evicted, although few pages are in use")
  func noSpaceForGrowth() throws {
    let fixture = try StoreFixture()
    let cellCount = try #require(fixture.store.indexCellCount)
    fixture.store.stopIndexGrowth()
    for number in 0..<2 * cellCount {
      fixture.store.store(fixture.response("http://a.example/\(number)", body: Data()))
      if number % 100 == 99 { try fixture.store.flush() }
    }
    try fixture.store.flush()
    #expect(fixture.store.indexCellCount == cellCount)
    #expect(fixture.store.statistics.droppedWrites == 0)
    #expect(fixture.store.entryCount > cellCount / 4)
    #expect(fixture.body("http://a.example/\(2 * cellCount - 1)") != nil)
  }
}

import Foundation
import HTTPCaching
import LMDB
import Testing

@testable import ResponseStore

@Suite("Walks over the entries")
struct EntryWalkTests {
  @Test("In the order of time, also where records were replaced")
  func orderOfTime() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    func store(_ numbers: some Sequence<Int>) {
      for number in numbers {
        fixture.store.store(fixture.response("http://a.example/\(number)", body: pseudorandomData(600, seed: 1)))
        fixture.clock.advance(by: 1)
      }
      fixture.drain()
    }
    store(0..<200)
    // Some take the place of others.
    store(stride(from: 0, to: 200, by: 3))
    var times: [Date] = []
    var rows: [UInt64] = []
    fixture.store.forEachEntry(in: .time) {
      times.append($0.storedAt)
      rows.append($0.rowID)
      return true
    }
    #expect(times.count == 200)
    #expect(times == times.sorted())
    #expect(Set(rows).count == 200)
    #expect(fixture.store.storedTimes == times[0]...times[199])
    var inOrderOfRows: [UInt64] = []
    fixture.store.forEachEntry(in: .stored) {
      inOrderOfRows.append($0.rowID)
      return true
    }
    // One log after the other.
    #expect(inOrderOfRows == rows.sorted { ($0 % Band.rowIDStep, $0) < ($1 % Band.rowIDStep, $1) })
  }

  @Test(
    "A walk holds no more than its largest batch, and its first batch is small", arguments: [EntryOrder.stored, .time])
  func bound(order: EntryOrder) throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    let count = 3 * EntryWalk.maximumBatchCount
    for number in 0..<count { fixture.store.store(fixture.response("http://a.example/\(number)")) }
    fixture.drain()
    var walk = EntryWalk(
      file: fixture.store.file, removals: fixture.store.removals, order: order,
      scope: Purge(sequence: .max, scope: .everything, lastRowID: .max), isAlone: true)
    var sizes: [Int] = []
    while let batch = try walk.nextBatch() { sizes.append(batch.count) }
    #expect(sizes.reduce(0, +) == count)
    #expect(sizes.first == 64)
    #expect(sizes.max() == EntryWalk.maximumBatchCount)
  }

  @Test("No snapshot is held while the caller looks at an entry")
  func holdsNoSnapshot() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    for number in 0..<300 { fixture.store.store(fixture.response("http://a.example/\(number)")) }
    fixture.drain()
    var seen = 0
    fixture.store.forEachEntry { _ in
      seen += 1
      #expect(fixture.store.file.environment.oldestSnapshot() == .max)
      return seen < 200
    }
    #expect(seen == 200)
  }

  @Test("An error of the caller ends the walk and is passed on")
  func errors() throws {
    struct Enough: Error {}
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    fixture.store.store(fixture.response("http://a.example/"))
    fixture.drain()
    #expect(throws: Enough.self) {
      try fixture.store.forEachEntry { (_) throws(Enough) in throw Enough() }
    }
  }
}

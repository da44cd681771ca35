import Foundation
import HTTPCaching
import LMDB
import ResponseStore
import Testing

@Suite("Enumerating entries", .endsFixtures)
struct EntryWalkTests {
  @Test("Entries are enumerated in the order of time, also if records were replaced")
  func orderOfTime() throws {
    let fixture = try StoreFixture()
    func store(_ numbers: some Sequence<Int>) {
      for number in numbers {
        fixture.store.store(fixture.response("http://a.example/\(number)", body: pseudorandomData(600, seed: 1)))
        fixture.clock.advance(by: 1)
      }
      fixture.drain()
    }
    store(0..<200)
    // Every third record is replaced.
    store(stride(from: 0, to: 200, by: 3))
    let entries = Array(fixture.store.entries(in: .time))
    let times = entries.map(\.storedAt)
    let rows = entries.map(\.rowID)
    #expect(times.count == 200)
    #expect(times == times.sorted())
    #expect(Set(rows).count == 200)
    #expect(fixture.store.storedTimes == times[0]...times[199])
    let inOrderOfRows = fixture.store.entries(in: .stored).map(\.rowID)
    // The rows of one record log after those of the other. The log is the remainder by 8.
    #expect(inOrderOfRows == rows.sorted { ($0 % 8, $0) < ($1 % 8, $1) })
  }

  @Test("No snapshot is open while the caller processes an entry")
  func holdsNoSnapshot() throws {
    let fixture = try StoreFixture()
    for number in 0..<300 { fixture.store.store(fixture.response("http://a.example/\(number)")) }
    fixture.drain()
    var seen = 0
    for _ in fixture.store.entries() {
      seen += 1
      #expect(fixture.store.environment.oldestReaderTransactionID() == .max)
    }
    #expect(seen == 300)
  }
}

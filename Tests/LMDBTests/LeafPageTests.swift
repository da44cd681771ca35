import LMDB
import Testing

@Suite("Leaf pages")
struct LeafPageTests {
  @Test("The first keys of all leaf pages are listed in order, at once or in parts")
  func keys() throws {
    let fixture = try Fixture(mapByteCount: 4 << 20)
    try fixture.put(0..<2000, byteCount: 100)
    try fixture.environment.read { (transaction) throws(LMDBError) in
      let pageCount = try fixture.table.statistics(in: transaction).leafPageCount
      let all = try fixture.table.firstKeysOfLeafPages(
        from: 0, startingAt: nil, maximumCount: .max, in: transaction)
      #expect(all.keys.count == pageCount && all.next == nil)
      #expect(zip(all.keys, all.keys.dropFirst()).allSatisfy { $0.lexicographicallyPrecedes($1) })
      var parts: [[UInt8]] = []
      var start: [UInt8]?
      repeat {
        let part = try fixture.table.firstKeysOfLeafPages(
          from: 0, startingAt: start, maximumCount: 7, in: transaction)
        #expect(part.keys.count <= 7)
        parts += part.keys
        start = part.next
      } while start != nil
      #expect(parts == all.keys)
      let last = fixture.environment.information.lastPageNumber
      let beyondEnd = try fixture.table.firstKeysOfLeafPages(
        from: last + 1, startingAt: nil, maximumCount: .max, in: transaction)
      #expect(beyondEnd.keys.isEmpty && beyondEnd.next == nil)
    }
  }

  @Test("Storing a value again moves its page toward the start of the file if pages are free there")
  func move() throws {
    let fixture = try Fixture(mapByteCount: 4 << 20)
    try fixture.put(0..<4000, byteCount: 100)
    try fixture.environment.write { (transaction) throws(LMDBError) in
      for key: UInt64 in 0..<3000 { try fixture.table.remove(key, in: transaction) }
    }
    for key: UInt64 in 3000..<3002 { try fixture.put([key], byteCount: 100) }
    func keys(fromPage limit: Int) throws(LMDBError) -> [[UInt8]] {
      try fixture.environment.read { (transaction) throws(LMDBError) in
        try fixture.table.firstKeysOfLeafPages(
          from: limit, startingAt: nil, maximumCount: .max, in: transaction
        ).keys
      }
    }
    let limit = fixture.environment.information.lastPageNumber / 2
    let before = try keys(fromPage: limit).count
    #expect(before > 5)
    for _ in 0..<4 {
      for key in try keys(fromPage: limit) {
        let number = key.reduce(UInt64(0)) { $0 << 8 | UInt64($1) }
        try fixture.put([number], byteCount: 100)
      }
    }
    #expect(try keys(fromPage: limit).count < before)
  }
}

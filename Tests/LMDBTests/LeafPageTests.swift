import LMDB
import Testing

@Suite("Leaf pages")
struct LeafPageTests {
  @Test("One key of each leaf page, in order and in parts")
  func keys() throws {
    let fixture = try Fixture(mapByteCount: 4 << 20)
    try fixture.put(0..<2000, byteCount: 100)
    try fixture.environment.read { (transaction) throws(LMDBError) in
      let pageCount = try fixture.table.statistics(in: transaction).leafPageCount
      let all = try fixture.table.keysOfLeafPages(
        from: 0, startingAt: nil, maximumCount: .max, in: transaction)
      #expect(all.keys.count == pageCount && all.next == nil)
      #expect(zip(all.keys, all.keys.dropFirst()).allSatisfy { $0.lexicographicallyPrecedes($1) })
      var parts: [[UInt8]] = []
      var start: [UInt8]?
      repeat {
        let part = try fixture.table.keysOfLeafPages(
          from: 0, startingAt: start, maximumCount: 7, in: transaction)
        #expect(part.keys.count <= 7)
        parts += part.keys
        start = part.next
      } while start != nil
      #expect(parts == all.keys)
      let last = fixture.environment.information.lastPageNumber
      let behind = try fixture.table.keysOfLeafPages(
        from: last + 1, startingAt: nil, maximumCount: .max, in: transaction)
      #expect(behind.keys.isEmpty && behind.next == nil)
    }
  }

  @Test("To store a value again moves its page in front, where there is room")
  func move() throws {
    let fixture = try Fixture(mapByteCount: 4 << 20)
    try fixture.put(0..<4000, byteCount: 100)
    try fixture.environment.write { (transaction) throws(LMDBError) in
      for key: UInt64 in 0..<3000 { try fixture.table.remove(key, in: transaction) }
    }
    for key: UInt64 in 3000..<3002 { try fixture.put([key], byteCount: 100) }
    func behind(_ limit: Int) throws(LMDBError) -> [[UInt8]] {
      try fixture.environment.read { (transaction) throws(LMDBError) in
        try fixture.table.keysOfLeafPages(
          from: limit, startingAt: nil, maximumCount: .max, in: transaction
        ).keys
      }
    }
    let limit = fixture.environment.information.lastPageNumber / 2
    let before = try behind(limit).count
    #expect(before > 5)
    for _ in 0..<4 {
      for key in try behind(limit) {
        let number = key.reduce(UInt64(0)) { $0 << 8 | UInt64($1) }
        try fixture.put([number], byteCount: 100)
      }
    }
    #expect(try behind(limit).count < before)
  }
}

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

  @Test("The room in a leaf: what a removal frees, and what a new entry takes without another page")
  func room() throws {
    let fixture = try Fixture(mapByteCount: 4 << 20)
    // Every fourth number, so that there are others between.
    let keys = Array(stride(from: UInt64(4), to: 4000, by: 4))
    try fixture.put(keys, byteCount: 100)
    let entryByteCount = Table<BigEndianUInt64, BytesCodec>.leafByteCount(keyByteCount: 8, valueByteCount: 100)
    func room(_ keys: [UInt64]) throws(LMDBError) -> [Table<BigEndianUInt64, BytesCodec>.LeafRoom] {
      try fixture.environment.read { (transaction) throws(LMDBError) in
        try fixture.table.leafRooms(for: keys, in: transaction)
      }
    }
    func leafPageCount() throws(LMDBError) -> Int {
      try fixture.environment.read { (transaction) throws(LMDBError) in
        try fixture.table.statistics(in: transaction).leafPageCount
      }
    }
    // In the middle of a leaf: its neighbours lie in the same one.
    let all = try room(keys)
    let index = try #require((2..<all.count).first { all[$0].pageNumber == all[$0 - 2].pageNumber })
    let key = keys[index - 1]
    let before = try room([key])[0]
    #expect(before.below == key - 4 && before.above == key)
    try fixture.environment.write { (transaction) throws(LMDBError) in
      try fixture.table.remove(key, in: transaction)
    }
    let after = try room([key])[0]
    #expect(after.freeByteCount == before.freeByteCount + entryByteCount)
    #expect(after.below == key - 4 && after.above == key + 4)
    let pageCount = try leafPageCount()
    try fixture.put([key - 1], byteCount: 100)
    #expect(try room([key])[0].freeByteCount == before.freeByteCount)
    #expect(try leafPageCount() == pageCount)
    // At the ends of the table there is nothing below or above.
    #expect(try room([1])[0].below == nil && room([100_000])[0].above == nil)
  }

  @Test("An empty table has no leaf with room")
  func noLeaf() throws {
    let fixture = try Fixture()
    let rooms = try fixture.environment.read { (transaction) throws(LMDBError) in
      try fixture.table.leafRooms(for: [7], in: transaction)
    }
    #expect(rooms.count == 1 && rooms[0].freeByteCount == 0 && rooms[0].below == nil && rooms[0].above == nil)
  }
}

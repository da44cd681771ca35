import LMDB
import Testing

@Suite("Cursors")
struct CursorTests {
  /// Runs `body` with a cursor in a write transaction over the keys 10, 20 … 10 × `count`.
  private func withCursor(
    count: UInt64 = 5, byteCount: Int = 8,
    _ body: (inout Cursor<BigEndianUInt64Codec, BytesCodec>, Fixture, borrowing WriteTransaction) throws(LMDBError) ->
      Void
  ) throws -> Fixture {
    let fixture = try Fixture(mapByteCount: 8 << 20)
    try fixture.put((0..<count).map { ($0 + 1) * 10 }, byteCount: byteCount)
    try fixture.environment.write { transaction throws(LMDBError) in
      try fixture.table.withCursor(in: transaction) { cursor throws(LMDBError) in
        try body(&cursor, fixture, transaction)
      }
    }
    return fixture
  }

  @Test("A cursor moves forward and backward across pages")
  func bothDirections() throws {
    _ = try withCursor(count: 100, byteCount: 700) { cursor, fixture, _ throws(LMDBError) in
      var keys: [UInt64] = []
      while try cursor.next() { keys.append(cursor.key!) }
      #expect(keys == (1...100).map { $0 * 10 })
      keys = []
      #expect(try cursor.last())
      repeat { keys.append(cursor.key!) } while try cursor.previous()
      #expect(keys == (1...100).reversed().map { $0 * 10 })
    }
  }

  @Test("Seeking finds the key or the next one")
  func seek() throws {
    _ = try withCursor { cursor, _, _ throws(LMDBError) in
      #expect(try cursor.seek(to: 30))
      #expect(cursor.key == 30)
      #expect(cursor.value == bytes(30))
      #expect(try !cursor.seek(to: 31))
      #expect(try cursor.seek(atOrAfter: 30))
      #expect(cursor.key == 30)
      #expect(try cursor.seek(atOrAfter: 31))
      #expect(cursor.key == 40)
      #expect(try cursor.previous())
      #expect(cursor.key == 30)
      #expect(try !cursor.seek(atOrAfter: 51))
    }
  }

  @Test("Removing entries while moving forward skips no entry", arguments: [8, 900])
  func removeForwards(byteCount: Int) throws {
    let fixture = try withCursor(count: 60, byteCount: byteCount) { cursor, _, _ throws(LMDBError) in
      var seen: [UInt64] = []
      while try cursor.next() {
        let key = cursor.key!
        seen.append(key)
        if key % 20 == 0 { try cursor.remove() }
      }
      #expect(seen == (1...60).map { $0 * 10 })
    }
    #expect(try fixture.keys() == (1...60).map { $0 * 10 }.filter { $0 % 20 != 0 })
  }

  @Test("A cursor keeps its entry while the table changes")
  func changesUnderneath() throws {
    _ = try withCursor { cursor, fixture, transaction throws(LMDBError) in
      #expect(try cursor.seek(to: 30))
      for key in 0..<200 as Range<UInt64> where key % 10 != 0 {
        try fixture.table.put(bytes(key, 500), for: key, in: transaction)
      }
      #expect(cursor.key == 30)
      #expect(cursor.value == bytes(30))
      try fixture.table.put([1, 2, 3], for: 30, in: transaction)
      #expect(cursor.value == [1, 2, 3])
      try fixture.table.remove(30, in: transaction)
      #expect(cursor.key == 31)
      #expect(try cursor.previous())
      #expect(cursor.key == 29)
    }
  }

  @Test("A read cursor returns nil for entries that the codecs cannot decode")
  func undecodable() throws {
    let fixture = try Fixture()
    try fixture.put([1], byteCount: 3)
    let other = try fixture.environment.table("table", key: BigEndianPairCodec.self, value: BigEndianUInt64Codec.self)
    try fixture.environment.read { transaction throws(LMDBError) in
      try other.withCursor(in: transaction) { cursor throws(LMDBError) in
        #expect(try cursor.next())
        #expect(cursor.key == nil)
        #expect(cursor.value == nil)
        #expect(try cursor.withValue { value throws(LMDBError) in value.byteCount } == 3)
      }
    }
  }
}

import Foundation
import LMDB
import Testing

@Suite("Tables")
struct TableTests {
  @Test("Upsert replaces a value, insert does not, and append accepts keys in any order")
  func modes() throws {
    let fixture = try Fixture()
    let table = fixture.table
    try fixture.environment.write { transaction throws(LMDBError) in
      #expect(try table.put([1], for: 5, in: transaction))
      #expect(try table.put([2], for: 5, in: transaction))
      #expect(try !table.put([3], for: 5, in: transaction, mode: .insert))
      #expect(try table.value(for: 5, in: transaction) == [2])
      #expect(try table.put([4], for: 6, in: transaction, mode: .insert))

      #expect(try table.put([5], for: 7, in: transaction, mode: .append))
      // LMDB itself appends only keys above the last one.
      #expect(try table.put([6], for: 1, in: transaction, mode: .append))
      #expect(try table.put([7], for: 7, in: transaction, mode: .append))
      #expect(try table.value(for: 1, in: transaction) == [6])
      #expect(try table.value(for: 7, in: transaction) == [7])
    }
    #expect(try fixture.keys() == [1, 5, 6, 7])
  }

  @Test("Reserved space is written in place")
  func reserve() throws {
    let fixture = try Fixture()
    let table = fixture.table
    func fill(_ byte: UInt8) -> (UnsafeMutableRawBufferPointer) -> Void {
      { space in _ = space.initializeMemory(as: UInt8.self, repeating: byte) }
    }
    try fixture.environment.write { transaction throws(LMDBError) in
      #expect(try table.reserve(byteCount: 10_000, for: 1, in: transaction, fill(1)))
      #expect(try !table.reserve(byteCount: 1, for: 1, in: transaction, mode: .insert, fill(9)))
      #expect(try table.reserve(byteCount: 3, for: 0, in: transaction, mode: .append, fill(2)))
      var byteCount = -1
      #expect(try table.reserve(byteCount: 0, for: 2, in: transaction, mode: .append) { byteCount = $0.count })
      #expect(byteCount == 0)
    }
    try fixture.environment.read { transaction throws(LMDBError) in
      #expect(try table.value(for: 0, in: transaction) == [2, 2, 2])
      #expect(try table.value(for: 1, in: transaction) == bytes(1, 10_000))
      #expect(try table.value(for: 2, in: transaction) == [])
    }
  }

  @Test("Only keys of 1 to 511 bytes can be stored")
  func keySizes() throws {
    let fixture = try Fixture()
    let table = try fixture.environment.table("sizes", key: BytesCodec.self, value: EmptyCodec.self)
    for byteCount in [1, 511] {
      try fixture.environment.write { transaction throws(LMDBError) in
        #expect(try table.put((), for: bytes(1, byteCount), in: transaction))
      }
    }
    for byteCount in [0, 512] {
      let failure = error { () throws(LMDBError) in
        try fixture.environment.write { transaction throws(LMDBError) in
          _ = try table.put((), for: bytes(1, byteCount), in: transaction)
        }
      }
      #expect(failure == LMDBError(code: .badValueSize, function: "mdb_put"))
    }
    try fixture.environment.read { transaction throws(LMDBError) in
      #expect(try !table.contains(bytes(1, 512), in: transaction))
      let failure = error { () throws(LMDBError) in try table.contains([], in: transaction) }
      #expect(failure == LMDBError(code: .badValueSize, function: "mdb_get"))
    }
  }

  @Test("Tables are separate, and opening a table again returns the same table")
  func names() throws {
    let fixture = try Fixture { $0.maximumTables = 3 }
    let environment = fixture.environment
    let other = try environment.table("other", key: BigEndianUInt64Codec.self, value: BytesCodec.self)
    let again = try environment.table("other", key: BigEndianUInt64Codec.self, value: BytesCodec.self)
    try environment.write { transaction throws(LMDBError) in try other.put([1], for: 1, in: transaction) }
    #expect(try fixture.keys() == [])
    let value = try environment.read { transaction throws(LMDBError) in try again.value(for: 1, in: transaction) }
    #expect(value == [1])

    func code(_ name: String) -> LMDBError.Code? {
      error { () throws(LMDBError) in
        try environment.table(name, key: BytesCodec.self, value: BytesCodec.self)
      }?.code
    }
    #expect(code("") == .badValueSize)
    #expect(code("zero\0byte") == .badValueSize)
    #expect(code(String(repeating: "x", count: 512)) == .badValueSize)
    #expect(code("third") == nil)
    #expect(code("fourth") == .tablesFull)
    #expect(code("third") == nil)
  }

  @Test("Stored bytes that the codec cannot decode are an error, not a missing key")
  func undecodable() throws {
    let fixture = try Fixture()
    let numbers = try fixture.environment.table(
      "table", key: BigEndianUInt64Codec.self, value: BigEndianUInt64Codec.self)
    try fixture.put([1], byteCount: 3)
    let failure = error { () throws(LMDBError) in
      try fixture.environment.read { transaction throws(LMDBError) in
        _ = try numbers.value(for: 1, in: transaction)
      }
    }
    #expect(failure?.code == .undecodable)
  }

  @Test("A read cannot use a table that was opened after the read began")
  func tableYoungerThanTransaction() throws {
    let fixture = try Fixture()
    try fixture.environment.read { transaction throws(LMDBError) in
      let young = try fixture.environment.table("young", key: BigEndianUInt64Codec.self, value: BytesCodec.self)
      #expect(error { () throws(LMDBError) in try young.contains(1, in: transaction) }?.code == .invalidArgument)
      try fixture.environment.read { inner throws(LMDBError) in #expect(try !young.contains(1, in: inner)) }
    }
  }
}

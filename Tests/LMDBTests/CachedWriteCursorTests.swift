import Foundation
import LMDB
import Testing

@Suite("Cached write cursor")
struct CachedWriteCursorTests {
  @Test(
    "A table holds the expected entries in order after any mix of changes",
    arguments: 1...3 as ClosedRange<UInt64>)
  func mixedChanges(seed: UInt64) throws {
    var random = SeededGenerator(seed: seed)
    let fixture = try Fixture(mapByteCount: 32 << 20)
    let environment = fixture.environment
    let tables = [
      fixture.table, try environment.table("other", key: BigEndianUInt64Codec.self, value: BytesCodec.self),
    ]
    var expected: [[UInt64: [UInt8]]] = [[:], [:]]
    // Repeat each operation several times, so that the cursor is cached and reused before another operation drops it.
    for _ in 0..<4 {
      let before = expected
      let isAborted = random.below(4) == 0
      let outcome = Result { () throws(LMDBError) in
        try environment.write { (transaction) throws(LMDBError) in
          for _ in 0..<30 {
            let number = Int(random.below(2))
            let operation = random.below(8)
            for _ in 0...random.below(40) {
              try change(operation, tables[number], &expected[number], &random, in: transaction)
            }
          }
          if isAborted { throw LMDBError(code: .badTransaction, function: "test") }
        }
      }
      if isAborted {
        #expect(throws: LMDBError.self) { try outcome.get() }
        expected = before
      } else {
        try outcome.get()
      }
      for (table, content) in zip(tables, expected) {
        var found: [(UInt64, [UInt8])] = []
        try environment.read { transaction throws(LMDBError) in
          try table.withCursor(in: transaction) { (cursor) throws(LMDBError) in
            while try cursor.next() { found.append((cursor.key ?? 0, cursor.value ?? [])) }
          }
          for (key, value) in content { #expect(try table.value(for: key, in: transaction) == value) }
        }
        #expect(found.map(\.0) == content.keys.sorted())
        #expect(found.allSatisfy { content[$0.0] == $0.1 })
      }
    }
  }

  private func change(
    _ operation: UInt64, _ table: Table<BigEndianUInt64Codec, BytesCodec>, _ expected: inout [UInt64: [UInt8]],
    _ random: inout SeededGenerator, in transaction: borrowing WriteTransaction
  ) throws(LMDBError) {
    let last = expected.keys.max() ?? 0
    // Half of the keys follow the last one: this may add a page that an appending cursor would not notice.
    let key = random.below(2) == 0 ? random.below(2_000) : last + 1
    let value = bytes(random.below(1 << 40), Int(random.below(900)) + 8)
    switch operation {
    case 0, 1:
      try table.put(value, for: last + 1 + random.below(3), in: transaction, mode: .append)
      let stored = try table.withCursor(in: transaction) { (cursor) throws(LMDBError) in
        try cursor.last()
        return cursor.key
      }
      expected[stored ?? 0] = value
    case 2:
      // LMDB does not append keys below the last one.
      try table.put(value, for: key, in: transaction, mode: .append)
      expected[key] = value
    case 3:
      let isNew = try table.put(value, for: key, in: transaction, mode: .insert)
      #expect(isNew == (expected[key] == nil))
      if isNew { expected[key] = value }
    case 4:
      try table.put(value, for: key, in: transaction)
      expected[key] = value
    case 5:
      try table.reserve(byteCount: value.count, for: last + 1, in: transaction, mode: .append) {
        $0.copyBytes(from: value)
      }
      expected[last + 1] = value
    case 6:
      // Include the last key, which is the position of an appending cursor.
      let key = random.below(3) == 0 ? last : key
      #expect(try table.remove(key, in: transaction) == (expected.removeValue(forKey: key) != nil))
    default:
      try table.withCursor(in: transaction) { (cursor) throws(LMDBError) in
        var isFound = try cursor.seek(atOrAfter: key)
        if !isFound { isFound = try cursor.last() }
        guard isFound else { return }
        expected[cursor.key ?? 0] = nil
        try cursor.remove()
      }
    }
  }
}

extension SeededGenerator {
  fileprivate mutating func below(_ bound: UInt64) -> UInt64 { next() % bound }
}

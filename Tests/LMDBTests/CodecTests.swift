import LMDB
import Testing

@Suite("Codecs")
struct CodecTests {
  private func encoded<C: KeyCodec>(_ codec: C.Type, _ value: C.Value) throws -> [UInt8] {
    try C.withEncoded(value) { bytes throws(LMDBError) in [UInt8](bytes) }
  }

  private func decoded<C: KeyCodec>(_ codec: C.Type, _ bytes: [UInt8]) -> C.Value? {
    C.decode(bytes.span.bytes)
  }

  @Test("The layouts, byte for byte")
  func layouts() throws {
    #expect(try encoded(BigEndianUInt64.self, 0x0102_0304_0506_0708) == [1, 2, 3, 4, 5, 6, 7, 8])
    #expect(try encoded(BigEndianPair.self, (1, 258)) == [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 2])
    #expect(try encoded(UTF8String.self, "é") == [0xC3, 0xA9])
    #expect(try encoded(BytesCodec.self, [3, 0, 1]) == [3, 0, 1])
    #expect(try Empty.withEncoded(()) { bytes throws(LMDBError) in bytes.count } == 0)
  }

  @Test("Bytes of another codec are nil")
  func foreignBytes() {
    #expect(decoded(BigEndianUInt64.self, bytes(0, 7)) == nil)
    #expect(decoded(BigEndianUInt64.self, bytes(0, 9)) == nil)
    #expect(decoded(BigEndianPair.self, bytes(0, 15)) == nil)
    #expect(decoded(UTF8String.self, [0xC3]) == nil)
    func isEmpty(_ bytes: [UInt8]) -> Bool { Empty.decode(bytes.span.bytes) != nil }
    #expect(isEmpty([]))
    #expect(!isEmpty([1]))
  }

  @Test("Values come back, and byte order is their order", arguments: [1, 2, 3] as [UInt64])
  func order(seed: UInt64) throws {
    var random = SeededGenerator(seed: seed)
    // Of all magnitudes: neighbours differ in any of the eight bytes.
    func number() -> UInt64 { random.next() >> (random.next() % 64) }
    for _ in 0..<2_000 {
      let (a, b, c, d) = (number(), number(), number(), number())
      #expect(decoded(BigEndianUInt64.self, try encoded(BigEndianUInt64.self, a)) == a)
      let one = try encoded(BigEndianUInt64.self, a)
      let two = try encoded(BigEndianUInt64.self, b)
      #expect(one.lexicographicallyPrecedes(two) == (a < b))

      let first = Bool.random(using: &random) ? c : a
      let pair = decoded(BigEndianPair.self, try encoded(BigEndianPair.self, (a, b)))
      #expect(pair?.0 == a && pair?.1 == b)
      let onePair = try encoded(BigEndianPair.self, (a, b))
      let twoPair = try encoded(BigEndianPair.self, (first, d))
      #expect(onePair.lexicographicallyPrecedes(twoPair) == ((a, b) < (first, d)))
    }
  }

  @Test("A table's order is that of the keys", arguments: [4, 5] as [UInt64])
  func tableOrder(seed: UInt64) throws {
    var random = SeededGenerator(seed: seed)
    let fixture = try Fixture(mapByteCount: 4 << 20)
    let numbers = Set((0..<500).map { _ in random.next() >> (random.next() % 64) })
    try fixture.put(numbers)
    #expect(try fixture.keys() == numbers.sorted())

    let words = Set(
      (0..<300).map { _ in String((0..<3).map { _ in "aäß\u{10FFFF}€z".randomElement(using: &random)! }) })
    let table = try fixture.environment.table("words", key: UTF8String.self, value: Empty.self)
    let stored = try fixture.environment.write { transaction throws(LMDBError) in
      for word in words { try table.put((), for: word, in: transaction) }
      return try table.withCursor(in: transaction) { cursor throws(LMDBError) in
        var stored: [String] = []
        while try cursor.next() { stored.append(cursor.key!) }
        return stored
      }
    }
    #expect(stored == words.sorted { $0.unicodeScalars.lexicographicallyPrecedes($1.unicodeScalars) })
  }
}

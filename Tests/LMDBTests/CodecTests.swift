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

  @Test("Each codec has its documented byte layout")
  func layouts() throws {
    #expect(try encoded(BigEndianUInt64Codec.self, 0x0102_0304_0506_0708) == [1, 2, 3, 4, 5, 6, 7, 8])
    #expect(try encoded(BigEndianPairCodec.self, (1, 258)) == [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 2])
    #expect(try encoded(UTF8Codec.self, "é") == [0xC3, 0xA9])
    #expect(try encoded(BytesCodec.self, [3, 0, 1]) == [3, 0, 1])
    #expect(try EmptyCodec.withEncoded(()) { bytes throws(LMDBError) in bytes.count } == 0)
  }

  @Test("Decoding bytes of another codec returns nil")
  func foreignBytes() {
    #expect(decoded(BigEndianUInt64Codec.self, bytes(0, 7)) == nil)
    #expect(decoded(BigEndianUInt64Codec.self, bytes(0, 9)) == nil)
    #expect(decoded(BigEndianPairCodec.self, bytes(0, 15)) == nil)
    #expect(decoded(UTF8Codec.self, [0xC3]) == nil)
    func isEmpty(_ bytes: [UInt8]) -> Bool { EmptyCodec.decode(bytes.span.bytes) != nil }
    #expect(isEmpty([]))
    #expect(!isEmpty([1]))
  }

  @Test("Encoded values decode to themselves and sort like the values", arguments: [1, 2, 3] as [UInt64])
  func order(seed: UInt64) throws {
    var random = SeededGenerator(seed: seed)
    // Numbers of all magnitudes, so that all eight bytes are significant.
    func number() -> UInt64 { random.next() >> (random.next() % 64) }
    for _ in 0..<2_000 {
      let (a, b, c, d) = (number(), number(), number(), number())
      #expect(decoded(BigEndianUInt64Codec.self, try encoded(BigEndianUInt64Codec.self, a)) == a)
      let one = try encoded(BigEndianUInt64Codec.self, a)
      let two = try encoded(BigEndianUInt64Codec.self, b)
      #expect(one.lexicographicallyPrecedes(two) == (a < b))

      let first = Bool.random(using: &random) ? c : a
      let pair = decoded(BigEndianPairCodec.self, try encoded(BigEndianPairCodec.self, (a, b)))
      #expect(pair?.0 == a && pair?.1 == b)
      let onePair = try encoded(BigEndianPairCodec.self, (a, b))
      let twoPair = try encoded(BigEndianPairCodec.self, (first, d))
      #expect(onePair.lexicographicallyPrecedes(twoPair) == ((a, b) < (first, d)))
    }
  }
}

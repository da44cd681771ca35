/// One operation of the contract test, decoded from four bytes, of which each sequence is valid.
package struct ContractOperation: Sendable, Equatable {
  enum Kind: UInt8, CaseIterable {
    case store, arrive, storeMany, lookup, update, remove, takeToken
    case write, maintain, flush, reopen, setCapacity, moveClock, failDisk, checkAll, fail
  }

  /// The number of bytes of an operation.
  package static let byteCount = 4

  let bytes: [UInt8]

  /// How many of 256 first bytes mean each kind.
  private static let shares: [(Kind, Int)] = [
    (.store, 70), (.arrive, 12), (.storeMany, 6), (.lookup, 42), (.update, 26), (.remove, 28), (.takeToken, 8),
    (.write, 22), (.maintain, 12), (.flush, 8), (.reopen, 4), (.setCapacity, 2), (.moveClock, 8),
    (.failDisk, 5), (.checkAll, 2), (.fail, 1),
  ]
  private static let kinds = shares.flatMap { [Kind](repeating: $0.0, count: $0.1) }

  package init(_ bytes: some Collection<UInt8>) {
    self.bytes = Array(bytes)
    precondition(self.bytes.count == Self.byteCount)
  }

  package static func random(_ random: inout SeededRandom) -> ContractOperation {
    let word = random.next()
    return ContractOperation((0..<4).map { UInt8(truncatingIfNeeded: word >> ($0 * 8)) })
  }

  /// Returns the complete operations in some bytes.
  package static func all(in bytes: some Collection<UInt8>) -> [ContractOperation] {
    let bytes = Array(bytes)
    return stride(from: 0, to: bytes.count - byteCount + 1, by: byteCount).map {
      ContractOperation(bytes[$0..<$0 + byteCount])
    }
  }

  var kind: Kind { Self.kinds[Int(bytes[0]) % Self.kinds.count] }
  /// Half of the operations use few slots, so that they meet.
  var slot: Int {
    let number = Int(bytes[1]) | Int(bytes[2] & 0x80) << 1
    return bytes[2] & 0x40 == 0 ? number % ContractContent.slotCount : (number % 8 * 37) % ContractContent.slotCount
  }
  /// A number below 64.
  var choice: Int { Int(bytes[2] & 0x3f) }
  /// A number below 256.
  var parameter: Int { Int(bytes[3]) }

  /// The bytes as text, for a corpus.
  package var hexadecimal: String {
    bytes.map { ($0 < 16 ? "0" : "") + String($0, radix: 16) }.joined()
  }
}

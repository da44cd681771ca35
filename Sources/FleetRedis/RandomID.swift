/// 128 random bits, as a text of 32 hexadecimal digits.
package struct RandomID: Hashable, Sendable {
  package let bytes: [UInt8]

  package init() {
    // Each call of the generator is a system call.
    var random = SystemRandomNumberGenerator()
    bytes = [random.next(), random.next()].flatMap { (word: UInt64) in withUnsafeBytes(of: word) { Array($0) } }
  }

  package init(bytes: some Collection<UInt8>) {
    self.bytes = Array(bytes)
  }

  package init?(text: [UInt8]) {
    guard text.count == 32 else { return nil }
    var bytes: [UInt8] = []
    for index in stride(from: 0, to: 32, by: 2) {
      guard let byte = UInt8(String(decoding: text[index..<index + 2], as: UTF8.self), radix: 16) else { return nil }
      bytes.append(byte)
    }
    self.bytes = bytes
  }

  package var text: String { String(decoding: Hexadecimal.digits(of: bytes), as: UTF8.self) }
}

/// Bytes as hexadecimal digits in lowercase.
enum Hexadecimal {
  private static let digits = Array("0123456789abcdef".utf8)

  static func digits(of bytes: some Collection<UInt8>) -> [UInt8] {
    var text: [UInt8] = []
    text.reserveCapacity(2 * bytes.count)
    for byte in bytes {
      text.append(digits[Int(byte >> 4)])
      text.append(digits[Int(byte & 15)])
    }
    return text
  }
}

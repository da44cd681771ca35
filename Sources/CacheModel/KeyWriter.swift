import Glibc

/// Writes the bytes of a key to a buffer that is large enough.
struct KeyWriter {
  /// Stands for a zero in a part of a key, because zeros separate the parts. UTF-8 text never contains it.
  static let zeroInText: UInt8 = 0xFF

  let buffer: UnsafeMutableBufferPointer<UInt8>
  var count = 0

  mutating func append(_ byte: UInt8) {
    buffer[count] = byte
    count += 1
  }

  mutating func append(_ string: String) {
    guard !string.isEmpty else { return }
    let start = count
    var string = string
    string.withUTF8 { append($0) }
    guard let written = buffer.baseAddress.map({ $0 + start }), memchr(written, 0, count - start) != nil else { return }
    for index in start..<count where buffer[index] == 0 { buffer[index] = Self.zeroInText }
  }

  @inline(__always)  // So that a constant costs a copy of its bytes.
  mutating func append(_ text: StaticString) {
    append(UnsafeBufferPointer(start: text.utf8Start, count: text.utf8CodeUnitCount))
  }

  mutating func append(decimal number: Int) {
    var divisor = 1
    while number / divisor >= 10 { divisor *= 10 }
    while divisor > 0 {
      append(UInt8(ascii: "0") + UInt8(number / divisor % 10))
      divisor /= 10
    }
  }

  mutating func appendOrigin(of parts: URLParts, in text: UnsafeBufferPointer<UInt8>) {
    if var host = parts.canonicalHost(in: text) {
      host.withUTF8 { append($0) }
    } else {
      append(lowercasing: text[parts.host])
    }
    append(0)
    append(lowercasing: text[parts.scheme])
    append(UInt8(ascii: ":"))
    if !parts.port.isEmpty {
      for index in parts.port { append(text[index]) }
    } else if let defaultPort = parts.defaultPort {
      append(defaultPort)
    }
  }

  mutating func appendTarget(of parts: URLParts, in text: UnsafeBufferPointer<UInt8>) {
    if parts.isHierarchical, parts.target.isEmpty || text[parts.target.lowerBound] == UInt8(ascii: "?") {
      append(UInt8(ascii: "/"))
    }
    let start = count
    append(UnsafeBufferPointer(rebasing: text[parts.target]))
    PercentEncoding.uppercaseDigits(UnsafeMutableBufferPointer(rebasing: buffer[start..<count]))
  }

  mutating func append(lowercasing bytes: Slice<UnsafeBufferPointer<UInt8>>) {
    guard let source = bytes.base.baseAddress, let start = buffer.baseAddress else { return }
    // Plain pointers let the compiler vectorize the loop.
    let (from, to) = (source + bytes.startIndex, start + count)
    for index in 0..<bytes.count { to[index] = lowercased(from[index]) }
    count += bytes.count
  }

  mutating func append(_ bytes: UnsafeBufferPointer<UInt8>) {
    guard let source = bytes.baseAddress, let start = buffer.baseAddress else { return }
    (start + count).update(from: source, count: bytes.count)
    count += bytes.count
  }
}

private func lowercased(_ byte: UInt8) -> UInt8 {
  byte &- UInt8(ascii: "A") < 26 ? byte | 0x20 : byte
}

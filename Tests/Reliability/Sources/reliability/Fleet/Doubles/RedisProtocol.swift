/// A value of Redis's protocol (RESP2).
enum RedisValue: Sendable {
  /// A status, an error or a number, with its first character.
  case line([UInt8])
  case string([UInt8]?)
  case list([RedisValue]?)

  static func text(_ text: String) -> RedisValue { .string(Array(text.utf8)) }

  /// The bytes of a string; nil for another value.
  var bytes: [UInt8]? {
    if case .string(let bytes) = self { bytes } else { nil }
  }

  /// The text of a string; empty for another value.
  var text: String { String(decoding: bytes ?? [], as: UTF8.self) }

  var encoded: [UInt8] {
    switch self {
    case .line(let line): line + Self.lineEnd
    case .string(nil): Array("$-1\r\n".utf8)
    case .string(let bytes?): Array("$\(bytes.count)\r\n".utf8) + bytes + Self.lineEnd
    case .list(nil): Array("*-1\r\n".utf8)
    case .list(let values?): Array("*\(values.count)\r\n".utf8) + values.flatMap(\.encoded)
    }
  }

  fileprivate static let lineEnd = Array("\r\n".utf8)
}

/// The values in a stream of bytes.
struct RedisValueStream {
  private var bytes: [UInt8] = []

  /// Adds bytes, and returns the values that they complete.
  mutating func values(adding new: some Sequence<UInt8>) -> [RedisValue] {
    bytes += new
    var values: [RedisValue] = []
    var end = 0
    var next = 0
    while let value = value(at: &next) {
      values.append(value)
      end = next
    }
    bytes.removeFirst(end)
    return values
  }

  /// Parses the value at an offset, and moves the offset past it; nil if it is not complete.
  private func value(at offset: inout Int) -> RedisValue? {
    guard let lineEnd = bytes[offset...].firstIndex(of: UInt8(ascii: "\r")), lineEnd + 1 < bytes.count else {
      return nil
    }
    let line = Array(bytes[offset..<lineEnd])
    let count = Int(String(decoding: line.dropFirst(), as: UTF8.self)) ?? 0
    offset = lineEnd + 2
    switch line.first {
    case UInt8(ascii: "$"):
      guard count >= 0 else { return .string(nil) }
      guard offset + count + 2 <= bytes.count else { return nil }
      defer { offset += count + 2 }
      return .string(Array(bytes[offset..<offset + count]))
    case UInt8(ascii: "*"):
      guard count >= 0 else { return .list(nil) }
      var values: [RedisValue] = []
      for _ in 0..<count {
        guard let value = value(at: &offset) else { return nil }
        values.append(value)
      }
      return .list(values)
    default: return .line(line)
    }
  }
}

import CHiredis
import FoundationEssentials

/// A reply of Redis in RESP2.
package enum RedisReply: Sendable, Equatable {
  case bytes([UInt8])
  /// A string of at least ``longByteCount`` bytes, in the memory that hiredis has allocated for it.
  case data(Data)
  case integer(Int64)
  case array([RedisReply])
  case null
  /// An error within an array. An error that is the whole reply is thrown.
  case error(String)

  /// The size from which a string is not copied, such as the body of a shared response.
  package static let longByteCount = 4096

  /// The maximum number of arrays in which a value may be.
  static let maximumDepth = 8

  static var tooDeep: RedisTierError { RedisTierError(.badReply, "a reply of Redis is nested too deeply") }

  /// Copies a reply of hiredis, but takes its long strings out of it.
  init(_ reply: UnsafeMutablePointer<redisReply>, depth: Int = 0) throws(RedisTierError) {
    switch reply.pointee.type {
    case REDIS_REPLY_STRING, REDIS_REPLY_STATUS:
      if reply.pointee.len >= Self.longByteCount, let text = reply.pointee.str {
        // `freeReplyObject` skips a null pointer.
        reply.pointee.str = nil
        self = .data(Data(bytesNoCopy: text, count: reply.pointee.len, deallocator: .free))
      } else {
        self = .bytes(Self.bytes(reply))
      }
    case REDIS_REPLY_INTEGER:
      self = .integer(reply.pointee.integer)
    case REDIS_REPLY_ARRAY:
      guard depth < Self.maximumDepth else { throw Self.tooDeep }
      var elements: [RedisReply] = []
      elements.reserveCapacity(reply.pointee.elements)
      for index in 0..<reply.pointee.elements {
        guard let element = reply.pointee.element?[index] else {
          throw RedisTierError(.badReply, "a reply of Redis is incomplete")
        }
        elements.append(try RedisReply(element, depth: depth + 1))
      }
      self = .array(elements)
    case REDIS_REPLY_NIL:
      self = .null
    case REDIS_REPLY_ERROR:
      self = .error(String(decoding: Self.bytes(reply), as: UTF8.self))
    default:
      throw RedisTierError(.badReply, "Redis sent a reply of an unknown type")
    }
  }

  private static func bytes(_ reply: UnsafePointer<redisReply>) -> [UInt8] {
    guard let text = reply.pointee.str else { return [] }
    return [UInt8](UnsafeRawBufferPointer(start: text, count: reply.pointee.len))
  }

  // MARK: Typed access

  private static func mismatch(_ expected: String) -> RedisTierError {
    RedisTierError(.badReply, "Redis sent something else than \(expected)")
  }

  package func asBytes() throws(RedisTierError) -> [UInt8] {
    switch self {
    case .bytes(let bytes): return bytes
    case .data(let data): return Array(data)
    case .array, .integer, .null, .error: throw Self.mismatch("a string")
    }
  }

  /// The bytes of a string, without a copy of a long one.
  package func asData() throws(RedisTierError) -> Data {
    if case .data(let data) = self { return data }
    return Data(try asBytes())
  }

  package func asText() throws(RedisTierError) -> String { String(decoding: try asBytes(), as: UTF8.self) }

  /// An integer, or a string with one.
  package func asInteger() throws(RedisTierError) -> Int64 {
    switch self {
    case .integer(let value): return value
    case .bytes(let bytes):
      if let value = Int64(String(decoding: bytes, as: UTF8.self)) { return value }
    case .array, .data, .null, .error: break
    }
    throw Self.mismatch("an integer")
  }

  /// An integer that is not negative.
  package func asCount() throws(RedisTierError) -> UInt64 {
    guard let value = UInt64(exactly: try asInteger()) else { throw Self.mismatch("a count") }
    return value
  }

  /// The elements of an array with at least this many; no elements for null.
  package func asElements(atLeast count: Int = 0) throws(RedisTierError) -> [RedisReply] {
    switch self {
    case .array(let elements) where elements.count >= count: return elements
    case .null where count == 0: return []
    default: throw Self.mismatch("an array of \(count) elements")
    }
  }

  /// The seconds since 1970 that `TIME` replies.
  package func asTime() throws(RedisTierError) -> Double {
    let parts = try asElements(atLeast: 2)
    return Double(try parts[0].asInteger()) + Double(try parts[1].asInteger()) / 1e6
  }

  /// The values of a hash by name.
  package func asHash() throws(RedisTierError) -> [[UInt8]: [UInt8]] {
    Dictionary(try asPairs().map { ($0.name, $0.value) }, uniquingKeysWith: { $1 })
  }

  package func asPairs() throws(RedisTierError) -> [(name: [UInt8], value: [UInt8])] {
    let elements = try asElements()
    guard elements.count % 2 == 0 else { throw Self.mismatch("pairs") }
    var pairs: [(name: [UInt8], value: [UInt8])] = []
    for index in stride(from: 0, to: elements.count, by: 2) {
      pairs.append((try elements[index].asBytes(), try elements[index + 1].asBytes()))
    }
    return pairs
  }
}

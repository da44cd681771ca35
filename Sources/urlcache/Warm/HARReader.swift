import Foundation

/// Finds the requests of a HAR file in pieces of its text.
///
/// It follows strings, objects and arrays, and decodes only the objects `log.entries[].request`, so that the bodies in
/// the file are never in memory.
struct HARReader {
  /// The maximum size of a request in the file.
  static let maximumRequestByteCount = 1 << 20
  private static let maximumDepth = 256
  private static let maximumKeyByteCount = 16

  private struct Level {
    let isObject: Bool
    /// The name of the present member of an object.
    var key: [UInt8] = []
    var expectsKey: Bool
  }

  private let name: String
  private var levels: [Level] = []
  private var isInString = false
  private var isEscaped = false
  /// Whether the present string is the name of a member.
  private var isKey = false
  private var key: [UInt8] = []
  /// The bytes of the present request; nil outside of one.
  private var request: [UInt8]?
  private var hasEntries = false
  private var hasEnded = false

  /// - Parameter name: The name of the input for messages.
  init(name: String) { self.name = name }

  private func failure(_ sentence: String = "it is not valid JSON.") -> ToolError {
    ToolError("\(name) is not a complete HAR file: \(sentence)")
  }

  /// Reads a piece, and calls `body` with each request whose end is in it.
  mutating func append(_ piece: Data, _ body: (HAR.RecordedRequest) throws -> Void) throws {
    for byte in piece {
      if request != nil {
        request?.append(byte)
        if request?.count ?? 0 > Self.maximumRequestByteCount {
          throw ToolError("\(name) has a request of more than 1 MiB.")
        }
      }
      if isInString {
        readString(byte)
      } else if let complete = try readStructure(byte) {
        try body(decode(complete))
      }
    }
  }

  /// Checks that the document is complete.
  func end() throws {
    guard hasEnded, !isInString else { throw failure() }
    guard hasEntries else { throw failure("'entries' is missing.") }
  }

  private mutating func readString(_ byte: UInt8) {
    switch byte {
    case _ where isEscaped: isEscaped = false
    case UInt8(ascii: "\\"): isEscaped = true
    case UInt8(ascii: "\""):
      isInString = false
      if isKey { levels[levels.count - 1].key = key }
      return
    default: break
    }
    if isKey, key.count < Self.maximumKeyByteCount { key.append(byte) }
  }

  /// Reads a byte outside of strings. Returns the bytes of a request that ends with it.
  private mutating func readStructure(_ byte: UInt8) throws -> [UInt8]? {
    switch byte {
    case UInt8(ascii: " "), UInt8(ascii: "\n"), UInt8(ascii: "\r"), UInt8(ascii: "\t"): return nil
    case _ where hasEnded: throw failure()
    case UInt8(ascii: "\""):
      isInString = true
      isKey = levels.last?.expectsKey ?? false
      key = []
    case UInt8(ascii: "{"), UInt8(ascii: "["):
      guard levels.count < Self.maximumDepth else { throw failure() }
      let isObject = byte == UInt8(ascii: "{")
      if isObject, request == nil, isAt("log", "entries", nil, "request") { request = [byte] }
      if !isObject, isAt("log", "entries") { hasEntries = true }
      levels.append(Level(isObject: isObject, expectsKey: isObject))
    case UInt8(ascii: "}"), UInt8(ascii: "]"):
      guard let level = levels.popLast(), level.isObject == (byte == UInt8(ascii: "}")) else { throw failure() }
      hasEnded = levels.isEmpty
      if request != nil, isAt("log", "entries", nil, "request") {
        defer { request = nil }
        return request
      }
    case UInt8(ascii: ","):
      guard let level = levels.last else { throw failure() }
      levels[levels.count - 1].expectsKey = level.isObject
    case UInt8(ascii: ":"):
      guard levels.last?.isObject == true else { throw failure() }
      levels[levels.count - 1].expectsKey = false
    default: break
    }
    return nil
  }

  /// Whether the present value has this place: the names of members, and nil for an element of an array.
  private func isAt(_ names: String?...) -> Bool {
    levels.count == names.count
      && zip(levels, names).allSatisfy { level, name in
        name.map { level.isObject && level.key.elementsEqual($0.utf8) } ?? !level.isObject
      }
  }

  private func decode(_ bytes: [UInt8]) throws -> HAR.RecordedRequest {
    do {
      return try JSONDecoder().decode(HAR.RecordedRequest.self, from: Data(bytes))
    } catch {
      throw failure(Self.sentence(for: error))
    }
  }

  private static func sentence(for error: any Error) -> String {
    switch error {
    case DecodingError.keyNotFound(let key, _): "'\(key.stringValue)' is missing."
    case DecodingError.typeMismatch(_, let context), DecodingError.valueNotFound(_, let context):
      "'\(context.codingPath.last?.stringValue ?? "request")' has another type."
    default: "it is not valid JSON."
    }
  }
}

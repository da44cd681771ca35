import Foundation

/// A JSON document. Keys are sorted, so that output can be compared.
enum JSON: Encodable, ExpressibleByStringLiteral, ExpressibleByIntegerLiteral, ExpressibleByArrayLiteral,
  ExpressibleByDictionaryLiteral, ExpressibleByNilLiteral
{
  case null
  case bool(Bool)
  case number(Int)
  case decimal(Double)
  case string(String)
  case array([JSON])
  case object([(String, JSON)])

  init(stringLiteral value: String) { self = .string(value) }
  init(integerLiteral value: Int) { self = .number(value) }
  init(nilLiteral: ()) { self = .null }
  init(arrayLiteral elements: JSON...) { self = .array(elements) }
  init(dictionaryLiteral elements: (String, JSON)...) { self = .object(elements) }

  static func number(_ number: Int?) -> JSON { number.map { .number($0) } ?? .null }
  static func number(_ number: UInt64?) -> JSON { .number(number.map { Int(clamping: $0) }) }

  /// Returns a time in ISO 8601, in UTC, with milliseconds.
  static func date(_ date: Date?) -> JSON {
    date.map { .string(Format.timestamp($0)) } ?? .null
  }

  /// Returns seconds, rounded to milliseconds.
  static func seconds(_ seconds: Double?) -> JSON {
    seconds.map { .decimal(($0 * 1000).rounded() / 1000) } ?? .null
  }

  func encode(to encoder: any Encoder) throws {
    switch self {
    case .array(let elements):
      var container = encoder.unkeyedContainer()
      for element in elements { try container.encode(element) }
    case .object(let members):
      var container = encoder.container(keyedBy: MemberName.self)
      for (name, value) in members { try container.encode(value, forKey: MemberName(stringValue: name)) }
    case .bool(let value): try Self.encode(value, to: encoder)
    case .number(let value): try Self.encode(value, to: encoder)
    case .decimal(let value) where value.isFinite: try Self.encode(value, to: encoder)
    case .string(let value): try Self.encode(value, to: encoder)
    case .null, .decimal:
      var container = encoder.singleValueContainer()
      try container.encodeNil()
    }
  }

  private static func encode(_ value: some Encodable, to encoder: any Encoder) throws {
    var container = encoder.singleValueContainer()
    try container.encode(value)
  }

  private struct MemberName: CodingKey {
    let stringValue: String
    let intValue: Int? = nil

    init(stringValue: String) { self.stringValue = stringValue }
    init?(intValue: Int) { return nil }
  }

  /// The document in one line.
  var compact: String { String(decoding: data(), as: UTF8.self) }

  /// The document with a line for each member, and a line feed at its end.
  var pretty: String { String(decoding: data(.prettyPrinted), as: UTF8.self) + "\n" }

  /// Returns the document, which may go to a terminal.
  func data(_ formatting: JSONEncoder.OutputFormatting = []) -> Data {
    let encoder = JSONEncoder()
    encoder.outputFormatting = formatting.union([.sortedKeys, .withoutEscapingSlashes])
    do {
      return Self.visible(try encoder.encode(self))
    } catch {
      preconditionFailure("This value has no JSON form: \(error)")
    }
  }

  /// Escapes the characters that JSON permits in strings but that are ``Unicode/Scalar/isUnprintable``.
  ///
  /// They occur only within strings.
  private static func visible(_ json: Data) -> Data {
    guard json.contains(where: { $0 >= 0x7f }) else { return json }
    var escaped = ""
    for scalar in String(decoding: json, as: UTF8.self).unicodeScalars {
      // Line feeds are between the members.
      if scalar.value >= 0x7f, scalar.isUnprintable {
        for unit in String(scalar).utf16 {
          escaped += "\\u" + Format.hexadecimal(unit)
        }
      } else {
        escaped.unicodeScalars.append(scalar)
      }
    }
    return Data(escaped.utf8)
  }
}

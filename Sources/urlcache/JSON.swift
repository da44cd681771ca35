import Foundation

/// A JSON document whose keys stay in order, so that output can be compared and read.
enum JSON: ExpressibleByStringLiteral, ExpressibleByIntegerLiteral, ExpressibleByArrayLiteral,
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

  /// Returns a time in ISO 8601, in UTC, with milliseconds.
  static func date(_ date: Date?) -> JSON {
    date.map { .string(Format.timestamp($0)) } ?? .null
  }

  /// Returns seconds, rounded to milliseconds.
  static func seconds(_ seconds: Double) -> JSON {
    .decimal((seconds * 1000).rounded() / 1000)
  }

  /// The document in one line.
  var compact: String {
    switch self {
    case .null: "null"
    case .bool(let value): String(value)
    case .number(let number): String(number)
    case .decimal(let number): number.isFinite ? "\(number)" : "null"
    case .string(let text): Self.quoted(text)
    case .array(let elements): "[" + elements.map(\.compact).joined(separator: ",") + "]"
    case .object(let members):
      "{" + members.map { Self.quoted($0.0) + ":" + $0.1.compact }.joined(separator: ",") + "}"
    }
  }

  /// The document with a line for each member, two levels deep.
  var pretty: String { pretty(depth: 2, indentation: "") + "\n" }

  private func pretty(depth: Int, indentation: String) -> String {
    let inner = indentation + "  "
    func lines(_ parts: [String], _ open: String, _ close: String) -> String {
      open + "\n" + parts.map { inner + $0 }.joined(separator: ",\n") + "\n" + indentation + close
    }
    switch self {
    case .array(let elements) where depth > 0 && !elements.isEmpty:
      return lines(elements.map { $0.pretty(depth: depth - 1, indentation: inner) }, "[", "]")
    case .object(let members) where depth > 0 && !members.isEmpty:
      return lines(
        members.map { Self.quoted($0.0) + ": " + $0.1.pretty(depth: depth - 1, indentation: inner) }, "{", "}")
    default:
      return compact
    }
  }

  private static func quoted(_ text: String) -> String {
    var quoted = "\""
    for scalar in text.unicodeScalars {
      switch scalar {
      case "\"", "\\": quoted += "\\\(scalar)"
      case "\n": quoted += "\\n"
      case _ where scalar.value < 0x20 || scalar.value == 0x7f:
        let digits = String(scalar.value, radix: 16)
        quoted += "\\u" + String(repeating: "0", count: 4 - digits.count) + digits
      default: quoted.unicodeScalars.append(scalar)
      }
    }
    return quoted + "\""
  }
}

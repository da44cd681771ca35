import FoundationEssentials

/// A received request.
public struct RecordedRequest: Sendable {
  /// The number of the request in the order of arrival over all connections, from 0.
  public let number: Int

  /// The number of its connection in the order of connecting, from 0.
  public let connection: Int

  /// The method as sent, such as `GET`.
  public let method: String

  /// The request target as sent, such as `/path?query`.
  public let target: String

  /// The version as sent, such as `HTTP/1.1`.
  public let version: String

  /// Each header line as sent, in order, without its line end.
  public let headerLines: [String]

  /// The body without chunked coding; empty if there was none.
  public let body: Data

  /// The header lines, split at the first colon; values without surrounding spaces and tabs.
  public var fields: [(name: String, value: String)] {
    headerLines.map { line in
      let name = line.prefix { $0 != ":" }
      return (String(name), trimmed(line.dropFirst(name.count + 1)))
    }
  }

  /// The part of the target before `?`.
  public var path: String { String(target.prefix { $0 != "?" }) }

  /// The part of the target after the first `?`; nil without one.
  public var query: String? {
    target.firstIndex(of: "?").map { String(target[target.index(after: $0)...]) }
  }

  /// The values of all fields of this case-insensitive name, joined with `", "`; nil if there is none.
  public subscript(name: String) -> String? {
    let values = values(of: name)
    return values.isEmpty ? nil : values.joined(separator: ", ")
  }

  /// Returns the values of all fields of this case-insensitive name, in order.
  public func values(of name: String) -> [String] {
    let wanted = name.lowercased()
    return fields.filter { $0.name.lowercased() == wanted }.map(\.value)
  }
}

/// Returns `text` without spaces and tabs at both ends.
func trimmed(_ text: Substring) -> String {
  let isBlank: (Character) -> Bool = { $0 == " " || $0 == "\t" }
  let start = text.drop(while: isBlank)
  return String(start.reversed().drop(while: isBlank).reversed())
}

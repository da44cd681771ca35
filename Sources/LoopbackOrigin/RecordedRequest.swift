#if canImport(FoundationEssentials)
  import FoundationEssentials
#else
  import Foundation
#endif

/// A request as it came in.
public struct RecordedRequest: Sendable {
  /// Place in the order of arrival over all connections, from 0.
  public let number: Int

  /// Which connection it came on, from 0 in the order of connecting: two requests with one number shared a connection.
  public let connection: Int

  /// The method as sent, such as `GET`.
  public let method: String

  /// The request target as sent, such as `/path?query`.
  public let target: String

  /// The version as sent, such as `HTTP/1.1`.
  public let version: String

  /// Each header line as sent, in order, without its line end.
  public let headerLines: [String]

  /// The body with any chunked coding removed; empty if there was none.
  public let body: Data

  /// The header lines taken apart at the first colon, values without surrounding white space.
  public var fields: [(name: String, value: String)] {
    headerLines.map { line in
      let name = line.prefix { $0 != ":" }
      return (String(name), trimmed(line.dropFirst(name.count + 1)))
    }
  }

  /// The part of the target before `?`.
  public var path: String { String(target.prefix { $0 != "?" }) }

  /// The part of the target after the first `?`, or nil if there is none.
  public var query: String? {
    target.firstIndex(of: "?").map { String(target[target.index(after: $0)...]) }
  }

  /// The values of all fields of this name, joined with `", "`; nil if there is none. Names compare without case.
  public subscript(name: String) -> String? {
    let values = values(of: name)
    return values.isEmpty ? nil : values.joined(separator: ", ")
  }

  /// The values of all fields of this name, in order. Names compare without case.
  public func values(of name: String) -> [String] {
    let wanted = name.lowercased()
    return fields.filter { $0.name.lowercased() == wanted }.map(\.value)
  }
}

/// `text` without the spaces and tabs around it.
func trimmed(_ text: Substring) -> String {
  let isBlank: (Character) -> Bool = { $0 == " " || $0 == "\t" }
  let start = text.drop(while: isBlank)
  return String(start.reversed().drop(while: isBlank).reversed())
}

import Foundation

/// A request of a list, sitemap or HAR file.
struct WarmRequest: Sendable {
  let url: String
  /// The header fields to send.
  var fields: [(name: String, value: String)] = []
}

/// The requests of an input.
struct WarmList {
  /// The form of an input.
  enum Form: String {
    case list, sitemap, har
  }

  let form: Form
  var requests: [WarmRequest] = []
  /// The number of HAR entries that are left out: other methods than GET, and other schemes than http and https.
  var skippedCount = 0

  /// Reads requests. The first character that is not white space determines the form: `{` for HAR, `<` for a sitemap.
  ///
  /// - Parameter name: The name of the input for messages.
  /// - Throws: `ToolError` for an incomplete or compressed input.
  init(_ data: Data, name: String) throws {
    guard !data.starts(with: [0x1f, 0x8b]) else {
      throw ToolError("\(name) is compressed. Use: zcat \(name) | urlcache warm -")
    }
    // A byte order mark is not white space.
    let content = data.starts(with: [0xef, 0xbb, 0xbf]) ? data.dropFirst(3) : data
    switch content.first(where: { !Character(Unicode.Scalar($0)).isWhitespace }) {
    case UInt8(ascii: "{"):
      form = .har
      try readHAR(Data(content), name: name)
    case UInt8(ascii: "<"):
      form = .sitemap
      requests = try SitemapReader.urls(in: Data(content), name: name).map { WarmRequest(url: $0) }
    default:
      form = .list
      requests = Self.lines(in: content).map { WarmRequest(url: $0) }
    }
  }

  /// Returns the lines of a list, without empty lines and comments.
  private static func lines(in data: Data) -> [String] {
    data.split(whereSeparator: { $0 == UInt8(ascii: "\n") || $0 == UInt8(ascii: "\r") }).compactMap { line in
      let text = String(decoding: line, as: UTF8.self).trimmingCharacters(in: .whitespaces)
      return text.isEmpty || text.hasPrefix("#") ? nil : text
    }
  }

  private mutating func readHAR(_ data: Data, name: String) throws {
    let document: HAR.Requests
    do {
      document = try JSONDecoder().decode(HAR.Requests.self, from: data)
    } catch {
      throw ToolError("\(name) is not a complete HAR file: \(Self.sentence(for: error))")
    }
    for entry in document.log.entries {
      let request = entry.request
      guard request.method == "GET", URL(string: request.url)?.isWeb ?? false else {
        skippedCount += 1
        continue
      }
      let fields = request.headers.filter { Self.isSent($0.name) }.map { ($0.name, $0.value) }
      requests.append(WarmRequest(url: request.url, fields: fields))
    }
  }

  private static func sentence(for error: any Error) -> String {
    switch error {
    case DecodingError.keyNotFound(let key, _): "'\(key.stringValue)' is missing."
    case DecodingError.typeMismatch(_, let context), DecodingError.valueNotFound(_, let context):
      "'\(context.codingPath.last?.stringValue ?? "log")' has another type."
    default: "it is not valid JSON."
    }
  }

  /// Whether a field of a recorded request is sent again.
  ///
  /// Fields that belong to the connection, to one user or to a part of a response are not sent.
  private static func isSent(_ name: String) -> Bool {
    let name = name.lowercased()
    return !name.hasPrefix(":") && !name.hasPrefix("if-") && !unsentNames.contains(name)
  }

  private static let unsentNames: Set<String> = [
    "accept-encoding", "authorization", "cache-control", "connection", "content-length", "cookie", "expect", "host",
    "http2-settings", "keep-alive", "pragma", "proxy-authorization", "proxy-connection", "range", "te", "trailer",
    "transfer-encoding", "upgrade",
  ]
}

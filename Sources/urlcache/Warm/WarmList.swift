import Foundation
import HTTPCaching

/// The requests of an input.
struct WarmList {
  /// The default maximum number of requests, which are in memory.
  static let maximumRequestCount = 1_000_000
  /// The maximum size of a sitemap, decompressed. That of the protocol is 50 MB.
  static let maximumSitemapByteCount = 50 << 20
  /// The maximum length of a line of a list.
  static let maximumLineByteCount = 64 << 10

  private let name: String
  private let maximumRequestCount: Int
  private(set) var requests: [WarmRequest] = []
  /// The number of HAR entries that are left out: other methods than GET, and other schemes than http and https.
  private(set) var skippedCount = 0
  /// The sitemaps of an index, whose URLs are not among the requests yet.
  private(set) var sitemaps: [String] = []

  /// Reads requests. The first character that is not white space determines the form: `{` for HAR, `<` for a sitemap.
  ///
  /// Only the URLs and the fields of the requests are kept in memory.
  ///
  /// - Parameter name: The name of the input for messages.
  /// - Throws: `ToolError` for an incomplete input, or one beyond the limits.
  init(_ input: WarmInput, name: String, maximumRequestCount: Int = Self.maximumRequestCount) throws {
    self.name = name
    self.maximumRequestCount = maximumRequestCount
    var start = Data()
    while start.isEmpty, let piece = try input.next() { start = Self.withoutLeadingSpace(piece) }
    switch start.first {
    case UInt8(ascii: "{"): try readHAR(start, input)
    case UInt8(ascii: "<"): try readSitemap(start, input)
    default: try readLines(start, input)
    }
  }

  private static func withoutLeadingSpace(_ data: Data) -> Data {
    // A byte order mark is not white space.
    let content = data.starts(with: [0xef, 0xbb, 0xbf]) ? data.dropFirst(3) : data
    return Data(content.drop { Character(Unicode.Scalar($0)).isWhitespace })
  }

  /// Adds the URLs of a sitemap of the index.
  mutating func add(_ urls: [String]) throws {
    for url in urls { try append(WarmRequest(url: url)) }
  }

  private mutating func append(_ request: WarmRequest) throws {
    guard requests.count < maximumRequestCount else {
      throw ToolError("\(name) has more than \(Format.count(maximumRequestCount)) URLs. Divide it.")
    }
    requests.append(request)
  }

  // MARK: Lists

  private mutating func readLines(_ start: Data, _ input: WarmInput) throws {
    var rest = start
    while let piece = try input.next() {
      rest.append(piece)
      guard let end = rest.lastIndex(where: Self.endsLine) else {
        guard rest.count <= Self.maximumLineByteCount else {
          throw ToolError("\(name) is not a list of URLs: a line has more than 64 KiB.")
        }
        continue
      }
      try append(linesOf: rest[...end])
      rest = Data(rest[(end + 1)...])
    }
    try append(linesOf: rest)
  }

  private static func endsLine(_ byte: UInt8) -> Bool { byte == UInt8(ascii: "\n") || byte == UInt8(ascii: "\r") }

  private mutating func append(linesOf data: Data) throws {
    for line in data.split(whereSeparator: Self.endsLine) {
      let text = String(decoding: line, as: UTF8.self).trimmingCharacters(in: .whitespaces)
      // An empty line or a comment.
      if !text.isEmpty, !text.hasPrefix("#") { try append(WarmRequest(url: text)) }
    }
  }

  // MARK: Sitemaps

  private mutating func readSitemap(_ start: Data, _ input: WarmInput) throws {
    var document = start
    while let piece = try input.next() {
      document.append(piece)
      guard document.count <= Self.maximumSitemapByteCount else {
        throw ToolError("\(name) is no sitemap: it has more than 50 MiB.")
      }
    }
    switch try SitemapReader.read(document, name: name) {
    case .urls(let urls): try add(urls)
    case .index(let urls): sitemaps = urls
    }
  }

  // MARK: HAR

  private mutating func readHAR(_ start: Data, _ input: WarmInput) throws {
    var reader = HARReader(name: name)
    var piece: Data? = start
    while let present = piece {
      try reader.append(present) { recorded in
        guard recorded.method == "GET", URL(string: recorded.url)?.isHTTPWithHost ?? false else {
          skippedCount += 1
          return
        }
        let fields = recorded.headers.filter(Self.isSent).map { ($0.name, $0.value) }
        try append(WarmRequest(url: recorded.url, fields: fields))
      }
      piece = try input.next()
    }
    try reader.end()
  }

  /// Whether a field of a recorded request is sent again.
  ///
  /// Fields that belong to the connection, to one user or to a part of a response are not sent. Nor are those that no
  /// request can have: some programs write `X-API-KEY (Header)` for the name of a field.
  private static func isSent(_ field: HAR.Field) -> Bool {
    let name = field.name.lowercased()
    return HeaderFields([(field.name, field.value)]).isWellFormed && !name.hasPrefix(":") && !name.hasPrefix("if-")
      && !unsentNames.contains(name)
  }

  private static let unsentNames = Set(
    UnsharedFields.ofConnection + UnsharedFields.ofUser + UnsharedFields.ofRequest
      + ["accept-encoding", "content-length", "expect", "host", "http2-settings"])
}

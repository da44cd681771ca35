import Foundation
import HTTPCaching
import LMDBURLCache
import ResponseStore

/// Writes responses as entries of an HTTP archive, in blocks.
struct HARWriter {
  private static let blockByteCount = 256 << 10
  private static let maximumBodyByteCount = 64 << 20

  let output: OutputFile
  let directory: CacheDirectory
  let includesBodies: Bool
  private(set) var entryCount = 0
  private(set) var bodyByteCount = 0
  private(set) var omittedBodyCount = 0
  private var block = Data()

  init(output: OutputFile, directory: CacheDirectory, includesBodies: Bool) {
    self.output = output
    self.directory = directory
    self.includesBodies = includesBodies
  }

  mutating func begin() {
    block.append(contentsOf: HAR.documentStart.utf8)
  }

  /// Writes a stored response and the request for it.
  ///
  /// Members that the format requires, but that a cache does not know, have the format's value for "unknown".
  mutating func append(_ entry: CacheDirectory.Entry, _ response: StoredResponse) throws {
    let fields = response.fields.displayed
    var request: [(String, JSON)] = [
      ("method", .string(entry.method)), ("url", .string(entry.url)), ("httpVersion", "HTTP/1.1"), ("cookies", []),
      ("headers", Self.requestFields(response.vary)), ("queryString", Self.query(of: entry.url)), ("headersSize", -1),
      ("bodySize", .number(entry.queryContent?.byteCount ?? 0)),
    ]
    // The content of a query is not stored. The digest tells different ones apart.
    if let digest = entry.queryContent?.digest { request.append(("_contentDigest", .string(digest))) }
    var members: [(String, JSON)] = [
      ("startedDateTime", .date(response.freshness.responseTime)), ("time", 0), ("cache", [:]),
      ("timings", ["send": 0, "wait": 0, "receive": 0]),
      ("request", .object(request)),
      (
        "response",
        [
          "status": .number(response.status), "statusText": "", "httpVersion": "HTTP/1.1", "cookies": [],
          "headers": .array(fields.map { Self.pair($0.name, $0.value) }), "content": try content(of: response),
          "redirectURL": .string(fields.first("location") ?? ""), "headersSize": -1,
          "bodySize": .number(response.bodyByteCount),
        ]
      ),
    ]
    // The format reserves names with an underscore for members that it does not define.
    if !entry.partition.isEmpty { members.append(("_partition", .string(entry.partition))) }
    if entryCount > 0 { block.append(contentsOf: ",\n".utf8) }
    block.append(JSON.object(members).data())
    entryCount += 1
    if block.count >= Self.blockByteCount { try flush() }
  }

  mutating func end() throws {
    block.append(contentsOf: HAR.documentEnd.utf8)
    try flush()
  }

  private mutating func flush() throws {
    try output.write(block)
    block.removeAll(keepingCapacity: true)
  }

  private mutating func content(of response: StoredResponse) throws -> JSON {
    let fields = response.fields
    let type = fields.first("content-type") ?? ""
    var members: [(String, JSON)] = [
      ("size", .number(response.bodyByteCount)), ("mimeType", .string(type.isEmpty ? "x-unknown" : type)),
    ]
    guard includesBodies, response.bodyByteCount > 0 else { return .object(members) }
    func withoutBody(_ comment: String) -> JSON {
      omittedBodyCount += 1
      return .object(members + [("comment", .string(comment))])
    }
    guard response.bodyByteCount <= Self.maximumBodyByteCount else {
      return withoutBody("The body is left out, because it is larger than 64 MiB.")
    }
    var body = Data(capacity: response.bodyByteCount)
    guard directory.forEachPiece(of: response, { body.append($0) }) else {
      return withoutBody("The body was removed during the export.")
    }
    bodyByteCount += body.count
    let isCoded = fields.contains("content-encoding") && !response.freshness.flags.contains(.decoded)
    if isCoded { members.append(("comment", "The body has the coding of Content-Encoding.")) }
    if !isCoded, let text = String(validating: body, as: UTF8.self) {
      members.append(("text", .string(text)))
    } else {
      members += [("text", .string(body.base64EncodedString())), ("encoding", "base64")]
    }
    return .object(members)
  }

  private static func pair(_ name: String, _ value: String) -> JSON {
    ["name": .string(name), "value": .string(value)]
  }

  /// Returns the fields of the request, as far as the Vary key has them. Credentials and other secrets are stored only
  /// as a digest.
  private static func requestFields(_ vary: VaryKey) -> JSON {
    .array(
      vary.fields.compactMap { field in
        field.isSecret || field.isForm || field.name == "authorization" ? nil : field.value.map { pair(field.name, $0) }
      })
  }

  private static func query(of url: String) -> JSON {
    guard url.utf8.contains(UInt8(ascii: "?")) else { return [] }
    return .array((URLComponents(string: url)?.queryItems ?? []).map { pair($0.name, $0.value ?? "") })
  }
}

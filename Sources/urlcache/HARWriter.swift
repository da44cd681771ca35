import Foundation
import HTTPCaching
import LMDBURLCache
import ResponseStore

/// Writes responses as entries of an HTTP archive, in blocks.
struct HARWriter {
  private static let blockByteCount = 256 << 10
  private static let maximumBodyByteCount = 64 << 20

  let output: BodyOutput
  let directory: CacheDirectory
  let includesBodies: Bool
  private(set) var entryCount = 0
  private(set) var bodyByteCount = 0
  private(set) var omittedBodyCount = 0
  private var block = Data()

  init(output: BodyOutput, directory: CacheDirectory, includesBodies: Bool) {
    self.output = output
    self.directory = directory
    self.includesBodies = includesBodies
  }

  mutating func begin() {
    block.append(contentsOf: HAR.documentStart.utf8)
  }

  mutating func append(_ entry: CacheDirectory.Entry, _ response: StoredResponse) throws {
    let content = try content(of: response)
    let fields = response.fields
    let request = HAR.Request(
      method: entry.method, url: entry.url, headers: Self.requestFields(response.vary),
      queryString: Self.query(of: entry.url))
    let stored = HAR.Response(
      status: response.status, headers: fields.map { HAR.Field(name: $0.name, value: $0.value) }, content: content,
      redirectURL: fields.first("location") ?? "", bodySize: response.bodyByteCount)
    let encoded = HAR.Entry(
      startedDateTime: Format.timestamp(response.freshness.responseTime), request: request, response: stored,
      partition: entry.partition.isEmpty ? nil : entry.partition)
    if entryCount > 0 { block.append(contentsOf: ",\n".utf8) }
    block.append(JSONText.data(of: encoded, []))
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

  private mutating func content(of response: StoredResponse) throws -> HAR.Content {
    let fields = response.fields
    let type = fields.first("content-type") ?? ""
    var content = HAR.Content(size: response.bodyByteCount, mimeType: type.isEmpty ? "x-unknown" : type)
    guard includesBodies, response.bodyByteCount > 0 else { return content }
    guard response.bodyByteCount <= Self.maximumBodyByteCount else {
      omittedBodyCount += 1
      content.comment = "The body is left out, because it is larger than 64 MiB."
      return content
    }
    var body = Data(capacity: response.bodyByteCount)
    guard directory.forEachPiece(of: response, { body.append($0) }) else {
      omittedBodyCount += 1
      content.comment = "The body was removed during the export."
      return content
    }
    bodyByteCount += body.count
    let isCoded = fields.contains("content-encoding") && !response.freshness.flags.contains(.decoded)
    if isCoded { content.comment = "The body has the coding of Content-Encoding." }
    if !isCoded, let text = String(validating: body, as: UTF8.self) {
      content.text = text
    } else {
      content.text = body.base64EncodedString()
      content.encoding = "base64"
    }
    return content
  }

  /// Returns the fields of the request, as far as the Vary key has them. Credentials are stored only as a digest.
  private static func requestFields(_ vary: VaryKey) -> [HAR.Field] {
    vary.fields.compactMap { field in
      field.name == "authorization" ? nil : field.value.map { HAR.Field(name: field.name, value: $0) }
    }
  }

  private static func query(of url: String) -> [HAR.Field] {
    guard url.utf8.contains(UInt8(ascii: "?")) else { return [] }
    return (URLComponents(string: url)?.queryItems ?? []).map { HAR.Field(name: $0.name, value: $0.value ?? "") }
  }
}

import Foundation
import HTTPCaching
import LMDBURLCache
import ResponseStore
import Synchronization

/// `urlcache export`: writes the stored responses as an HTTP archive.
enum ExportCommand: Command {
  static let manual = CommandHelp(
    name: "export", summary: "Exports the stored responses as a HAR file.",
    usage: ["DIR --har FILE [--host HOST] [--bodies] [--json]"],
    discussion: """
      Writes the responses in the cache in DIR to FILE as an HTTP archive (HAR 1.2), in the order on disk, with their
      status and header fields. The request of each has the fields in the Vary key, except credentials. FILE contains
      URLs with their queries, and header fields such as Set-Cookie, which may be secrets. 'urlcache warm FILE' fetches
      the URLs again.

      Other processes can use the cache at the same time. Nothing is changed, and no cache is created. FILE is written
      entry by entry, so little memory is used for any number of responses, and it is replaced only at the end.
      """,
    operandName: "the directory", operandCount: 1...1,
    options: [
      Option(name: "har", placeholder: "FILE", help: "The file to write; '-' for standard output. Required."),
      Option(name: "host", placeholder: "HOST", help: "Exports only responses of this host."),
      Option(
        name: "bodies", help: "Includes the bodies, as text or in Base64. A body of more than 64 MiB is left out."),
      Option(name: "json", help: "Prints the counts as a JSON object; not with '--har -'."),
    ],
    success: "the file was written", failure: "there is no cache in DIR, it cannot be read, or FILE cannot be written")

  static func run(_ arguments: Arguments) async throws -> ExitCode {
    guard let file = arguments.value("har") else { throw UsageError("--har FILE is missing") }
    let directory = try CacheDirectory(existingAt: URL(fileURLWithPath: arguments.operands[0]))
    let output = try BodyOutput(file: file, outside: arguments.operands[0])
    defer { output.discard() }
    let isInterrupted = InterruptionFlag()
    let interruption = Interruption { isInterrupted.set() }
    var writer = HARWriter(output: output, directory: directory, includesBodies: arguments.has("bodies"))
    var bar = ProgressBar("Exporting", sharesTerminal: file == "-")
    try writer.begin()
    try directory.forEachResponse(
      host: arguments.value("host")?.lowercased(), progress: { bar.update(done: $0, total: $1) },
      { entry, response throws in
        try writer.append(entry, response)
        return !isInterrupted.isSet
      })
    bar.end()
    try directory.checkIsInPlace()
    guard !isInterrupted.isSet else {
      let effect = file == "-" ? "The output is not complete." : "\(Format.visible(file)) was not changed."
      throw ToolError("Interrupted. \(effect)")
    }
    interruption.end()
    try writer.end()
    try output.commit()
    if directory.hasFoundCorruption {
      Output.error("urlcache export: A stored response is corrupt, and is left out. Run: urlcache verify DIR\n")
    }
    guard file != "-" else { return .success }
    let json: JSON = [
      "entryCount": .number(writer.entryCount), "bodyByteCount": .number(writer.bodyByteCount),
      "omittedBodyCount": .number(writer.omittedBodyCount),
    ]
    let bodies = arguments.has("bodies") ? " with \(Format.bytes(writer.bodyByteCount)) of bodies" : ""
    let omitted =
      writer.omittedBodyCount > 0 ? " \(Format.count(writer.omittedBodyCount)) larger bodies were left out." : ""
    try Output.write(
      arguments.has("json")
        ? json.pretty
        : "Exported \(Format.count(writer.entryCount, "response"))\(bodies) to \(Format.visible(file)).\(omitted)\n")
    return .success
  }
}

/// A flag that a signal sets.
private final class InterruptionFlag: Sendable {
  private let flag = Atomic(false)

  var isSet: Bool { flag.load(ordering: .relaxed) }
  func set() { flag.store(true, ordering: .relaxed) }
}

/// Writes responses as entries of an HTTP archive, in blocks.
private struct HARWriter {
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

  mutating func begin() throws {
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
    block.append(contentsOf: JSONText.text(of: encoded, []).utf8)
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
    (URLComponents(string: url)?.queryItems ?? []).map { HAR.Field(name: $0.name, value: $0.value ?? "") }
  }
}

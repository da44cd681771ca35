import Foundation
import LMDBURLCache
import Synchronization

/// `urlcache export`: writes the stored responses as an HTTP archive.
enum ExportCommand: Command {
  static let manual = CommandHelp(
    name: "export", summary: "Exports the stored responses as a HAR file.",
    usage: ["DIR --har FILE [--host HOST] [--bodies] [--json]"],
    discussion: """
      Writes the responses in the cache in DIR to FILE as an HTTP archive (HAR 1.2), in the order on disk, with their
      status and header fields. The request of each has those fields of the Vary key whose values the cache has, such as
      Accept-Language; it has only digests of credentials, cookies and most others. The request of a query (RFC 10008)
      has the size of its content in bodySize and a digest in _contentDigest, but no postData. FILE contains URLs with their
      queries, and header fields such as Set-Cookie, which may be secrets. 'urlcache warm FILE' fetches the URLs again.

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
    let host = try arguments.host()
    guard let file = arguments.value("har") else { throw UsageError("--har FILE is missing") }
    if file == "-", arguments.has("json") { throw UsageError("--json cannot be combined with --har -") }
    let directory = try CacheAccess.openDirectory(arguments)
    let output = try OutputFile(file: file, outside: arguments.operands[0])
    defer { output.discard() }
    let isInterrupted = InterruptionFlag()
    let interruption = Interruption { isInterrupted.set() }
    var writer = HARWriter(output: output, directory: directory, includesBodies: arguments.has("bodies"))
    var bar = ProgressBar("Exporting", sharesTerminal: file == "-")
    writer.begin()
    try directory.forEachResponse(
      host: host, progress: { bar.update(done: $0, total: $1) },
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

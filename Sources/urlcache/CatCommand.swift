import LMDBURLCache

/// `urlcache cat`: writes the stored body of a URL.
enum CatCommand: Command {
  static let manual = CommandHelp(
    name: "cat", summary: "Writes the stored body of a URL.",
    usage: ["DIR URL [--header FIELD]... [--method METHOD] [--partition NAME] [--output FILE] [OPTION]..."],
    discussion: """
      Writes the body of the stored response for URL in the cache in DIR, fresh or stale, unchanged to standard output.
      If there are several variants, the header fields select one as in a request. Without --header, Accept-Language is
      "en", and User-Agent is that of this tool. The body is compared with its checksum before the first byte is
      written, and is not held in memory as a whole.

      With --method QUERY or POST, writes the response to the query with the content in --data or --data-file and the
      media type in --content-type, \(RequestContent.defaultType) by default.

      \(RequestArguments.modeText)

      Other processes can use the cache at the same time. Nothing is changed, and no cache is created.
      """,
    operandName: "the directory or the URL", operandCount: 2...2,
    options: [
      RequestArguments.header, RequestArguments.method,
    ] + RequestContent.options + [RequestArguments.partition] + RequestArguments.modes + [
      Option(name: "output", placeholder: "FILE", help: "Writes the body to a file instead, which is replaced.")
    ],
    success: "the body was written",
    failure: "no response matches, there is no cache in DIR, or it cannot be read")

  static func run(_ arguments: Arguments) async throws -> ExitCode {
    let directory = try CacheAccess.openDirectory(arguments)
    let variants = try RequestArguments.variants(arguments, in: directory)
    try directory.checkIsInPlace()
    guard let variant = variants.first, variant.isSelected else {
      if directory.hasFoundCorruption {
        throw ToolError("The stored response is corrupt. Run: urlcache verify DIR")
      }
      guard !variants.isEmpty else { throw ToolError("No response is stored for this URL.") }
      let fields = variants.flatMap { $0.response.vary.fields }.filter { !$0.isForm }
      let names = Set(fields.map(\.name)).sorted().joined(separator: ", ")
      throw ToolError(
        "No variant matches the request; \(Format.count(variants.count)) stored. "
          + "Their Vary keys have: \(Format.visible(names)). Select one with --header.")
    }
    let output = try OutputFile(file: arguments.value("output"), outside: arguments.operands[0])
    defer { output.discard() }
    let isComplete = try directory.forEachPiece(of: variant.response) { piece throws in try output.write(piece) }
    guard isComplete else {
      throw ToolError("The response was removed or replaced while it was read. Try again.")
    }
    try output.commit()
    return .success
  }
}

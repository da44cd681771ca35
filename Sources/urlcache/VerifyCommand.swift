import LMDBURLCache

/// `urlcache verify`: checks a store, and reports violations.
enum VerifyCommand: Command {
  static let manual = CommandHelp(
    name: "verify", summary: "Checks a cache's directory.", usage: ["DIR [--json]"],
    discussion: """
      Checks the whole store in DIR: every record and body against its checksum, the tables against each other, the
      counters against the sums, and the files against the capacity. Prints a line for each of the first thousand
      violations. Other processes can use the cache at the same time; while they write, the counters cannot be compared
      with the sums. Nothing is changed, and no cache is created.
      """,
    operandName: "the directory", operandCount: 1...1,
    options: [Option(name: "json", help: "Prints a JSON object.")],
    success: "no violations", failure: "there are violations, or there is no cache in DIR")

  static func run(_ arguments: Arguments) async throws -> ExitCode {
    let directory = try CacheAccess.openDirectory(arguments)
    var bar = ProgressBar("Checking")
    let result = directory.verify { bar.update(done: $0, total: $1) }
    bar.end()
    if arguments.has("json") {
      let json: JSON = [
        "directory": .string(directory.path), "entryCount": .number(result.entryCount),
        "bodyByteCount": .number(result.bodyByteCount), "hasComparedSums": .bool(result.hasComparedSums),
        "violations": .array(result.violations.map { .string($0) }),
      ]
      try Output.write(json.pretty)
    } else if result.violations.isEmpty {
      let count = Format.count(result.entryCount, "response")
      try Output.write("OK: \(count), \(Format.bytes(result.bodyByteCount)) of bodies.\n")
      if !result.hasComparedSums {
        try Output.write("Other processes wrote during the check, so the counters were not compared with the sums.\n")
      }
    } else {
      try Output.write(result.violations.map { Format.visible($0) + "\n" }.joined())
    }
    return result.violations.isEmpty ? .success : .failure
  }
}

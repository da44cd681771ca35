import Foundation
import LMDBURLCache

/// `urlcache verify`: proves that a store is sound, or says what is not.
enum VerifyCommand: Command {
  static let manual = Manual(
    name: "verify", summary: "Checks that a cache's directory is sound.", usage: ["DIR [--json]"],
    discussion: """
      Checks the store in DIR as a whole: every record and body against its checksum, every table against the others, the
      counts against the sums, and the files against the capacity. Prints a line for each violation, of the first thousand. A
      process may be using the cache meanwhile; while it writes, the counts cannot be compared with the sums. Nothing is
      changed, and nothing is made where no cache is.
      """,
    operandName: "the directory", operandCount: 1...1,
    options: [Option(name: "json", help: "Prints a JSON object.")],
    success: "all is well", failure: "there are violations, or there is no cache in DIR")

  static func run(_ arguments: Arguments) async throws -> ExitCode {
    let directory = try CacheDirectory(existingAt: URL(fileURLWithPath: arguments.operands[0]))
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
      try Output.write("All is well: \(count), \(Format.bytes(result.bodyByteCount)) of bodies.\n")
      if !result.hasComparedSums {
        try Output.write("Others wrote meanwhile, so the counts could not be compared with the sums.\n")
      }
    } else {
      try Output.write(result.violations.map { $0 + "\n" }.joined())
    }
    return result.violations.isEmpty ? .success : .failure
  }
}

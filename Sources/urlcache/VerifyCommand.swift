import Foundation
import LMDBURLCache

/// `urlcache verify`: proves that a store is sound, or says what is not.
enum VerifyCommand: Command {
  static let manual = Manual(
    name: "verify", summary: "Checks that a cache's directory is sound.", usage: ["DIR [--json]"],
    discussion: """
      Checks the store in DIR as a whole: every record and body against its checksum, every table against the others, the
      counts against the sums, and the files against the capacity. Prints a line for each violation. A process may be using
      the cache meanwhile. Nothing is changed, and nothing is made where no cache is.
      """,
    operandName: "the directory", operandCount: 1...1,
    options: [Option(name: "json", help: "Prints a JSON object.")],
    success: "all is well", failure: "there are violations, or there is no cache in DIR")

  static func run(_ arguments: Arguments) async throws -> ExitCode {
    let directory = try CacheDirectory(existingAt: URL(fileURLWithPath: arguments.operands[0]))
    let violations = directory.checkInvariants()
    var entryCount = 0
    var byteCount = 0
    directory.forEachEntry { entry in
      entryCount += 1
      byteCount += entry.bodyByteCount
      return true
    }
    if arguments.has("json") {
      let json: JSON = [
        "directory": .string(directory.path), "entryCount": .number(entryCount), "bodyByteCount": .number(byteCount),
        "violations": .array(violations.map { .string($0) }),
      ]
      try Output.write(json.pretty)
    } else if violations.isEmpty {
      try Output.write("All is well: \(Format.count(entryCount, "response")), \(Format.bytes(byteCount)) of bodies.\n")
    } else {
      try Output.write(violations.map { $0 + "\n" }.joined())
    }
    return violations.isEmpty ? .success : .failure
  }
}

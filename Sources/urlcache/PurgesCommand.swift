import LMDBURLCache
import ResponseStore

/// `urlcache purges`: lists the removals in force.
enum PurgesCommand: Command {
  static let manual = CommandHelp(
    name: "purges", summary: "Lists the purges that are still being applied.", usage: ["DIR [--json]"],
    discussion: """
      Lists the removals in force in the cache in DIR, oldest first: purges, and removals of single responses by a
      program or by the rules of HTTP. A removal is in force as soon as it has its number: its responses are hidden from
      then on in all processes, or stale after a soft purge. It leaves the list when the last of them is deleted from the
      disk, or marked as stale. Shows for each:

        NUMBER  its sequence number in the removal log
        STAGE   logged (durable, but not yet applied to the database) or deleting; of a soft purge logged-soft or
                marking
        LEFT    the responses that are still to be deleted or marked; one that several removals cover counts for the
                oldest
        SIZE    the size of their bodies
        SCOPE   the option of 'urlcache purge', or 'url' or 'request', and its value with the query

      Other processes can use the cache at the same time. Nothing is changed, and no cache is created. The command takes
      constant time if no removal is in force, and otherwise reads all record headers.
      """,
    operandName: "the directory", operandCount: 1...1,
    options: [Option(name: "json", help: "Prints a JSON object.")],
    success: "done, also if no removal is in force", failure: "there is no cache in DIR, or it cannot be read")

  static func run(_ arguments: Arguments) async throws -> ExitCode {
    let directory = try CacheAccess.openDirectory(arguments)
    var bar = ProgressBar("Counting")
    let overview = directory.removals { bar.update(done: $0, total: $1) }
    bar.end()
    try directory.checkIsInPlace()
    guard let overview else { throw ToolError("The store cannot be read.") }
    try Output.write(arguments.has("json") ? json(overview, directory.path).pretty : text(overview))
    return .success
  }

  private static func text(_ overview: RemovalOverview) -> String {
    let end = "The last removal has number \(Format.count(overview.lastSequence)).\n"
    guard !overview.removals.isEmpty else { return "No removal is in force. " + end }
    var rows = [["NUMBER", "STAGE", "LEFT", "SIZE", "SCOPE"]]
    for found in overview.removals {
      let scope = found.removal.scope.summary
      rows.append([
        found.sequence.map { String($0) } ?? "-", word(found), Format.count(found.entryCount),
        Format.bytes(found.byteCount),
        Format.visible(scope.value.isEmpty ? scope.kind : "\(scope.kind) \(scope.value)"),
      ])
    }
    return Format.table(rows, rightAligned: [0, 2, 3]) + end
  }

  private static func json(_ overview: RemovalOverview, _ path: String) -> JSON {
    [
      "directory": .string(path), "lastNumber": .number(overview.lastSequence),
      "lastAppliedNumber": .number(overview.lastApplied), "logCapacity": .number(overview.logCapacity),
      "removals": .array(
        overview.removals.map { found in
          [
            "number": .number(found.sequence),
            "stage": .string(word(found)), "entryCount": .number(found.entryCount),
            "bodyByteCount": .number(found.byteCount), "kind": .string(found.removal.scope.summary.kind),
            "value": .string(found.removal.scope.summary.value),
          ]
        }),
    ]
  }

  private static func word(_ found: RemovalInForce) -> String {
    switch found.stage {
    case .logged: found.removal.isHard ? "logged" : "logged-soft"
    case .deleting: "deleting"
    case .marking: "marking"
    }
  }
}

import Foundation
import HTTPCaching
import LMDBURLCache

/// `urlcache purge`: removes the responses in a scope, or makes them stale.
enum PurgeCommand: Command {
  static let manual = CommandHelp(
    name: "purge", summary: "Removes responses from a cache's directory.",
    usage: [
      "DIR SCOPE [FILTER]... [--soft] [--dry-run] [--json]",
      "DIR FILTER... [--soft] [--dry-run] [--json]",
      "--fleet URL SCOPE [--soft] [--timeout SECONDS] [OPTION]...",
      "DIR --fleet URL FILTER... [--soft] [--timeout SECONDS] [OPTION]...",
    ],
    discussion: """
      Removes the responses in SCOPE from the cache in DIR, and prints how many were removed. SCOPE is
      \(ResponseSelection.scopeWords).

      FILTER selects responses of SCOPE, or of all:

        --status STATUS  --type TYPE     --path PATTERN

      When the command returns, no process can read them, including processes that use the cache now. It does not wait
      for those processes. No cache is created. If other processes have all reader slots, the responses are not counted;
      then the JSON counts are null.

      With a FILTER, the command reads the stored responses one after another, and purges the requests whose response
      matches: with all their variants, and with a response that replaces a matching one meanwhile. Other responses that
      are stored while it runs stay, also if they match, and so do those that a process keeps in memory only. It purges
      some requests at a time. If it is interrupted or fails, those that it has purged stay purged.

      With --soft, the responses become stale instead, in all processes when the command returns. They are
      validated before they are served, with one conditional request each. Those with stale-while-revalidate or
      stale-if-error may be served as these permit, counted from the purge.

      With --fleet, the purge holds on all machines of the fleet whose Redis is at URL when the command returns. It waits
      until each machine has confirmed it, or its lease has ended, and prints how many have. A line on standard error
      says for which machines it waits. A directory of a fleet without --fleet is purged on its own machine only. With a
      FILTER, --fleet needs a directory as well: the requests that match in it are purged on all machines, one after
      another, but not those that match on other machines only.

      \(FleetAccess.urlText)
      \(FleetAccess.passwordText)

      WHEN is \(TimeArgument.forms).
      Dates and times are ISO 8601; without a zone ('Z', '+01:00') they are local time. A time without a date is
      today's. A duration is a number with s, m, h, d or w, and means that long ago.
      """,
    operandName: "the directory", operandCount: 0...1,
    options: ResponseSelection.purgeOptions + [
      Option(name: "soft", help: "Makes the responses stale instead of removing them."),
      Option(
        name: "dry-run",
        help: "Changes nothing: prints how many responses would be removed or stale, their size, and the\nfirst URLs."),
      Option(name: "fleet", placeholder: "URL", help: "Purges on all machines of a fleet, instead of a directory."),
      Option(
        name: "timeout", placeholder: "SECONDS",
        help:
          "Waits at most this long for the machines of a fleet, 0.1 to 3600; by default\n1.25 leases and 5.25 seconds. Then the purge is posted, but not confirmed."
      ),
    ] + FleetAccess.options + [
      Option(name: "json", help: "Prints a JSON object.")
    ],
    success: "done, also if SCOPE has no response",
    failure:
      "there is no cache in DIR, or it cannot be used; with --fleet, the purge was not posted, or not\n     confirmed in time"
  )

  static func run(_ arguments: Arguments) async throws -> ExitCode {
    guard arguments.has("fleet") || !arguments.operands.isEmpty else {
      throw UsageError("the directory, or --fleet, is missing")
    }
    let selection = try ResponseSelection(arguments)
    guard !selection.isEmpty else {
      throw UsageError(
        "say what to purge: \(ResponseSelection.scopeWords), or --status, --type or --path")
    }
    let mode: PurgeMode = arguments.has("soft") ? .soft : .hard
    if arguments.has("fleet") {
      try FleetPurge.run(selection, mode, arguments)
      return .success
    }
    for name in FleetAccess.options.map(\.name) + ["timeout"] where arguments.has(name) {
      throw UsageError("--\(name) needs --fleet")
    }
    let url = URL(fileURLWithPath: arguments.operands[0])
    if arguments.has("dry-run") {
      let directory = try CacheDirectory(existingAt: url)
      try PurgePreview.write(selection, mode, in: directory, isJSON: arguments.has("json"))
      return .success
    }
    try report(try purge(selection, mode, url), mode, selection.words, asJSON: arguments.has("json"))
    FleetPurge.warnIfLocal(url)
    return .success
  }

  /// Purges, and returns the counts; nil if the responses could not be counted.
  private static func purge(_ selection: ResponseSelection, _ mode: PurgeMode, _ url: URL) throws -> Counts? {
    let scope = selection.scope
    do {
      let directory = try CacheDirectory(existingAt: url)
      guard !selection.filter.isEmpty else { return try directory.remove(scope, mode: mode) }
      var bar = ProgressBar("Purging")
      let coverage = try directory.remove(scope, mode: mode, where: selection.selects) {
        bar.update(done: $0, total: $1)
      }
      bar.end()
      try directory.checkIsInPlace()
      return coverage.map { ($0.entryCount, $0.byteCount, $0.keptCount) }
    } catch  where CacheDirectory.isOutOfReaderSlots(error) && selection.filter.isEmpty {
      // The purge is effective; only the responses cannot be counted.
      _ = try CacheDirectory.remove(scope, mode: mode, fromDirectoryInUse: url)
      return nil
    }
  }

  private typealias Counts = (entryCount: Int, byteCount: Int, keptCount: Int)

  private static func report(
    _ removed: Counts?, _ mode: PurgeMode, _ words: String, asJSON: Bool
  ) throws {
    let verb = mode == .soft ? "Marked as stale" : "Removed"
    if asJSON {
      let name = mode == .soft ? "stale" : "removed"
      let json: JSON = [
        "\(name)Count": .number(removed?.entryCount),
        "\(name)BodyByteCount": .number(removed?.byteCount),
        "keptCount": .number(removed?.keptCount),
      ]
      try Output.write(json.pretty)
    } else if let removed {
      let count = "\(Format.count(removed.entryCount, "response")) (\(Format.bytes(removed.byteCount)))"
      let rest = "\(Format.count(removed.keptCount, "response")) \(mode == .soft ? "unchanged" : "left")"
      try Output.write("\(verb) \(words): \(count). \(rest).\n")
    } else {
      try Output.write("\(verb) \(words). Other processes have all reader slots, so the responses were not counted.\n")
    }
  }
}

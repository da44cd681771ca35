import Foundation
import HTTPCaching
import LMDBURLCache

/// `urlcache purge`: removes the responses in a scope, or makes them stale.
enum PurgeCommand: Command {
  static let manual = CommandHelp(
    name: "purge", summary: "Removes responses from a cache's directory.",
    usage: [
      "DIR SCOPE [--soft] [--dry-run] [--json]",
      "--fleet URL [--name NAME] [--password-file FILE] SCOPE [--soft] [--json]",
    ],
    discussion: """
      Removes the responses in SCOPE from the cache in DIR, and prints how many were removed. SCOPE is one of

        --url URL        --host HOST      --group NAME --origin URL
        --prefix URL     --since WHEN     --all

      When the command returns, no process can read them, including processes that use the cache now. It does not wait
      for those processes. No cache is created. If other processes have all reader slots, the responses are not counted;
      then the JSON counts are null.

      With --soft, the responses become stale instead, in all processes when the command returns. They are
      validated before they are served, with one conditional request each. Those with stale-while-revalidate or
      stale-if-error may be served as these permit, counted from the purge.

      With --fleet, the purge holds on all machines of the fleet whose Redis is at URL when the command returns. It waits
      until each machine has confirmed it, or its lease has ended, and prints how many have. A directory of a fleet is
      purged on its own machine only. URL is \(FleetAccess.urlForms).
      \(FleetAccess.passwordText)

      WHEN is \(TimeArgument.forms).
      Dates and times are ISO 8601; without a zone ('Z', '+01:00') they are local time. A time without a date is
      today's. A duration is a number with s, m, h, d or w, and means that long ago.
      """,
    operandName: "the directory", operandCount: 0...1,
    options: [
      Option(
        name: "url", placeholder: "URL",
        help: "The responses of this URL with its query: all variants, methods and partitions."),
      Option(name: "since", placeholder: "WHEN", help: "Responses stored after this time, but not at this time."),
      Option(
        name: "host", placeholder: "HOST",
        help:
          "Responses of this host with any scheme and port, but not of its subdomains. It is one host\nalone, in any spelling."
      ),
      Option(
        name: "prefix", placeholder: "URL",
        help:
          "Responses whose URL begins with this one: same scheme, host and port, and a path\nand query with this prefix."
      ),
      Option(name: "group", placeholder: "NAME", help: "The members of a cache group (RFC 9875) of --origin."),
      Option(name: "origin", placeholder: "URL", help: "Any URL of the origin of --group."),
      Option(name: "all", help: "All responses."),
      Option(name: "soft", help: "Makes the responses stale instead of removing them."),
      Option(
        name: "dry-run",
        help: "Changes nothing: prints how many responses would be removed or stale, their size, and the\nfirst URLs."),
      Option(name: "fleet", placeholder: "URL", help: "Purges on all machines of a fleet, instead of a directory."),
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
    let (scope, words) = try scope(arguments)
    let mode: PurgeMode = arguments.has("soft") ? .soft : .hard
    if arguments.has("fleet") {
      try FleetPurge.run(scope, mode, words, arguments)
      return .success
    }
    for option in FleetAccess.options where arguments.has(option.name) {
      throw UsageError("--\(option.name) needs --fleet")
    }
    let url = URL(fileURLWithPath: arguments.operands[0])
    if arguments.has("dry-run") {
      let directory = try CacheDirectory(existingAt: url)
      try PurgePreview.write(scope, mode, words, in: directory, isJSON: arguments.has("json"))
      return .success
    }
    var removed: (entryCount: Int, byteCount: Int, keptCount: Int)?
    do {
      let directory = try CacheDirectory(existingAt: url)
      removed = try directory.remove(scope, mode: mode)
      guard removed != nil else { throw UsageError("no response can be stored for that URL") }
    } catch  where CacheDirectory.isOutOfReaderSlots(error) {
      // The purge is effective; only the responses cannot be counted.
      guard try CacheDirectory.remove(scope, mode: mode, fromDirectoryInUse: url) else {
        throw UsageError("no response can be stored for that URL")
      }
    }
    try report(removed, mode, words, asJSON: arguments.has("json"))
    FleetPurge.warnIfLocal(url)
    return .success
  }

  private static func report(
    _ removed: (entryCount: Int, byteCount: Int, keptCount: Int)?, _ mode: PurgeMode, _ words: String, asJSON: Bool
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

  private static func scope(_ arguments: Arguments) throws -> (PurgeScope, String) {
    let given = ["url", "since", "host", "prefix", "group", "all"].filter { arguments.has($0) }
    guard given.count == 1 else {
      throw UsageError("say what to purge: exactly one of --url, --since, --host, --prefix, --group and --all")
    }
    guard arguments.has("group") == arguments.has("origin") else {
      throw UsageError("--group and --origin go together")
    }
    if let text = arguments.value("url") {
      let url = try webURL(text, option: "url")
      return (.url(url), "responses of \(Format.visible(text))")
    }
    if let when = arguments.value("since") {
      let date = try TimeArgument.parse(when, now: Date())
      return (.since(date), "responses stored after \(Format.localTime(date))")
    }
    if let host = try arguments.host() { return (.host(host), "responses stored for \(host)") }
    if let text = arguments.value("prefix") {
      let url = try webURL(text, option: "prefix")
      return (.prefix(url), "URLs that begin with \(Format.visible(text))")
    }
    if let group = arguments.value("group"), let origin = arguments.value("origin") {
      return (
        .group(group, origin: try webURL(origin, option: "origin")), Format.visible("group '\(group)' of \(origin)")
      )
    }
    return (.all, "everything")
  }

  private static func webURL(_ text: String, option: String) throws -> URL {
    guard let url = URL(string: text), url.isHTTPWithHost else {
      throw UsageError("--\(option) takes an http or https URL with a host, not '\(text)'")
    }
    return url
  }
}

import Foundation
import LMDBURLCache

/// `urlcache purge`: removes a selection.
enum PurgeCommand: Command {
  static let manual = Manual(
    name: "purge", summary: "Removes responses from a cache's directory.",
    usage: ["DIR --since WHEN", "DIR --host HOST", "DIR --prefix URL", "DIR --group NAME --origin URL", "DIR --all"],
    discussion: """
      Removes what is selected from the cache in DIR, and says how many responses went. When the command is done, no
      process reads them any more, also those that use the cache right now. Nothing is made where no cache is.

      WHEN is \(Moment.forms).
      A date and time is ISO 8601; without a zone ('Z', '+01:00') it is local time. A time alone is today's. A duration
      is a number with s, m, h, d or w, and means so long ago.
      """,
    operandName: "the directory", operandCount: 1...1,
    options: [
      Option(name: "since", placeholder: "WHEN", help: "What was stored after a moment; what was stored at it stays."),
      Option(
        name: "host", placeholder: "HOST",
        help: "What is stored for a host, whatever scheme and port; not for its subdomains."),
      Option(
        name: "prefix", placeholder: "URL",
        help:
          "URLs that begin with this one: same scheme, host and port, and a path and query\nthat begin with these characters."
      ),
      Option(name: "group", placeholder: "NAME", help: "The members of a cache group (RFC 9875) of --origin."),
      Option(name: "origin", placeholder: "URL", help: "Any URL of the origin that --group belongs to."),
      Option(name: "all", help: "Everything."),
      Option(name: "json", help: "Prints a JSON object."),
    ],
    success: "done, also if nothing was selected",
    failure: "there is no cache in DIR, or it cannot be used")

  static func run(_ arguments: Arguments) async throws -> ExitCode {
    let (selection, words) = try selection(arguments)
    let directory = try CacheDirectory(existingAt: URL(fileURLWithPath: arguments.operands[0]))
    guard let removed = directory.remove(selection) else { throw UsageError("nothing can be stored for that URL") }
    var kept = 0
    directory.forEachEntry { _ in
      kept += 1
      return true
    }
    if arguments.has("json") {
      let json: JSON = [
        "removedCount": .number(removed.entryCount), "removedBodyByteCount": .number(removed.byteCount),
        "keptCount": .number(kept),
      ]
      try Output.write(json.pretty)
    } else {
      let count = "\(Format.count(removed.entryCount, "response")) (\(Format.bytes(removed.byteCount)))"
      try Output.write("Removed \(words): \(count). \(Format.count(kept, "response")) left.\n")
    }
    return .success
  }

  private static func selection(_ arguments: Arguments) throws -> (CacheDirectory.Selection, String) {
    let given = ["since", "host", "prefix", "group", "all"].filter { arguments.has($0) }
    guard given.count == 1 else {
      throw UsageError("say what to remove: exactly one of --since, --host, --prefix, --group and --all")
    }
    guard arguments.has("group") == arguments.has("origin") else {
      throw UsageError("--group and --origin go together")
    }
    if let when = arguments.value("since") {
      let date = try Moment.parse(when, now: Date())
      return (.since(date), "what was stored after \(Format.localTime(date))")
    }
    if let host = arguments.value("host") {
      guard !host.isEmpty, !host.contains(where: { "/:@? ".contains($0) }) || host.hasPrefix("[") else {
        throw UsageError("--host takes a host alone, such as api.example.com, not '\(host)'")
      }
      return (.host(host), "what was stored for \(host)")
    }
    if let text = arguments.value("prefix") {
      let url = try webURL(text, option: "prefix")
      return (.prefix(url), "what begins with \(text)")
    }
    if let group = arguments.value("group"), let origin = arguments.value("origin") {
      return (.group(group, origin: try webURL(origin, option: "origin")), "group '\(group)' of \(origin)")
    }
    return (.all, "everything")
  }

  private static func webURL(_ text: String, option: String) throws -> URL {
    guard let url = URL(string: text), url.isWeb else {
      throw UsageError("--\(option) takes an http or https URL with a host, not '\(text)'")
    }
    return url
  }
}

import Foundation
import LMDBURLCache

/// `urlcache purge`: removes a selection.
enum PurgeCommand: Command {
  static let manual = Manual(
    name: "purge", summary: "Removes responses from a cache's directory.",
    usage: ["DIR --since WHEN", "DIR --host HOST", "DIR --prefix URL", "DIR --group NAME --origin URL", "DIR --all"],
    discussion: """
      Removes what is selected from the cache in DIR, and says how many responses went. When the command is done, no
      process reads them any more, also those that use the cache right now. It waits for none of them. Nothing is made where
      no cache is. Where other processes have all reader slots, nothing is counted; in JSON the counts are null then.

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
    let url = URL(fileURLWithPath: arguments.operands[0])
    var removed: (entryCount: Int, byteCount: Int, keptCount: Int)?
    do {
      let directory = try CacheDirectory(existingAt: url)
      removed = try directory.remove(selection)
      guard removed != nil else { throw UsageError("nothing can be stored for that URL") }
    } catch  where CacheDirectory.isOutOfReaderSlots(error) {
      // It holds all the same; only what there was and is cannot be counted.
      guard try CacheDirectory.remove(selection, fromDirectoryInUse: url) else {
        throw UsageError("nothing can be stored for that URL")
      }
    }
    if arguments.has("json") {
      let json: JSON = [
        "removedCount": removed.map { .number($0.entryCount) } ?? .null,
        "removedBodyByteCount": removed.map { .number($0.byteCount) } ?? .null,
        "keptCount": removed.map { .number($0.keptCount) } ?? .null,
      ]
      try Output.write(json.pretty)
    } else if let removed {
      let count = "\(Format.count(removed.entryCount, "response")) (\(Format.bytes(removed.byteCount)))"
      try Output.write("Removed \(words): \(count). \(Format.count(removed.keptCount, "response")) left.\n")
    } else {
      try Output.write("Removed \(words). Other processes have all reader slots, so nothing could be counted.\n")
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

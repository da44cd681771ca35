import CacheModel
import Foundation
import HTTPCaching
import LMDBURLCache

/// The responses that a command is about: those in a scope that a filter selects.
struct ResponseSelection {
  let scope: PurgeScope
  /// The store's scope for ``scope``.
  let removalScope: RemovalScope
  let filter: ResponseFilter
  /// The selection in words, such as `responses stored for a.example with status 404`.
  let words: String
  /// Whether neither a scope nor a filter was given.
  let isEmpty: Bool

  private static let all = Option(name: "all", help: "All responses.")

  /// The options that a purge and a list have in common.
  static let options: [Option] = scopeOptions + ResponseFilter.options

  static let purgeOptions: [Option] = scopeOptions + [all] + ResponseFilter.options

  private static let scopeNames = ["url", "since", "host", "prefix", "tag", "group", "all"]

  /// The options that are scopes, in words for help and errors.
  static let scopeWords = "one of " + scopeNames.map { "--" + $0 }.joined(separator: ", ")

  private static let scopeOptions = [
    Option(
      name: "url", placeholder: "URL",
      help:
        "The responses of this URL with its query: all variants, methods, partitions, and contents of\nQUERY."),
    Option(
      name: "since", placeholder: "WHEN", help: "Responses stored or updated after this time, but not at this time."),
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
    Option(
      name: "tag", placeholder: "TAG",
      help:
        "Responses with this one tag, of all hosts or of --origin. The tags are in --tag-field, or in\n\(knownFields)."),
    tagField,
    Option(name: "group", placeholder: "NAME", help: "The members of a cache group (RFC 9875) of --origin."),
    Option(name: "origin", placeholder: "URL", help: "Any URL of the origin of --group or --tag."),
  ]

  /// The fields that have tags.
  static let tagField = Option(
    name: "tag-field", placeholder: "NAME", help: "A field that has tags. Can be repeated.", isRepeatable: true)

  private static let knownFields = ResponseTags.knownFieldNames.joined(separator: ", ")

  /// Returns the fields that have tags: those of the option, or those whose syntax is known.
  ///
  /// - Throws: `UsageError` for a name that no field can have, under which a purge would find nothing.
  static func tagFieldNames(_ arguments: Arguments) throws -> [String] {
    guard arguments.has(tagField.name) else { return ResponseTags.knownFieldNames }
    let names = arguments.all(tagField.name)
    for name in names where name.isEmpty || !name.utf8.allSatisfy(\.isTokenByte) {
      throw UsageError("--tag-field takes the name of a field, such as Cache-Tag, not '\(name)'")
    }
    return names
  }

  /// Parses the options.
  ///
  /// - Throws: `UsageError` for invalid values, and for more than one scope.
  init(_ arguments: Arguments) throws {
    let given = Self.scopeNames.filter { arguments.has($0) }
    guard given.count <= 1 else { throw UsageError("--\(given[0]) cannot be combined with --\(given[1])") }
    guard arguments.has("origin") ? arguments.has("group") || arguments.has("tag") : !arguments.has("group") else {
      throw UsageError("--group needs --origin, and --origin needs --group or --tag")
    }
    guard arguments.has("tag") || !arguments.has(Self.tagField.name) else {
      throw UsageError("--tag-field needs --tag")
    }
    guard arguments.value("tag") != "" else { throw UsageError("--tag needs a tag") }
    filter = try ResponseFilter(arguments)
    isEmpty = given.isEmpty && filter.isEmpty
    let scopeWords: String
    (scope, scopeWords) = try Self.scope(arguments)
    guard let removalScope = scope.removalScope() else { throw UsageError("no response can be stored for that URL") }
    self.removalScope = removalScope
    guard !filter.isEmpty else {
      words = scopeWords
      return
    }
    words = (scope == .all ? "responses" : scopeWords) + " with " + filter.words.joined(separator: ", ")
  }

  /// Whether the selection has a response that its scope covers.
  func selects(_ entry: CacheDirectory.Entry) -> Bool { filter.matches(entry) }

  private static func scope(_ arguments: Arguments) throws -> (PurgeScope, String) {
    if let text = arguments.value("url") {
      let url = try webURL(text, option: "url")
      return (.url(url), "responses of \(Format.visible(text))")
    }
    if let when = arguments.value("since") {
      let date = try TimeArgument.parse(when, now: Date())
      return (.since(date), "responses stored or updated after \(Format.localTime(date))")
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
    if let tag = arguments.value("tag") {
      let origin = try arguments.value("origin").map { try webURL($0, option: "origin") }
      let words = Format.visible("responses with the tag '\(tag)'" + (origin.map { " of \($0)" } ?? ""))
      return (.tag(tag, origin: origin, fieldNames: try tagFieldNames(arguments)), words)
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

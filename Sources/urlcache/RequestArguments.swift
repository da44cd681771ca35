import CachingClient
import Foundation
import FoundationNetworking
import HTTPCaching
import LMDBURLCache

/// The parts of a request in a command line, which several commands have.
enum RequestArguments {
  static let header = Option(
    name: "header", placeholder: "FIELD", help: "A header field of the request, such as 'Accept: text/html'.",
    isRepeatable: true)
  static let method = Option(
    name: "method", placeholder: "METHOD", help: "The request's method; GET by default.",
    values: ["GET", "HEAD", "QUERY", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
  static let partition = Option(
    name: "partition", placeholder: "NAME", help: "The partition of the cache; empty by default.")
  static let policy = Option(
    name: "policy", placeholder: "NAME", help: "The use of stored responses; see above.",
    values: ["protocol", "reload", "reload-everywhere", "prefer-cache", "only-cache", "revalidate"])
  static let rules = Option(
    name: "rules", placeholder: "FILE",
    help: "Uses the caching rules in this JSON file; see the article 'Rules as data'.")
  /// The options that replace the mode of the directory's programs.
  static let modes = [
    Option(name: "shared", help: "Decides as a shared cache, for many users."),
    Option(name: "private", help: "Decides as a private cache, for one user."),
  ]
  /// The description of ``modes``, with the directory as DIR.
  static let modeText = """
    The rules are those of a private or of a shared cache, as in the program that opened DIR last. --private or --shared
    replaces that. Without either and without a program, they are those of a private cache.
    """

  /// The description of ``policy``.
  static let policies = """
    Policies: protocol (the rules of HTTP; the default), reload (load from the origin and store the response),
    reload-everywhere (also tell other caches to do so), prefer-cache (a stored response of any age, otherwise from
    the origin), only-cache (a stored response of any age, otherwise none), revalidate (a stored response only after
    the origin has validated it).
    """

  /// Parses the values of `--header`.
  static func fields(_ arguments: Arguments) throws -> [(name: String, value: String)] {
    try arguments.all("header").map(field)
  }

  private static func field(_ text: String) throws -> (name: String, value: String) {
    let parts = text.split(separator: ":", maxSplits: 1, omittingEmptySubsequences: false)
    let name = String(parts[0])
    let isName =
      !name.isEmpty && name.utf8.allSatisfy { $0 > 0x20 && $0 < 0x7f && !"\"(),/;<=>?@[\\]{}".utf8.contains($0) }
    let hasControl = text.unicodeScalars.contains { $0.value < 0x20 && $0 != "\t" || $0.value == 0x7f }
    guard parts.count == 2, isName, !hasControl else {
      throw UsageError("--header takes 'Name: value', not '\(Format.visible(text))'")
    }
    return (name, parts[1].trimmingCharacters(in: .whitespaces))
  }

  /// Parses the value of `--policy`.
  static func policy(_ arguments: Arguments) throws -> URLRequest.CachePolicy {
    switch arguments.value("policy") ?? "protocol" {
    case "protocol": .useProtocolCachePolicy
    case "reload": .reloadIgnoringLocalCacheData
    case "reload-everywhere": .reloadIgnoringLocalAndRemoteCacheData
    case "prefer-cache": .returnCacheDataElseLoad
    case "only-cache": .returnCacheDataDontLoad
    case "revalidate": .reloadRevalidatingCacheData
    case let name: throw UsageError("there is no policy '\(Format.visible(name))'")
    }
  }

  static func method(_ arguments: Arguments) -> String { arguments.value("method") ?? "GET" }

  static func partition(_ arguments: Arguments) -> String { arguments.value("partition") ?? "" }

  /// Reads the file of ``rules``; an empty list if it was not given.
  static func rules(_ arguments: Arguments) throws -> CachingRules {
    guard let file = arguments.value(rules.name) else { return CachingRules() }
    return try CachingRules(contentsOf: URL(fileURLWithPath: file))
  }

  /// Returns the mode in which a command decides.
  ///
  /// - Parameter recorded: The mode of the programs that use the directory; nil if it is unknown.
  /// - Throws: `UsageError` for both modes.
  static func mode(
    _ arguments: Arguments, recorded: @autoclosure () -> CachingOptions.Mode?
  ) throws -> CachingOptions.Mode {
    switch (arguments.has("private"), arguments.has("shared")) {
    case (true, true): throw UsageError("--private and --shared exclude each other")
    case (true, false): .private
    case (false, true): .shared
    case (false, false): recorded() ?? .private
    }
  }

  /// Returns the options of the cache that decides about the responses of a directory.
  static func options(_ arguments: Arguments, of directory: CacheDirectory) throws -> CachingOptions {
    var options = CachingOptions()
    options.mode = try mode(arguments, recorded: directory.recordedMode)
    return options
  }

  /// Returns the stored variants of the URL in the second operand.
  ///
  /// - Throws: `UsageError` for a text that cannot be the URL of a stored response.
  static func variants(_ arguments: Arguments, in directory: CacheDirectory) throws -> [CacheDirectory.Variant] {
    let request = try RequestContent(arguments)
    let fields = HeaderFields(request.fields.map { ($0.name, $0.value) })
    let variants = directory.variants(
      of: arguments.operands[1], method: request.method, content: request.data, partition: partition(arguments),
      selectedBy: fields, options: try options(arguments, of: directory))
    guard let variants else {
      throw UsageError("'\(Format.visible(arguments.operands[1]))' is not an absolute URL with a host")
    }
    return variants
  }
}

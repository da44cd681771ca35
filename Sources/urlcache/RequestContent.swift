import Foundation
import FoundationNetworking

/// The method, the fields and the content of a request in a command line.
struct RequestContent {
  let method: String
  let fields: [(name: String, value: String)]
  /// The content; nil if none was given.
  let data: Data?

  static let options = [
    Option(name: "data", placeholder: "TEXT", help: "The content of a query."),
    Option(
      name: "data-file", placeholder: "FILE", help: "The content of a query, from a file; '-' for standard input."),
    Option(
      name: "content-type", placeholder: "TYPE",
      help: "The media type of the content; by default\n\(defaultType)."),
  ]

  static let defaultType = "application/x-www-form-urlencoded"

  /// The description of the options.
  static let discussion = """
    With --method QUERY (RFC 10008), sends --data or the content of --data-file, which is a part of the cache key. So is
    its media type, which QUERY requires: --content-type, or \(defaultType) as in curl. A POST is
    such a query if a rule with treatsAsQuery says so (--rules).
    """

  private static let methodsWithContent = ["QUERY", "POST", "PUT", "PATCH"]

  /// Parses the options, and reads the content.
  ///
  /// - Throws: `UsageError` for options that do not go together; `ToolError` for a file that cannot be read.
  init(_ arguments: Arguments) throws {
    method = RequestArguments.method(arguments)
    var fields = try RequestArguments.fields(arguments)
    let given = ["data", "data-file"].filter { arguments.has($0) }
    guard given.count < 2 else { throw UsageError("--data cannot be combined with --data-file") }
    guard let option = given.first else {
      if arguments.has("content-type") { throw UsageError("--content-type needs --data or --data-file") }
      if method == "QUERY" {
        throw UsageError("--method QUERY needs the query: --data TEXT, which may be empty, or --data-file FILE")
      }
      data = nil
      self.fields = fields
      return
    }
    guard Self.methodsWithContent.contains(method) else {
      throw UsageError(
        arguments.has("method")
          ? "a \(Format.visible(method)) has no content: --\(option) needs --method QUERY, or another method with content"
          : "--\(option) needs --method QUERY, or another method with content")
    }
    let hasType = fields.contains { $0.name.lowercased() == "content-type" }
    if let type = arguments.value("content-type") {
      guard !hasType else { throw UsageError("--content-type cannot be combined with --header 'Content-Type: ...'") }
      guard Self.isMediaType(type) else {
        throw UsageError("--content-type takes a media type such as application/json, not '\(Format.visible(type))'")
      }
      fields.append(("Content-Type", type))
    } else if !hasType {
      fields.append(("Content-Type", Self.defaultType))
    }
    self.fields = fields
    data = try arguments.value("data").map { Data($0.utf8) } ?? Self.read(arguments.value("data-file") ?? "-")
  }

  /// Sets the parts of a request.
  func apply(to request: inout URLRequest) {
    request.httpMethod = method
    request.httpBody = data
    for (name, value) in fields { request.addValue(value, forHTTPHeaderField: name) }
  }

  /// Whether a text is a media type, with or without parameters.
  private static func isMediaType(_ text: String) -> Bool {
    text.wholeMatch(of: /[!#$%&'*+.^_`|~0-9A-Za-z\-]+\/[!#$%&'*+.^_`|~0-9A-Za-z\-]+([ \t]*;[\t -~]*)?/) != nil
  }

  private static func read(_ file: String) throws -> Data {
    do {
      return try file == "-"
        ? FileHandle.standardInput.readToEnd() ?? Data() : Data(contentsOf: URL(fileURLWithPath: file))
    } catch {
      let isMissing = file != "-" && !FileManager.default.fileExists(atPath: file)
      throw ToolError(
        "\(file == "-" ? "Standard input" : file) \(isMissing ? "does not exist" : "cannot be read").")
    }
  }
}

public import FoundationEssentials
import HTTPCaching

/// The rules of an operator, in their order.
///
/// All rules that match a request and its response apply, in their order. A later rule replaces what it sets, and
/// leaves the rest. So general rules come first, and exceptions after them. The partition is the exception: all fields
/// that matching rules name are part of it, so that no rule can join what another one separates.
///
///     options.rules = try CachingRules(contentsOf: URL(fileURLWithPath: "/etc/example/caching-rules.json"))
///
/// In JSON the rules are a list of objects, whose keys are the names of the properties of ``CachingRule``:
///
///     [
///       { "name": "API", "hosts": ["api.example.com"], "lifetime": "10m", "ignoredQueryParameters": ["token"] },
///       { "name": "images", "mediaTypes": ["image/*"], "lifetime": "7d", "ignoredResponseFields": ["Set-Cookie"] },
///       { "name": "accounts", "paths": ["/account/*"], "allowsStoring": false }
///     ]
///
/// A lifetime is a number of seconds, or a text with a unit: `30s`, `10m`, `2h`, `7d` or `1w`.
public struct CachingRules: Sendable {
  /// The rules in their order.
  public let rules: [CachingRule]
  private let matchers: [RuleMatcher]
  private let separatesByField: Bool

  /// Creates an empty list, which overrides nothing.
  public init() {
    (rules, matchers, separatesByField) = ([], [], false)
  }

  /// Creates a list of rules.
  ///
  /// - Throws: ``CachingRulesError`` for a rule without a name or with that of another one, an invalid pattern or
  ///   value, or a rule that sets nothing.
  public init(_ rules: [CachingRule]) throws(CachingRulesError) {
    var names: Set<String> = []
    var matchers: [RuleMatcher] = []
    for (index, rule) in rules.enumerated() {
      do throws(CachingRulesError) {
        guard !rule.name.isEmpty else {
          throw CachingRulesError(key: "name", "the rule has no name", "Give each rule a name of its own")
        }
        guard names.insert(rule.name).inserted else {
          throw CachingRulesError(
            rule: rule.name, key: "name", "another rule has this name", "Give each rule a name of its own")
        }
        matchers.append(try RuleMatcher(validating: rule))
      } catch {
        var error = error
        error.ruleNumber = index + 1
        throw error
      }
    }
    self.rules = rules
    self.matchers = matchers
    separatesByField = rules.contains { $0.partitionField != nil }
  }

  /// Reads rules from a JSON file.
  ///
  /// - Throws: ``CachingRulesError``, which names the file, the rule and the key, for a file that cannot be read or has
  ///   other content.
  public init(contentsOf file: URL) throws(CachingRulesError) {
    do throws(CachingRulesError) { try self.init(data: try Self.read(file)) } catch {
      var error = error
      error.path = file.path
      throw error
    }
  }

  private static func read(_ file: URL) throws(CachingRulesError) -> Data {
    do { return try Data(contentsOf: file) } catch {
      let reason =
        switch (error as? CocoaError)?.code {
        case .fileReadNoSuchFile, .fileNoSuchFile: "there is no such file"
        case .fileReadNoPermission: "this process may not read the file"
        default: "the file cannot be read"
        }
      throw CachingRulesError(reason, "Give the path of a readable JSON file")
    }
  }

  private init(data: Data) throws(CachingRulesError) {
    guard data.contains(where: { !" \t\r\n".utf8.contains($0) }) else {
      throw CachingRulesError("the file is empty", "Write [] for no rules")
    }
    do { self = try JSONDecoder().decode(CachingRules.self, from: data) } catch {
      guard case .dataCorrupted(let context) = error as? DecodingError else {
        throw CachingRulesError("\(error)", Self.form)
      }
      if let cause = context.underlyingError as? CachingRulesError { throw cause }
      let detail = context.underlyingError.map { " (\($0))" } ?? ""
      throw CachingRulesError("the content is not valid JSON" + detail, Self.form)
    }
  }

  private static let form = "Write a list of objects, such as [{\"name\": \"API\", \"lifetime\": \"10m\"}]"
}

extension CachingRules: Hashable {
  /// Whether both have equal rules in the same order.
  public static func == (left: CachingRules, right: CachingRules) -> Bool { left.rules == right.rules }

  /// Hashes the rules.
  public func hash(into hasher: inout Hasher) { hasher.combine(rules) }
}

extension CachingRules: Codable {
  /// Decodes a list of rules.
  ///
  /// - Throws: `DecodingError.dataCorrupted`, whose underlying error is a ``CachingRulesError``.
  public init(from decoder: any Decoder) throws {
    var rules: [CachingRule] = []
    // The decoder's error names types of Swift. The error below replaces it, and says what to write.
    guard var container = try? decoder.unkeyedContainer() else {
      throw CachingRulesError("the content is not a list", Self.form).decodingError(at: decoder.codingPath)
    }
    while !container.isAtEnd {
      do { rules.append(try container.decode(CachingRule.self)) } catch {
        var (place, cause) = (container.codingPath, CachingRulesError("the rule is not an object", Self.form))
        if case .dataCorrupted(let context) = error as? DecodingError {
          // An error of the decoder itself concerns the syntax of the document.
          guard let invalid = context.underlyingError as? CachingRulesError else { throw error }
          (place, cause) = (context.codingPath, invalid)
        }
        cause.ruleNumber = rules.count + 1
        throw cause.decodingError(at: place)
      }
    }
    do throws(CachingRulesError) { try self.init(rules) } catch {
      throw error.decodingError(at: decoder.codingPath)
    }
  }

  /// Encodes the list of rules.
  public func encode(to encoder: any Encoder) throws { try rules.encode(to: encoder) }
}

extension CachingRules {
  /// Whether there are no rules.
  public var isEmpty: Bool { rules.isEmpty }

  /// Returns the partition and the overrides of a request.
  ///
  /// - Parameters:
  ///   - url: The URL of the request.
  ///   - partition: The partition that the program gives the request.
  ///   - own: The overrides that the program gives the request. They apply like one more rule after all others.
  ///   - fieldValues: Returns the values of the lines of a request field.
  /// - Complexity: Compares the URL once with each rule. Allocates nothing, unless a matching rule names a media type
  ///   or a partition field.
  package func apply(
    to url: URL, partition: String, overrides own: RequestOverrides?, fieldValues: (String) -> [String]
  ) -> (partition: String, overrides: RequestOverrides) {
    guard !isEmpty else { return (partition, own ?? RequestOverrides()) }
    var overrides = RequestOverrides()
    var fields: Set<String> = []
    var dependsOnResponse = false
    RequestTarget.read(url.absoluteString) { target in
      for matcher in matchers where matcher.matches(target) {
        if matcher.rule.mediaTypes.isEmpty { matcher.rule.apply(to: &overrides) } else { dependsOnResponse = true }
        if let name = matcher.partitionField { fields.insert(name) }
      }
      guard dependsOnResponse else { return }
      overrides.responseRules = matchers.filter { $0.matches(target) }
    }
    if let own {
      let rule = CachingRule(own)
      rule.apply(to: &overrides)
      if let form = own.queryNormalForm { overrides.queryNormalForm = form }
      if dependsOnResponse { overrides.responseRules.append(RuleMatcher(withoutConditions: rule)) }
    }
    guard separatesByField else { return (partition, overrides) }
    return (RulePartition.text(partition, fields: fields.sorted(), values: fieldValues), overrides)
  }

  /// A rule that matches a request.
  package struct Match: Sendable {
    package let rule: CachingRule
    /// Whether the media type of the response matches as well; nil if the rule needs one, and it is not known.
    package let appliesToResponse: Bool?
  }

  /// Returns the rules that match a request, in their order.
  ///
  /// - Parameters:
  ///   - contentType: The `Content-Type` of the response; nil if it has none.
  ///   - hasResponse: Whether there is a response, whose media type is compared.
  package func matches(of url: URL, contentType: String?, hasResponse: Bool) -> [Match] {
    RequestTarget.read(url.absoluteString) { target in
      matchers.filter { $0.matches(target) }.map { matcher in
        let isKnown = hasResponse || matcher.rule.mediaTypes.isEmpty
        return Match(
          rule: matcher.rule,
          appliesToResponse: isKnown ? matcher.matches(mediaType: MediaType.name(inContentType: contentType)) : nil)
      }
    }
  }
}

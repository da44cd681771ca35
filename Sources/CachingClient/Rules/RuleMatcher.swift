import HTTPCaching

/// A rule that is ready for comparing. An object, so that no rule is copied for a request.
final class RuleMatcher: Sendable {
  let rule: CachingRule
  /// The name of the partition field in lower case.
  let partitionField: String?
  private let hosts: [HostPattern]
  private let paths: [PathPattern]
  private let mediaTypes: [Wildcards]

  /// - Throws: ``CachingRulesError`` for an invalid pattern or value, or a rule that sets nothing.
  init(validating rule: CachingRule) throws(CachingRulesError) {
    func invalid(_ key: CachingRule.CodingKeys, _ text: String) -> CachingRulesError {
      CachingRulesError(rule: rule.name, key: key.rawValue, "'\(text)' is not valid", "Write \(key.form)")
    }
    var (hosts, paths, mediaTypes): ([HostPattern], [PathPattern], [Wildcards]) = ([], [], [])
    for text in rule.hosts {
      guard let pattern = HostPattern(text) else { throw invalid(.hosts, text) }
      hosts.append(pattern)
    }
    for text in rule.paths {
      guard let pattern = PathPattern(text) else { throw invalid(.paths, text) }
      paths.append(pattern)
    }
    for text in rule.mediaTypes {
      guard let pattern = MediaType.pattern(text) else { throw invalid(.mediaTypes, text) }
      mediaTypes.append(pattern)
    }
    if let lifetime = rule.lifetime, !(lifetime >= 0 && lifetime.isFinite) { throw invalid(.lifetime, "\(lifetime)") }
    if let staleAfter = rule.staleAfter, !(staleAfter >= 0) { throw invalid(.staleAfter, "\(staleAfter)") }
    for name in rule.ignoredResponseFields ?? [] {
      guard name.isFieldName else { throw invalid(.ignoredResponseFields, name) }
      guard name.asciiLowercased() != "location" else {
        throw CachingRulesError(
          rule: rule.name, key: "ignoredResponseFields", "a stored redirect needs '\(name)'", "Take out this name")
      }
    }
    // A name is compared as it is, so a pattern, and a character that a URL has percent-encoded, would match nothing.
    for name in rule.ignoredQueryParameters ?? []
    where name.isEmpty || !name.utf8.allSatisfy({ $0 > 0x20 && $0 < 0x7F && !"=&#*?".utf8.contains($0) }) {
      throw invalid(.ignoredQueryParameters, name)
    }
    if let name = rule.queryNormalForm, CachingRule.normalForms[name] == nil { throw invalid(.queryNormalForm, name) }
    if let name = rule.partitionField {
      guard name.isFieldName else { throw invalid(.partitionField, name) }
      guard !UnsharedFields.ofUser.contains(name.asciiLowercased()) else {
        throw CachingRulesError(
          rule: rule.name, key: "partitionField", "'\(name)' has credentials, and partitions are written to the disk",
          "Name a field without secrets")
      }
    }
    guard !rule.effects.isEmpty else {
      throw CachingRulesError(
        rule: rule.name, "the rule sets nothing",
        "Set one of " + CachingRule.CodingKeys.allCases.dropFirst(4).map(\.rawValue).joined(separator: ", "))
    }
    if !rule.mediaTypes.isEmpty {
      let early: [(CachingRule.CodingKeys, Bool)] = [
        (.ignoredQueryParameters, rule.ignoredQueryParameters != nil),
        (.allowsCoalescing, rule.allowsCoalescing != nil), (.treatsAsQuery, rule.treatsAsQuery != nil),
        (.queryNormalForm, rule.queryNormalForm != nil), (.staleAfter, rule.staleAfter != nil),
        (.partitionField, rule.partitionField != nil),
      ]
      if let key = early.first(where: { $0.1 })?.0 {
        throw CachingRulesError(
          rule: rule.name, key: key.rawValue, "the media type is not known yet when this is decided",
          "Set it in another rule without mediaTypes")
      }
    }
    (self.hosts, self.paths, self.mediaTypes) = (hosts, paths, mediaTypes)
    self.rule = rule
    partitionField = rule.partitionField?.asciiLowercased()
  }

  /// Creates a matcher of everything.
  init(withoutConditions rule: CachingRule) {
    self.rule = rule
    partitionField = nil
    (hosts, paths, mediaTypes) = ([], [], [])
  }

  func matches(_ target: RequestTarget) -> Bool {
    guard hosts.isEmpty || hosts.contains(where: { $0.matches(target) }) else { return false }
    return paths.isEmpty || paths.contains { $0.matches(target) }
  }

  /// Whether the rule matches the media type of a response.
  func matches(mediaType: String?) -> Bool {
    mediaTypes.isEmpty || mediaType.map { type in mediaTypes.contains { $0.matches(type) } } ?? false
  }
}

extension CachingRule {
  /// The forms that ``queryNormalForm`` names.
  static let normalForms: [String: QueryNormalForm?] = ["json": .json, "none": nil]

  /// Creates a rule that sets what overrides change, except a normal form, which need not have a name.
  init(_ overrides: RequestOverrides) {
    self.init(
      name: "", lifetime: overrides.lifetime,
      ignoredResponseFields: overrides.ignoredResponseFields.isEmpty ? nil : overrides.ignoredResponseFields,
      ignoredQueryParameters: overrides.ignoredQueryParameters.isEmpty ? nil : overrides.ignoredQueryParameters,
      allowsStoring: overrides.allowsStoring ? nil : false, allowsCoalescing: overrides.allowsCoalescing ? nil : false,
      treatsAsQuery: overrides.treatsAsQuery ? true : nil, staleAfter: overrides.staleAfter)
  }

  /// Replaces what the rule sets.
  func apply(to overrides: inout RequestOverrides) {
    if let lifetime { overrides.lifetime = lifetime }
    if let ignoredResponseFields { overrides.ignoredResponseFields = ignoredResponseFields }
    if let ignoredQueryParameters { overrides.ignoredQueryParameters = ignoredQueryParameters }
    if let allowsStoring { overrides.allowsStoring = allowsStoring }
    if let allowsCoalescing { overrides.allowsCoalescing = allowsCoalescing }
    if let treatsAsQuery { overrides.treatsAsQuery = treatsAsQuery }
    if let staleAfter { overrides.staleAfter = staleAfter }
    if let queryNormalForm { overrides.queryNormalForm = Self.normalForms[queryNormalForm] ?? nil }
  }
}

extension RuleMatcher: Hashable {
  static func == (left: RuleMatcher, right: RuleMatcher) -> Bool { left.rule == right.rule }

  func hash(into hasher: inout Hasher) { hasher.combine(rule) }
}

extension String {
  /// Whether the text can be the name of a header field (RFC 9110, section 5.1).
  ///
  /// A `*` can be in a name, but is rather meant as a pattern, and field names are not patterns here.
  fileprivate var isFieldName: Bool { !isEmpty && utf8.allSatisfy { $0.isTokenByte && $0 != UInt8(ascii: "*") } }
}

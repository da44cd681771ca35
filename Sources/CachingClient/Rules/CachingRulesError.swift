public import FoundationEssentials

/// An error in caching rules: the file, the rule, the key, what is wrong, and what to write instead.
public struct CachingRulesError: Error, Sendable, Hashable {
  /// The path of the file; nil if the rules do not come from a file.
  public internal(set) var path: String?
  /// The name of the rule; nil if the error concerns all of them, or the rule has no name.
  public let rule: String?
  /// The position of the rule in the list, from 1; nil if the error concerns all of them.
  public internal(set) var ruleNumber: Int?
  /// The key in the rule.
  public let key: String?
  /// The cause.
  public let reason: String
  /// Advice on how to solve the problem.
  public let remedy: String

  init(rule: String? = nil, key: String? = nil, _ reason: String, _ remedy: String) {
    self.rule = rule == "" ? nil : rule
    self.key = key
    self.reason = reason
    self.remedy = remedy
  }

  /// Returns the error in the form that decoders throw.
  func decodingError(at path: [any CodingKey]) -> DecodingError {
    .dataCorrupted(.init(codingPath: path, debugDescription: description, underlyingError: self))
  }
}

extension CachingRulesError: CustomStringConvertible {
  /// One sentence for the problem, and one for the remedy.
  public var description: String {
    let rule = [ruleNumber.map(String.init), rule.map { "\"\($0)\"" }].compactMap(\.self).joined(separator: " ")
    let place = [rule.isEmpty ? nil : "rule \(rule)", key.map { "key \"\($0)\"" }].compactMap(\.self)
      .joined(separator: ", ")
    let file = path.map { " in \($0)" } ?? ""
    return "Cannot use the caching rules\(file): \(place.isEmpty ? "" : place + ": ")\(reason). \(remedy)."
  }
}

extension CachingRulesError: LocalizedError {
  /// The text of ``description``.
  public var errorDescription: String? { description }
}

/// The reason for a decision: a stable ID for logs and tests, the RFC section, and a short text.
public struct Rule: Sendable, CustomStringConvertible {
  /// A stable ID, such as `fresh`.
  public let id: String
  /// The RFC and the section, such as `9111 4.2`.
  public let section: String
  /// A short text.
  public let summary: String

  /// Creates a custom rule. This module's own rules are static members.
  @inlinable
  public init(_ id: String, _ section: String, _ summary: String) {
    self.id = id
    self.section = section
    self.summary = summary
  }

  /// The ID, the section and the text.
  public var description: String { "\(id) (RFC \(section)): \(summary)" }
}

extension Rule: Hashable {
  /// Whether both have the same ID.
  public static func == (left: Rule, right: Rule) -> Bool { left.id == right.id }

  /// Hashes the ID.
  public func hash(into hasher: inout Hasher) { hasher.combine(id) }
}

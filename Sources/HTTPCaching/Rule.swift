/// The reason of a decision: a stable id for logs and tests, the section that asks for it, and a few words.
public struct Rule: Sendable, CustomStringConvertible {
  /// A stable id, for example `fresh`.
  public let id: String
  /// The RFC and section, for example `9111 4.2`.
  public let section: String
  /// What it says, in a few words.
  public let summary: String

  /// A reason of one's own; the ones of this module are static members.
  @inlinable
  public init(_ id: String, _ section: String, _ summary: String) {
    self.id = id
    self.section = section
    self.summary = summary
  }

  /// The id, the section and the words.
  public var description: String { "\(id) (RFC \(section)): \(summary)" }
}

extension Rule: Hashable {
  /// Whether both have the same id.
  public static func == (left: Rule, right: Rule) -> Bool { left.id == right.id }

  /// Hashes the id.
  public func hash(into hasher: inout Hasher) { hasher.combine(id) }
}

#if canImport(FoundationEssentials)
  public import FoundationEssentials
#else
  public import Foundation
#endif

/// Whether a stored response may stand in for an origin that fails (RFC 9111, 4.2.4; RFC 5861, 4).
public struct StaleOnError: Sendable, Hashable {
  /// How the origin failed.
  public enum Failure: Sendable, Hashable {
    /// It answered with this status.
    case status(Int)
    /// No answer came: no connection, a broken one, or a time-out.
    case unreachable
  }

  /// Until when a stored response may stand in for an error answer; `nil`: never.
  public var untilAfterError: Date?
  /// Until when it may if the origin cannot be reached; `nil`: never.
  public var untilWhenUnreachable: Date?
  /// Why.
  public var rule: Rule

  /// A permission.
  public init(untilAfterError: Date?, untilWhenUnreachable: Date?, rule: Rule) {
    self.untilAfterError = untilAfterError
    self.untilWhenUnreachable = untilWhenUnreachable
    self.rule = rule
  }

  /// Whether the stored response may be served at `now` after `failure`. An error answer is one of 500, 502, 503 and 504.
  public func mayServe(after failure: Failure, now: Date) -> Bool {
    switch failure {
    case .status(500), .status(502), .status(503), .status(504): untilAfterError.map { now <= $0 } ?? false
    case .status: false
    case .unreachable: untilWhenUnreachable.map { now <= $0 } ?? false
    }
  }
}

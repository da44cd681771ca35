#if canImport(FoundationEssentials)
  public import FoundationEssentials
#else
  public import Foundation
#endif

/// Whether a stored response may replace the response of a failed origin (RFC 9111, 4.2.4; RFC 5861, 4).
public struct StaleOnError: Sendable, Hashable {
  /// The failure of the origin.
  public enum Failure: Sendable, Hashable {
    /// The origin responded with this status.
    case status(Int)
    /// No response arrived: the connection failed, broke or timed out.
    case unreachable
  }

  /// The time until which a stored response may replace an error response; `nil`: never.
  public var untilAfterError: Date?
  /// The time until which it may be served if the origin is unreachable; `nil`: never.
  public var untilWhenUnreachable: Date?
  /// The reason.
  public var rule: Rule

  /// Creates a permission.
  public init(untilAfterError: Date?, untilWhenUnreachable: Date?, rule: Rule) {
    self.untilAfterError = untilAfterError
    self.untilWhenUnreachable = untilWhenUnreachable
    self.rule = rule
  }

  /// Whether a stored response can replace one with this status: 500, 502, 503 or 504.
  package static func isError(status: Int) -> Bool { status == 500 || (502...504).contains(status) }

  /// Whether the stored response may be served at `now` after `failure`. Error statuses are 500, 502, 503 and 504.
  public func mayServe(after failure: Failure, now: Date) -> Bool {
    switch failure {
    case .status(let status): Self.isError(status: status) && untilAfterError.map { now <= $0 } ?? false
    case .unreachable: untilWhenUnreachable.map { now <= $0 } ?? false
    }
  }
}

extension StaleOnError {
  /// Permission for neither case.
  public static let forbidden = StaleOnError(untilAfterError: nil, untilWhenUnreachable: nil, rule: .staleForbidden)

  /// Computes the permission (9111 4.2.4 and 5861 4).
  ///
  /// Every permission, also that of the request's own `stale-if-error`, ends where `max-age` of the request ends, and
  /// `min-fresh` of the request excludes it.
  ///
  /// - Parameter now: The time of the decision.
  init(
    freshness: FreshnessInfo, now: Date, directives: RequestDirectives, policy: RequestPolicy, options: CachingOptions
  ) {
    self = .forbidden
    if let rule = ReuseEvaluation.staleForbidden(freshness, options) {
      self.rule = rule
      return
    }
    // The client requires validation or, by min-fresh, a fresh response; or the response is known to be outdated.
    guard !directives.noCache, !directives.pragmaNoCache, directives.minFresh == nil,
      policy != .reloadRevalidatingCacheData,
      !freshness.flags.contains(.stale), freshness.flags.contains(.sharedMode) == (options.mode == .shared)
    else { return }
    // The request's directive takes precedence over the response's, which takes precedence over the option.
    var window =
      directives.staleIfError
      ?? (freshness.staleIfError >= 0 ? freshness.staleIfError : options.staleIfErrorByDefault ?? -1)
    if freshness.hasUnknownStaleness(at: now) { window = -1 }
    if window >= 0 {
      let staleAt = freshness.responseTime.addingTimeInterval(freshness.lifetime - freshness.initialAge)
      let until = staleAt.addingTimeInterval(min(window, FreshnessInfo.maximumSeconds))
      self = StaleOnError(untilAfterError: until, untilWhenUnreachable: until, rule: .staleIfError)
    }
    if options.servesStaleWhenUnreachable {
      untilWhenUnreachable = .distantFuture
      if window < 0 { rule = .disconnected }
    }
    // 9111 5.2.1.1: an error does not make the client accept an older response, or one of unknown age.
    if let maximum = directives.maxAge {
      let end =
        freshness.isFromFuture(at: now)
        ? Date.distantPast : freshness.responseTime.addingTimeInterval(maximum - freshness.initialAge)
      untilAfterError = untilAfterError.map { min($0, end) }
      untilWhenUnreachable = untilWhenUnreachable.map { min($0, end) }
    }
  }
}

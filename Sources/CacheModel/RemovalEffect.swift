public import FoundationEssentials
import HTTPCaching

/// The effect of removals on a response.
public enum RemovalEffect: Sendable, Hashable {
  /// No removal covers the response.
  case none
  /// Soft purges cover the response, the earliest at this time. Serve it as stale (``/HTTPCaching/FreshnessInfo``).
  case stale(since: Date)
  /// A hard removal covers the response. Do not serve it; it is deleted later.
  case removed

  /// Makes every use require validation, without stale windows, because the response may have been removed elsewhere.
  package static let suspect = RemovalEffect.stale(since: FreshnessInfo.suspicionDate)

  /// The effect of this and of other removals on one response. Their order does not matter.
  package func combined(with other: RemovalEffect) -> RemovalEffect {
    switch (self, other) {
    case (.removed, _), (_, .removed): .removed
    case (.none, _): other
    case (_, .none): self
    case (.stale(let date), .stale(let otherDate)): .stale(since: min(date, otherDate))
    }
  }
}

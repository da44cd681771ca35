public import FoundationEssentials
import HTTPCaching

/// The effect of a removal on the responses that it covers.
package enum RemovalMode: Sendable, Hashable {
  /// Hides them at once; they are deleted later.
  case hard
  /// Makes them stale from this time on, and keeps them.
  case soft(at: Date)

  /// Keeps them, and makes every use require validation, without stale windows.
  package static let suspect = RemovalMode.soft(at: FreshnessInfo.suspicionDate)

  /// The time of a soft removal; nil for a hard one.
  package var softTime: Date? {
    switch self {
    case .hard: nil
    case .soft(let date): date
    }
  }
}

/// The effect of removals on a copy of a response.
public enum RemovalEffect: Sendable, Hashable {
  /// No removal covers the copy.
  case none
  /// Soft purges cover the copy, the earliest at this time. Serve it as stale (``/HTTPCaching/FreshnessInfo``).
  case stale(since: Date)
  /// A removal covers the copy. Do not serve it.
  case removed

  /// The effect of this and of another removal on one response. Their order does not matter.
  package func combined(with mode: RemovalMode) -> RemovalEffect {
    switch (self, mode) {
    case (.removed, _), (_, .hard): .removed
    case (.none, .soft(let date)): .stale(since: date)
    case (.stale(let earlier), .soft(let date)): .stale(since: min(earlier, date))
    }
  }
}

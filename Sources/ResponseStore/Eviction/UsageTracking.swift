import FoundationEssentials
import HTTPCaching

/// The fate of a record's use count when the record is deleted.
enum UsageTracking {
  /// The fate of the use count when the record is deleted.
  enum AfterRemoval {
    /// Dropped: no request wants the record back.
    case forget
    /// Kept as a ghost entry: the record was evicted.
    case remember
    /// Passed on to the record that replaces it.
    case passOn
  }
}

extension RecordHeaderView {
  /// When a response without a validator becomes useless: its freshness lifetime is over, and so is the time in which
  /// it may be served stale. Nil for a response with a validator, or without a declared lifetime.
  var expiry: Date? {
    let freshness = freshness
    let validators: FreshnessInfo.Flags = [.strongETag, .weakETag, .lastModified]
    guard status > 0, freshness.lifetime > 0, freshness.flags.isDisjoint(with: validators) else { return nil }
    let stale = max(freshness.staleWhileRevalidate, freshness.staleIfError, 0)
    return freshness.responseTime + (freshness.lifetime - freshness.initialAge + stale)
  }
}

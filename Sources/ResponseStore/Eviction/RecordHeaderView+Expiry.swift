import FoundationEssentials
import HTTPCaching

extension RecordHeaderView {
  /// When a response becomes useless, because it is stale, may no longer be served stale, and cannot be validated.
  ///
  /// Nil for a response with a validator, or without a declared lifetime.
  var expiry: Date? {
    let freshness = freshness
    let validators: FreshnessInfo.Flags = [.strongETag, .weakETag, .lastModified]
    guard status > 0, freshness.lifetime > 0, freshness.flags.isDisjoint(with: validators) else { return nil }
    let stale = max(freshness.staleWhileRevalidate, freshness.staleIfError, 0)
    return freshness.responseTime + (freshness.lifetime - freshness.initialAge + stale)
  }
}

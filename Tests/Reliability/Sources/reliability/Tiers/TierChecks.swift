import Foundation
import StoreContract

/// The checks of the series `tiers` for each response that a lookup or a load returns.
///
/// The ledger uses only facts that were known before the lookup began. A response that the origin sent after a purge
/// was called is new. The memory tiers of another process return an older response until it is stale. The caches of one
/// process never return an older response than any of them has stored.
struct TierChecks: Sendable {
  let ledger: Ledger
  let content: TierContent

  /// Returns the promise that a response breaks, or nil.
  ///
  /// - Parameter source: The source of the response if a load reported it.
  func violation(_ body: Data, url: URL?, _ facts: Ledger.Facts, source: String?) -> Ledger.Violation? {
    let key = facts.slot
    guard let identity = content.identity(of: body, for: key), url == nil || url == content.url(key) else {
      return Ledger.Violation(.wrong, "key \(key): \(body.count) bytes from \(url?.absoluteString ?? "?")")
    }
    // A response that is not a miss was served without validation.
    let isUnvalidated = content.isFetched(key) && (source == "hit" || source == "coalesced")
    return ledger.violation(
      Ledger.FoundResponse(version: identity.version, isSoftPurged: isUnvalidated ? false : nil), after: facts)
  }
}

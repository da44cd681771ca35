import CacheModel
import Synchronization

/// The right of an in-flight fetch to store its response.
///
/// A removal or an invalidation during the fetch revokes the permit, because the origin may have sent the response
/// before it (RFC 9111 section 4.4). A soft purge revokes the permit too, but does not require the removal of stored
/// responses (``isRemoved``).
///
/// The caching client calls ``revoke(isSoft:)`` for its own removals and invalidations. The storage finds the removals
/// of other caches and processes by comparing the permit's removal token with its removals.
final class StorePermit: Sendable {
  private let revokedFlag = Atomic<Bool>(false)
  /// Set with `revokedFlag`, unless only soft purges have revoked the permit.
  private let removedFlag = Atomic<Bool>(false)
  private let lastToken: Atomic<RemovalToken>
  private let effectOfRemovals: @Sendable (inout RemovalToken) -> RemovalEffect

  /// - Parameters:
  ///   - token: The current removal token, read before the request is sent.
  ///   - effectOfRemovals: Returns the effect that removals since the token have on the response of the fetch, and
  ///     advances the token to the present.
  init(token: RemovalToken, effectOfRemovals: @escaping @Sendable (inout RemovalToken) -> RemovalEffect) {
    lastToken = Atomic(token)
    self.effectOfRemovals = effectOfRemovals
  }

  /// The removal token up to which no removal covers the fetch.
  var token: RemovalToken { lastToken.load(ordering: .acquiring) }

  /// Whether the permit is revoked. This asks the storage for new removals. A revoked permit stays revoked.
  var isRevoked: Bool {
    if isKnownRevoked { return true }
    update()
    return isKnownRevoked
  }

  /// Whether a hard removal or an invalidation revoked the permit, so that the stored response must not be served.
  ///
  /// False after a soft purge: the stored response may be served as stale. This asks the storage for new removals.
  var isRemoved: Bool {
    if isKnownRemoved { return true }
    update()
    return isKnownRemoved
  }

  /// Asks the storage for removals since the token.
  private func update() {
    let known = token
    var token = known
    switch effectOfRemovals(&token) {
    case .none: advance(from: known, to: token)
    case .stale: revoke(isSoft: true)
    case .removed: revoke()
    }
  }

  /// Whether the permit is known to be revoked, without asking the storage.
  var isKnownRevoked: Bool { revokedFlag.load(ordering: .acquiring) }

  private var isKnownRemoved: Bool { removedFlag.load(ordering: .acquiring) }

  /// Revokes the permit.
  ///
  /// - Parameter isSoft: Whether a soft purge is the reason.
  func revoke(isSoft: Bool = false) {
    if !isSoft { removedFlag.store(true, ordering: .releasing) }
    revokedFlag.store(true, ordering: .releasing)
  }

  /// Records that no removal between two tokens covers the fetch.
  ///
  /// Does nothing if the permit's token is no longer `known`.
  func advance(from known: RemovalToken, to token: RemovalToken) {
    guard token != known else { return }
    _ = lastToken.compareExchange(expected: known, desired: token, ordering: .acquiringAndReleasing)
  }
}

import ResponseStore
import Synchronization

/// The right of an in-flight fetch to store its response.
///
/// A removal or an invalidation during the fetch revokes the permit, because the origin may have sent the response
/// before it (RFC 9111 section 4.4). The caching client calls ``revoke()`` for its own removals and invalidations. The
/// storage finds the removals of other caches and processes by comparing the permit's removal token with its removals.
final class StorePermit: Sendable {
  private let isMarked = Atomic<Bool>(false)
  private let lastToken: Atomic<RemovalToken>
  private let wasRemoved: @Sendable (inout RemovalToken) -> Bool

  /// - Parameters:
  ///   - token: The current removal token, read before the request is sent.
  ///   - wasRemoved: Returns whether a removal since the token covers the response of the fetch, and advances the token
  ///     to the present.
  init(token: RemovalToken, wasRemoved: @escaping @Sendable (inout RemovalToken) -> Bool) {
    lastToken = Atomic(token)
    self.wasRemoved = wasRemoved
  }

  /// The removal token up to which no removal covers the fetch.
  var token: RemovalToken { lastToken.load(ordering: .acquiring) }

  /// Whether the permit is revoked. This asks the storage for new removals. A revoked permit stays revoked.
  var isRevoked: Bool {
    if isKnownRevoked { return true }
    let known = token
    var token = known
    guard !wasRemoved(&token) else {
      revoke()
      return true
    }
    advance(from: known, to: token)
    return isKnownRevoked
  }

  /// Whether the permit is known to be revoked, without asking the storage.
  var isKnownRevoked: Bool { isMarked.load(ordering: .acquiring) }

  /// Revokes the permit.
  func revoke() {
    isMarked.store(true, ordering: .releasing)
  }

  /// Records that no removal between two tokens covers the fetch.
  ///
  /// Does nothing if the permit's token is no longer `known`.
  func advance(from known: RemovalToken, to token: RemovalToken) {
    guard token != known else { return }
    _ = lastToken.compareExchange(expected: known, desired: token, ordering: .acquiringAndReleasing)
  }
}

import ResponseStore
import Synchronization

/// The right of one fetch to store its result. A removal or an invalidation that comes while the fetch is under way
/// takes it away, because what the origin sent may be older than that (RFC 9111 section 4.4).
///
/// The fetches of this engine are told, by ``void()``. What others remove, in whatever process, shows when the storage
/// compares the fetch's removal token with its removals.
final class StoreTicket: Sendable {
  private let isMarked = Atomic<Bool>(false)
  private let lastToken: Atomic<RemovalToken>
  private let wasRemoved: @Sendable (inout RemovalToken) -> Bool

  /// - Parameters:
  ///   - token: taken before the request is sent.
  ///   - wasRemoved: whether a removal since a token covers what the fetch may bring. It moves the token to now.
  init(token: RemovalToken, wasRemoved: @escaping @Sendable (inout RemovalToken) -> Bool) {
    lastToken = Atomic(token)
    self.wasRemoved = wasRemoved
  }

  /// The point in the order of removals up to which none covers the fetch.
  var token: RemovalToken { lastToken.load(ordering: .acquiring) }

  /// Whether the right is gone. It never comes back.
  var isVoid: Bool {
    if isKnownVoid { return true }
    let known = token
    var token = known
    guard !wasRemoved(&token) else {
      void()
      return true
    }
    advance(from: known, to: token)
    return isKnownVoid
  }

  /// The same as far as it is known already: without asking the storage.
  var isKnownVoid: Bool { isMarked.load(ordering: .acquiring) }

  func void() {
    isMarked.store(true, ordering: .releasing)
  }

  /// Notes that what was removed between two tokens does not cover the fetch. Does nothing if its token is another by
  /// now.
  func advance(from known: RemovalToken, to token: RemovalToken) {
    guard token != known else { return }
    _ = lastToken.compareExchange(expected: known, desired: token, ordering: .acquiringAndReleasing)
  }
}

import Synchronization

/// The right of one fetch to store its result. An invalidation that happens while the fetch is under way takes it away, because
/// what the origin sent may be older than the change (RFC 9111 section 4.4).
final class StoreTicket: Sendable {
  private let state = Atomic<Bool>(false)

  /// Whether the right is gone. It never comes back.
  var isVoid: Bool { state.load(ordering: .acquiring) }

  func void() {
    state.store(true, ordering: .releasing)
  }
}

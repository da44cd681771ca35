/// The bodies without a head that this process may sweep: what nobody writes any more, and what was too much to be removed at once.
///
/// Their IDs are never given out again, so that a body can be swept at any later time, by any process.
final class LostBodies: Sendable {
  private let bodyIDs = Monitor<Set<UInt64>>([])

  var isEmpty: Bool { bodyIDs.withLock { $0.isEmpty } }

  /// One of them, until it is forgotten.
  var first: UInt64? { bodyIDs.withLock { $0.first } }

  func note(_ bodyID: UInt64) {
    bodyIDs.withLock { bodyIDs in _ = bodyIDs.insert(bodyID) }
  }

  func forget(_ bodyID: UInt64) {
    bodyIDs.withLock { bodyIDs in _ = bodyIDs.remove(bodyID) }
  }
}

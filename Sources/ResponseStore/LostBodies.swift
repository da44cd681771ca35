/// The bodies without a head that this process may sweep: what nobody writes any more, and what was too much to be removed at once.
///
/// Their row ids are never given out again, so that a body can be swept at any later time, by any process.
final class LostBodies: Sendable {
  private let rowIDs = Monitor<Set<UInt64>>([])

  var isEmpty: Bool { rowIDs.withLock { $0.isEmpty } }

  /// One of them, until it is forgotten.
  var first: UInt64? { rowIDs.withLock { $0.first } }

  func note(_ rowID: UInt64) {
    rowIDs.withLock { rowIDs in _ = rowIDs.insert(rowID) }
  }

  func forget(_ rowID: UInt64) {
    rowIDs.withLock { rowIDs in _ = rowIDs.remove(rowID) }
  }
}

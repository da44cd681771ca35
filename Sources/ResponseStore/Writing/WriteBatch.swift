/// The work of one transaction of the writer.
struct WriteBatch {
  var writes: [PendingWrite] = []
  var damagedRowIDs: Set<UInt64> = []
  /// Whether logged removals are applied.
  var appliesRemovals = false
  var isEmpty: Bool { writes.isEmpty && damagedRowIDs.isEmpty && !appliesRemovals }
}

/// The result of a transaction, counted once it is committed.
struct WriteResult {
  var writes = 0
  /// The bytes of their record headers and bodies.
  var writtenByteCount = 0
  var updates = 0
  var dropped = 0
  var removed: [RemovalReason: Int] = [:]
  /// The rows of the written responses.
  var rows: [(response: PendingWrite, rowID: UInt64)] = []
  /// The number of pages that removals freed or will free.
  var freedPageCount = 0
  /// The number of live pages before the removals were applied.
  var pageCountBefore = 0
  /// The last logged removal that was applied.
  var lastAppliedRemoval: UInt64 = 0
}

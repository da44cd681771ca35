import CacheModel
import LMDB

/// A removal that hides responses now, or makes responses stale that are not marked yet.
package struct RemovalInForce: Sendable {
  /// The progress of a removal.
  package enum Stage: Sendable {
    /// In the removal log; no process has applied it to the database yet.
    case logged
    /// In the database: its responses are being deleted.
    case deleting
    /// In the database: the responses of this soft removal are being marked.
    case marking
  }

  /// The sequence number in the removal log; nil if so many removals have come that this process does not know them
  /// all.
  package let sequence: UInt64?
  package let removal: Removal
  package let stage: Stage
  /// The number of covered responses that are still on disk, or of a soft removal still to be marked.
  ///
  /// A response that several removals cover counts for the first of them.
  package var entryCount = 0
  /// The size of their bodies in bytes.
  package var byteCount = 0
}

/// The removals of a store, and its removal log.
package struct RemovalOverview: Sendable {
  /// The removals that affect responses now, in their order.
  package var removals: [RemovalInForce]
  package let lastSequence: UInt64
  /// The number of the last removal that was applied to the database.
  package let lastApplied: UInt64
  /// The number of removals that the log holds before it waits for the database.
  package let logCapacity: Int
}

extension ResponseStore {
  /// Returns the removals in force, with the responses that are still to be deleted or marked.
  ///
  /// - Parameter progress: Receives the number of examined records and their total, periodically.
  /// - Returns: Nil if the store cannot be read.
  /// - Complexity: O(entries) if there is a removal in force, otherwise constant. O(removals) in memory.
  package func removalOverview(progress: (_ done: Int, _ total: Int) -> Void) -> RemovalOverview? {
    guard context.isUsable else { return nil }
    do throws(LMDBError) {
      let (tombstones, lastApplied) = try context.database.environment.read { (transaction) throws(LMDBError) in
        (
          try context.removals.activeTombstones(in: transaction).filter { $0.removal.scope != .nothing },
          try context.database.counters(in: transaction).lastAppliedRemoval
        )
      }
      var overview = RemovalOverview(
        removals: tombstones.map { tombstone in
          RemovalInForce(
            sequence: tombstone.sequence == .max ? nil : tombstone.sequence, removal: tombstone.removal,
            stage: tombstone.sequence > lastApplied ? .logged : tombstone.removal.isHard ? .deleting : .marking)
        }, lastSequence: context.removalLog.sequence, lastApplied: lastApplied,
        logCapacity: context.removalLog.frameCount)
      try count(tombstones, in: &overview, progress: progress)
      return overview
    } catch {
      context.readFailed(error)
      return nil
    }
  }

  /// Counts the responses that removals cover, in batches with a read transaction each.
  private func count(
    _ tombstones: [Tombstone], in overview: inout RemovalOverview, progress: (_ done: Int, _ total: Int) -> Void
  ) throws(LMDBError) {
    guard !tombstones.isEmpty else { return }
    let total = entryCount
    var start: UInt64? = 0
    var done = 0
    while let first = start {
      start = nil
      var rowCount = 0
      try context.database.environment.read { (transaction) throws(LMDBError) in
        try context.database.heads.forEachRow(from: first, in: transaction) { (rowID, record) in
          guard rowCount < EntryWalk.maximumBatchCount else {
            start = rowID
            return false
          }
          rowCount += 1
          if let head = RecordHeaderView(record), head.hasRightChecksum, !RequestKey.isKeySpace(head.key),
            let index = tombstones.firstIndex(where: { $0.hasToChange(rowID: rowID, head) })
          {
            overview.removals[index].entryCount += 1
            overview.removals[index].byteCount += head.bodyByteCount
          }
          return true
        }
        context.database.environment.releaseResidentPages(in: transaction)
      }
      done += rowCount
      progress(done, total)
    }
  }
}

extension Tombstone {
  /// Whether the record is still to be deleted or marked.
  fileprivate func hasToChange(rowID: UInt64, _ head: RecordHeaderView) -> Bool {
    removal.isHard ? [self].hide(rowID: rowID, head) : [self].unmarkedFreshness(rowID: rowID, head) != nil
  }
}

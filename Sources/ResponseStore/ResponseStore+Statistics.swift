import CacheActivity
import FoundationEssentials
import LMDB

/// Statistics and the entries of a store.
extension ResponseStore {
  /// The present disk usage of the directory's files in bytes: their allocated blocks. Constant time.
  public var diskByteCount: Int { space.diskByteCount }

  /// The number of responses on disk, including those that a tombstone hides. Constant time.
  public var entryCount: Int { committedCounters()?.responseCount ?? 0 }

  /// The counters of this process, and the contents of the store. Constant time; not a consistent snapshot.
  public var statistics: StoreStatistics {
    let counters = committedCounters()
    let counts = context.counts
    return StoreStatistics(
      hits: counts.lookups.hits,
      misses: counts.lookups.misses,
      writes: counts[.writes],
      updates: counts[.updates],
      droppedWrites: counts[.droppedWrites],
      supersededWrites: counts[.supersededWrites],
      removals: counts.removals,
      corruptRecords: counts[.corruptRecords],
      mapFullRetries: counts[.mapFullRetries],
      commits: counts[.commits],
      entryCount: counters?.responseCount ?? 0,
      payloadByteCount: counters.map { Int(clamping: $0.payloadByteCount) } ?? 0,
      diskByteCount: diskByteCount,
      excessByteCount: excessByteCount,
      pendingRemovalCount: pendingRemovalCount,
      sweptEntryCount: sweptEntryCount,
      queuedByteCount: context.queue.withLock { $0.heldByteCount },
      unfinishedBodyCount: unfinishedBodyCount,
      arrivingByteCount: arrivingByteCount)
  }

  /// The counts of all processes that use or used the directory; nil if their file could not be created.
  ///
  /// Costs some microseconds.
  public var directoryStatistics: DirectoryStatistics? {
    context.counts.activity.file?.statistics(directory: directory)
  }

  /// Whether the directory still has the data that was opened, and the store has not failed. Costs a `stat`.
  package var isInPlace: Bool { !context.isUnusable }

  /// The counters of the directory.
  package var activity: ActivityReference { context.counts.activity }

  /// The bytes on disk above the capacity + 10%; more than 0 while a lower capacity is being applied. Constant time.
  public var excessByteCount: Int { space.excessByteCount }

  /// The number of removals, of all processes, that hide entries still to be deleted from the disk, or make entries
  /// stale that are still to be marked. Constant time.
  public var pendingRemovalCount: Int {
    read { (transaction) throws(LMDBError) in try context.removals.activeTombstones(in: transaction).count } ?? 0
  }

  /// The number of entries that the sweep behind these removals, by any process, has examined so far; 0 if none is in
  /// progress. Constant time.
  public var sweptEntryCount: Int {
    let progress = read { (transaction) throws(LMDBError) in try context.database.sweepProgress(in: transaction) }
    return progress.flatMap { $0 }.map { Int(clamping: $0.examinedCount) } ?? 0
  }

  /// The number of bodies without a response: those that arrive in any process, and those that are being deleted.
  package var unfinishedBodyCount: Int {
    read { (transaction) throws(LMDBError) in try context.database.unfinishedBodies(in: transaction).count } ?? 0
  }

  /// The bytes on disk of these bodies.
  package var arrivingByteCount: Int {
    read { (transaction) throws(LMDBError) -> Int in
      var sum = 0
      for body in try context.database.unfinishedBodies(in: transaction) {
        sum += try context.database.byteCount(ofUnfinishedBody: body.bodyID, in: transaction)
      }
      return sum
    } ?? 0
  }

  private func committedCounters() -> PersistentCounters? {
    read { (transaction) throws(LMDBError) in try context.database.counters(in: transaction) }
  }

  /// When the oldest and the newest entry were stored, including those that a tombstone hides; nil if there is none.
  ///
  /// - Complexity: O(log entries).
  public var storedTimes: ClosedRange<Date>? {
    read { (transaction) throws(LMDBError) in try context.database.storedTimes(in: transaction) } ?? nil
  }

  /// Runs `body` with a read transaction; nil if the store is unusable or the read fails.
  private func read<R>(_ body: (borrowing ReadTransaction) throws(LMDBError) -> R) -> R? {
    guard context.isUsable else { return nil }
    do throws(LMDBError) {
      return try context.database.environment.read(body)
    } catch {
      context.readFailed(error)
      return nil
    }
  }
}

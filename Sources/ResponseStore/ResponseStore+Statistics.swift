import LMDB

extension ResponseStore {
  /// The bytes that the directory's files take on disk now: their allocated blocks. Constant time.
  public var diskByteCount: Int { storeDirectory.diskByteCount() }

  /// How many entries are on disk, those that a purge hides and has still to delete included. Constant time.
  public var entryCount: Int { committedCounters().map { Int(clamping: $0.entryCount) } ?? 0 }

  /// What this process has done and what the store holds. Constant time; the numbers are no snapshot of one moment.
  public var statistics: StoreStatistics {
    let counters = committedCounters()
    return StoreStatistics(
      hits: counts.lookups.hits,
      misses: counts.lookups.misses,
      stores: counts.stores.load(ordering: .relaxed),
      updates: counts.updates.load(ordering: .relaxed),
      droppedStores: counts.droppedStores.load(ordering: .relaxed),
      supersededStores: counts.supersededStores.load(ordering: .relaxed),
      removals: counts.removalCounts,
      damagedRecords: counts.damagedRecords.load(ordering: .relaxed),
      fullMaps: counts.fullMaps.load(ordering: .relaxed),
      commits: counts.commits.load(ordering: .relaxed),
      entryCount: counters.map { Int(clamping: $0.entryCount) } ?? 0,
      payloadByteCount: counters.map { Int(clamping: $0.payloadByteCount) } ?? 0,
      diskByteCount: diskByteCount,
      excessByteCount: excessByteCount,
      pendingRemovalCount: pendingRemovalCount,
      queuedByteCount: queue.withLock { $0.heldByteCount })
  }

  /// The bytes on disk beyond the capacity and its 10 %: more than 0 while a lower capacity is being applied. Constant time.
  public var excessByteCount: Int {
    max(0, diskByteCount - StorageFormat.boundByteCount(capacityByteCount: capacityByteCount))
  }

  /// How many removals, of all processes, hide entries that are still to be deleted from the disk. Constant time.
  public var pendingRemovalCount: Int {
    guard isUsable else { return 0 }
    do throws(LMDBError) {
      return try file.environment.read { (transaction) throws(LMDBError) in try removals.purges(in: transaction).count }
    } catch {
      readFailed(error)
      return 0
    }
  }

  private func committedCounters() -> Counters? {
    guard isUsable else { return nil }
    do {
      return try file.environment.read { (transaction) throws(LMDBError) in try file.counters(in: transaction) }
    } catch {
      readFailed(error)
      return nil
    }
  }

  /// The bytes that the directory may take on disk; see ``Options/capacityByteCount``.
  ///
  /// Setting it holds for all processes that use the directory. A smaller value evicts before the call returns, unless no
  /// process has committed anything for ``Options/stallTimeout``: then the call logs that and returns, and the new value
  /// takes effect when writing is possible again.
  public var capacityByteCount: Int {
    get { limits.withLock { $0.capacityByteCount } }
    set {
      if newValue < Self.smallestCapacityByteCount { Trap.capacityTooSmall(newValue) }
      guard isUsable, !isForked else { return }
      // One that is on its way counts, too.
      guard newValue != maintenance.withLock({ $0.wantedCapacityByteCount }) ?? capacityByteCount else { return }
      setCapacity(newValue)
    }
  }

  /// Whether a capacity that was set is still being applied.
  package var isApplyingCapacity: Bool {
    maintenance.withLock { $0.appliedCapacityCount < $0.setCapacityCount }
  }
}

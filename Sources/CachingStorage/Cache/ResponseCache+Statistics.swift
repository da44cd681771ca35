public import CacheActivity
public import CachingClient
public import ResponseStore

extension ResponseCache {
  /// Counters of a cache, and its present contents.
  ///
  /// The numbers are not a consistent snapshot.
  public struct Statistics: Sendable, Hashable {
    /// Requests of this process's caching clients of the cache, by the source of the response.
    public var requests: ClientStatistics
    /// The disk tier: this process's lookups, writes and removals by reason, and the bytes and entries of the store.
    ///
    /// Nil without a disk tier.
    public var disk: StoreStatistics?
    /// The counts of all processes that use or used the directory. Nil without a disk tier.
    public var directory: DirectoryStatistics?
    /// The number of responses in the memory tier.
    public var memoryEntryCount: Int
    /// The size of the memory tier in bytes.
    public var memoryByteCount: Int
  }

  /// The statistics of this cache in this process, and of its directory.
  ///
  /// - Complexity: O(entries in the memory tier), which are counted; the rest is constant.
  public var statistics: Statistics {
    Statistics(
      requests: clientState.statistics, disk: tiers.store?.statistics, directory: tiers.store?.directoryStatistics,
      memoryEntryCount: tiers.memory.entryCount, memoryByteCount: tiers.memory.byteCount)
  }

  /// The responses on disk, without their bodies.
  ///
  ///     for entry in cache.entries() where entry.bodyByteCount > 1 << 20 { print(entry.url) }
  ///
  /// They are read in batches. Nothing is held between two elements, so the loop may take long. Responses that are
  /// stored or removed in the meantime may be missing, and so may those that are still queued; call ``flush()`` first
  /// to include these. Empty without a disk tier.
  ///
  /// - Parameter order: The order; by default by the time of storing, oldest first.
  /// - Complexity: O(entries) for all of them; constant memory.
  public func entries(in order: EntryOrder = .time) -> some Sequence<CacheDirectory.Entry> {
    (tiers.store.map { AnySequence($0.entries(in: order)) } ?? AnySequence(EmptyCollection())).lazy
      .map { CacheDirectory.Entry($0) }
  }
}

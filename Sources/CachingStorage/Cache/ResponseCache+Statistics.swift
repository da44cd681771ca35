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
}

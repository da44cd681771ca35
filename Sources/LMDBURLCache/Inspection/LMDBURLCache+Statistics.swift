import CachingClient
import ResponseStore

extension LMDBURLCache {
  /// Counters of this process's use of a cache, and the cache's present contents.
  ///
  /// The numbers are not a consistent snapshot.
  public struct Statistics: Sendable, Hashable {
    /// Requests of sessions and of ``LMDBURLCache/data(for:)`` by the source of the response.
    public var requests: ClientStatistics
    /// The disk tier: lookups, writes, removals by reason, bytes and entries. Nil without a disk tier.
    public var disk: StoreStatistics?
    /// The number of responses in the memory tier.
    public var memoryEntryCount: Int
    /// The size of the memory tier in bytes.
    public var memoryByteCount: Int
  }

  /// The statistics of this cache in this process.
  ///
  /// - Complexity: O(entries in the memory tier), which are counted; the rest is constant.
  public var statistics: Statistics {
    Statistics(
      requests: cachingClient.statistics, disk: core.store?.statistics, memoryEntryCount: core.memory.entryCount,
      memoryByteCount: core.memory.byteCount)
  }
}

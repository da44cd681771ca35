import CachingClient
import ResponseStore

extension LMDBURLCache {
  /// What the cache has done in this process, and what it holds. The numbers are no snapshot of one moment.
  public struct Statistics: Sendable, Hashable {
    /// Requests of sessions and of ``LMDBURLCache/data(for:)``, by how they were answered.
    public var requests: ClientStatistics
    /// The disk tier: lookups, stores, removals by reason, bytes and entries. Nil without one.
    public var disk: StoreStatistics?
    /// Responses in the memory tier.
    public var memoryEntryCount: Int
    /// Bytes of the memory tier.
    public var memoryByteCount: Int
  }

  /// What the cache has done in this process, and what it holds. Constant time but for the memory tier's entries.
  public var statistics: Statistics {
    Statistics(
      requests: engine.statistics, disk: core.store?.statistics, memoryEntryCount: core.memory.entryCount,
      memoryByteCount: core.memory.byteCount)
  }
}

public import CachingStorage
import ResponseStore

extension LMDBURLCache {
  /// Counters of a cache, and its present contents.
  public typealias Statistics = ResponseCache.Statistics

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
    storage.entries(in: order)
  }

  /// The statistics of this cache in this process, and of its directory.
  ///
  /// - Complexity: O(entries in the memory tier), which are counted; the rest is constant.
  public var statistics: Statistics { storage.statistics }

  /// Returns the statistics of the cache and its directory in Prometheus' text format, for example for `/metrics`.
  ///
  /// The counters are those of all processes that use or used the directory, so one process serves them for all. Every
  /// sample has the label `directory`. The memory tier is this process's own. Without a disk tier, only the memory tier
  /// is included.
  ///
  /// - Complexity: As ``statistics``.
  public func prometheusText() -> String { storage.prometheusText() }
}

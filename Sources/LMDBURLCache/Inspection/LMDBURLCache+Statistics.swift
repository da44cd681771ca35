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
    (core.store.map { AnySequence($0.entries(in: order)) } ?? AnySequence(EmptyCollection())).lazy
      .filter { !$0.key.isKeySpace }.map { CacheDirectory.Entry($0) }
  }

  /// The statistics of this cache in this process, and of its directory.
  ///
  /// - Complexity: O(entries in the memory tier), which are counted; the rest is constant.
  public var statistics: Statistics { storage.statistics }
}

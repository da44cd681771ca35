import Foundation
import ResponseStore

/// The removals in force, and the responses that a removal would cover.
extension CacheDirectory {
  /// The responses that a removal covers.
  package struct Coverage: Sendable {
    /// The number of covered responses.
    package var entryCount = 0
    /// The size of their bodies in bytes.
    package var byteCount = 0
    /// The number of other responses.
    package var keptCount = 0
    /// The first covered responses in the order on disk.
    package var first: [Entry] = []
  }

  /// Returns the responses that a purge would cover now.
  ///
  /// - Parameter limit: The maximum number of responses in ``Coverage/first``.
  /// - Returns: Nil for a URL that cannot be cached.
  /// - Complexity: O(entries) in time, O(limit) in memory.
  package func coverage(
    of scope: PurgeScope, limit: Int, progress: (_ done: Int, _ total: Int) -> Void
  ) -> Coverage? {
    scope.removalScope.map { count($0, limit: limit, progress: progress) }
  }

  /// Counts the responses that a removal would cover.
  func count(
    _ scope: RemovalScope, limit: Int = 0, progress: (_ done: Int, _ total: Int) -> Void = { _, _ in }
  ) -> Coverage {
    var coverage = Coverage()
    let total = entryCount
    for entry in store.entries(coveredBy: scope) {
      if entry.isCovered {
        coverage.entryCount += 1
        coverage.byteCount += entry.bodyByteCount
        if coverage.first.count < limit { coverage.first.append(Entry(entry)) }
      } else {
        coverage.keptCount += 1
      }
      progress(coverage.entryCount + coverage.keptCount, total)
    }
    return coverage
  }

  /// Returns the removals in force and their progress; nil if the store cannot be read.
  ///
  /// - Complexity: O(entries) if there is a removal in force, otherwise constant.
  package func removals(progress: (_ done: Int, _ total: Int) -> Void) -> RemovalOverview? {
    store.removalOverview(progress: progress)
  }
}

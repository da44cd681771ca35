import CacheModel
import FoundationEssentials
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

    fileprivate mutating func count(_ bodyByteCount: Int, isCovered: Bool) {
      if isCovered {
        entryCount += 1
        byteCount += bodyByteCount
      } else {
        keptCount += 1
      }
    }

    fileprivate mutating func add(_ entry: Entry, isCovered: Bool, limit: Int) {
      count(entry.bodyByteCount, isCovered: isCovered)
      if isCovered, first.count < limit { first.append(entry) }
    }
  }

  /// Returns the responses that a purge would cover now.
  ///
  /// - Parameters:
  ///   - isSelected: Whether the purge covers a response of the scope; all of them by default.
  ///   - limit: The maximum number of responses in ``Coverage/first``.
  /// - Returns: Nil for a URL that cannot be cached.
  /// - Complexity: O(entries) in time, O(limit) in memory.
  package func coverage(
    of scope: PurgeScope, where isSelected: (Entry) -> Bool = { _ in true }, limit: Int,
    progress: (_ done: Int, _ total: Int) -> Void
  ) -> Coverage? {
    scope.removalScope().map { scope in
      var coverage = Coverage()
      forEachEntry(in: .stored, coveredBy: scope, progress: progress) { entry, _, isCovered in
        coverage.add(entry, isCovered: isCovered && isSelected(entry), limit: limit)
        return true
      }
      return coverage
    }
  }

  /// Counts the responses that a removal would cover.
  func count(_ scope: RemovalScope) -> Coverage {
    var coverage = Coverage()
    for entry in store.entries(coveredBy: scope) {
      coverage.count(entry.bodyByteCount, isCovered: entry.isCovered)
    }
    return coverage
  }

  /// Purges those responses of a scope that a closure selects, some requests at a time.
  ///
  /// A purge of a request covers all its variants, and a response that replaces a selected one while this runs. Other
  /// responses that are stored while this runs stay, and so do responses that only the memory of a process has. What is
  /// purged stays purged as after ``remove(_:mode:)``, also if this call fails or is interrupted later.
  ///
  /// - Parameters:
  ///   - scope: The responses from which the closure selects.
  ///   - mode: Whether they are removed or become stale.
  ///   - isSelected: Whether to purge a response.
  ///   - progress: Receives the number of examined responses and their total, periodically.
  /// - Returns: The selected responses, and the number of others. Nil for a URL that cannot be cached.
  /// - Throws: `StoreError` of the module `ResponseStore` if a purge could not be logged.
  /// - Complexity: O(entries), and a sync for up to 256 requests.
  package func remove(
    _ scope: PurgeScope, mode: PurgeMode, where isSelected: (Entry) -> Bool,
    progress: (_ done: Int, _ total: Int) -> Void
  ) throws -> Coverage? {
    guard let scope = scope.removalScope() else { return nil }
    let start = Date()
    var coverage = Coverage()
    var keys: [RequestKey] = []
    try forEachEntry(in: .stored, coveredBy: scope, progress: progress) { entry, key, isCovered throws in
      // Responses that are stored meanwhile would make the walk endless.
      let isCovered = isCovered && entry.storedAt <= start && isSelected(entry)
      coverage.add(entry, isCovered: isCovered, limit: 0)
      guard isCovered else { return true }
      keys.append(key)
      guard keys.count == Self.purgedKeyCount else { return true }
      try store.removeOrThrow(keys, mode.effect(at: Date()))
      keys.removeAll(keepingCapacity: true)
      return true
    }
    try store.removeOrThrow(keys, mode.effect(at: Date()))
    return coverage
  }

  private static let purgedKeyCount = 256

  /// Calls `body` with each stored response, its key, and whether a scope covers it, until it returns false.
  ///
  /// - Parameter progress: Receives the number of examined responses and their total, periodically.
  /// - Throws: The error of `body`.
  /// - Complexity: O(entries).
  package func forEachEntry<E: Error>(
    in order: EntryOrder, coveredBy scope: RemovalScope, progress: (_ done: Int, _ total: Int) -> Void,
    _ body: (_ entry: Entry, _ key: RequestKey, _ isCovered: Bool) throws(E) -> Bool
  ) throws(E) {
    let total = entryCount
    var done = 0
    for entry in store.entries(in: order, coveredBy: scope) {
      done += 1
      progress(done, total)
      guard try body(Entry(entry), entry.key, entry.isCovered) else { return }
    }
  }

  /// Returns the removals in force and their progress; nil if the store cannot be read.
  ///
  /// - Complexity: O(entries) if there is a removal in force, otherwise constant.
  package func removals(progress: (_ done: Int, _ total: Int) -> Void) -> RemovalOverview? {
    store.removalOverview(progress: progress)
  }
}

public import CacheActivity
import CacheModel
import CachingClient
public import FoundationEssentials
import HTTPCaching
public import ResponseStore

/// Inspects and purges an existing cache directory without opening a cache.
///
///     let directory = try CacheDirectory(existingAt: url)
///     directory.forEachEntry { entry in print(entry.url, entry.bodyByteCount); return true }
///     let removed = directory.remove(.since(date))
///
/// Creates and repairs nothing, and keeps the capacity. Other processes can use the directory at the same time. No call
/// waits indefinitely for a process that holds the write lock, even if that process is suspended. In this process no
/// cache can be opened on the directory until this object is released; a cache that is open already is not affected.
///
/// All members can be called from any thread.
public final class CacheDirectory: Sendable {
  /// The directory's path.
  public let path: String
  package let store: ResponseStore

  /// One stored response, without its body.
  public struct Entry: Sendable {
    /// The URL of the request, with its query.
    public let url: String
    /// The method of the request.
    public let method: String
    /// The digest of a query's content and of the fields that change its meaning, as in the cache key, and the size of
    /// the content in bytes; nil for other requests.
    public let queryContent: (digest: String, byteCount: Int)?
    /// The HTTP status code; 0 for a response that is not HTTP.
    public let status: Int
    /// The time of storing.
    public let storedAt: Date
    /// The time of the last update by a validation, or else that of storing. A purge by date compares this time.
    public let updatedAt: Date
    /// The body's size in bytes.
    public let bodyByteCount: Int
    /// The names of the request fields in the Vary key, in lower case.
    ///
    /// They include `authorization` for a response to a request with credentials.
    public let varyNames: [String]
    /// The partition of the cache key; empty by default.
    public let partition: String
    /// The media type in lower case without parameters, such as `text/html`; nil if the response has no `Content-Type`.
    public var mediaType: String? { MediaType.name(inContentType: contentType) }
    private let contentType: String?
    private let freshness: FreshnessInfo
    private let rowID: UInt64
    private let keyBytes: [UInt8]

    init(_ entry: StoredResponseInfo) {
      url = entry.key.urlString
      method = entry.key.requestMethod
      queryContent = entry.key.queryContent
      status = entry.status
      storedAt = entry.storedAt
      updatedAt = entry.updatedAt
      bodyByteCount = entry.bodyByteCount
      varyNames = entry.varyNames
      partition = entry.key.partition
      contentType = entry.contentType
      freshness = entry.freshness
      rowID = entry.rowID
      keyBytes = entry.key.bytes
    }

    /// Returns the age in seconds at a time (RFC 9111, section 4.2.3).
    public func age(at now: Date) -> TimeInterval { freshness.currentAge(at: now) }

    /// Returns the remaining freshness lifetime in seconds; negative if the response is stale.
    public func timeToLive(at now: Date) -> TimeInterval { freshness.timeToLive(at: now) }

    /// Whether the response can be served without validation.
    public func isFresh(at now: Date) -> Bool { freshness.isFresh(at: now) && !freshness.flags.contains(.noCache) }

    /// Whether the entry precedes another one in the order on disk: by host, then scheme and port, then path.
    public func precedes(_ other: Entry) -> Bool {
      keyBytes == other.keyBytes ? rowID < other.rowID : keyBytes.lexicographicallyPrecedes(other.keyBytes)
    }
  }

  /// Opens the store in a directory.
  ///
  /// - Throws: `StoreError` of the module `ResponseStore`: the directory is missing or may not be read and written, or
  ///   the store in it is missing, corrupt, of another format version or not a store of this library.
  public convenience init(existingAt directory: URL) throws {
    try self.init(existingAt: directory, options: .existing)
  }

  /// Opens the store in a directory on which the caller then opens a cache.
  ///
  /// Missing lock files are no error, because the cache makes them, too.
  package convenience init(existingAt directory: URL, beforeOpeningCache: Void) throws {
    var options = ResponseStore.Options.existing
    options.makesLockFiles = true
    try self.init(existingAt: directory, options: options)
  }

  private init(existingAt directory: URL, options: ResponseStore.Options) throws {
    path = try ArgumentChecks.path(of: directory)
    store = try ResponseStore.open(directory: path, options: options)
  }

  deinit {
    store.close()
  }

  /// The disk capacity in bytes.
  public var capacityByteCount: Int { store.capacityByteCount }

  /// The allocated size of the directory's files on disk in bytes.
  public var diskByteCount: Int { store.diskByteCount }

  /// The size of the stored record headers and bodies in bytes, without the store's overhead.
  public var payloadByteCount: Int { store.statistics.payloadByteCount }

  /// The number of stored responses, including purged responses that are not deleted yet.
  ///
  /// - Complexity: O(1).
  public var entryCount: Int { store.entryCount }

  /// The times at which the oldest and the newest response were stored; nil if there is none.
  ///
  /// - Complexity: O(log entries).
  public var storedTimes: ClosedRange<Date>? { store.storedTimes }

  /// The bytes on disk in excess of 110% of the capacity, for example after the capacity was lowered.
  ///
  /// The cache that uses the directory reduces them.
  public var excessByteCount: Int { store.excessByteCount }

  /// The counts of all processes that use or used the directory; nil if it has none yet.
  ///
  /// Costs some microseconds. A cache creates the counters when it opens the directory.
  public var statistics: DirectoryStatistics? { store.directoryStatistics }

  /// The processes that use the directory, by process ID: their requests, their reader slots, and whether they are
  /// suspended. This process is included only if it has a cache open on the directory.
  ///
  /// - Complexity: O(processes + reader slots), some microseconds each.
  public var processes: [ProcessStatistics] { store.processes }

  /// Whether the directory still has the store that was opened, and the store has not failed.
  ///
  /// Costs a `stat`. If false, release this object, and create another one.
  public var isInPlace: Bool { store.isInPlace }

  /// The mode of the program that opened a cache on the directory last; nil if none has recorded it.
  package var recordedMode: CachingOptions.Mode? {
    store.activity.file?.isOfSharedCache.map { $0 ? .shared : .private }
  }

  /// Begins to record the requests of all processes; nil if the directory has no counters or no space for the events.
  package func watchEvents() -> EventWatch? { store.watchEvents() }

  /// The requests that were recorded when a process last watched, oldest first.
  package var recentEvents: [RequestEvent] { store.recentEvents }

  /// The number of purges whose responses are hidden but not yet deleted from the disk.
  public var pendingPurgeCount: Int { store.pendingRemovalCount }

  /// The number of responses that were examined so far for these purges; 0 if the deletion has not begun.
  public var examinedForPurgesCount: Int { store.sweptEntryCount }

  /// The number of bodies without a response: those that arrive in any process, and those that are being deleted.
  public var unfinishedBodyCount: Int { store.unfinishedBodyCount }

  /// The bytes on disk of these bodies.
  public var arrivingByteCount: Int { store.arrivingByteCount }

  /// Calls `body` with each stored response until it returns false.
  ///
  /// The responses to queries (RFC 10008) that an unsafe request has invalidated are among them until they are evicted.
  ///
  /// Buffers a bounded number of entries and holds no lock or transaction while `body` runs, so `body` may be slow.
  ///
  /// - Parameters:
  ///   - order: The order of the responses; by default by the time of storing, oldest first.
  ///   - body: A closure that receives each response and returns whether to continue.
  /// - Throws: The error of `body`.
  /// - Complexity: O(entries).
  public func forEachEntry<E: Error>(
    in order: EntryOrder = .time, _ body: (Entry) throws(E) -> Bool
  ) throws(E) {
    for entry in store.entries(in: order) {
      guard try body(Entry(entry)) else { return }
    }
  }

  /// Checks the whole store: all checksums, the tables against each other, sizes and counts.
  ///
  /// - Parameter progress: Receives the number of checked responses and their total, periodically.
  /// - Complexity: O(bytes stored) in time, O(1) in memory.
  public func verify(progress: (_ done: Int, _ total: Int) -> Void = { _, _ in }) -> StoreVerification {
    store.verify(progress: progress)
  }

  /// Returns the violations that ``verify(progress:)`` finds, one sentence for each.
  public func checkInvariants() -> [String] { store.checkInvariants() }

  /// Purges the responses that a scope covers. When it returns, no thread or process can read them, even after a crash.
  ///
  /// The disk space is also free for new responses when it returns. If no process commits anything for a second, for
  /// example because a suspended process holds the write lock, the next writer frees the space.
  ///
  /// After a soft purge, the responses are stale in every thread and process when it returns.
  ///
  /// - Parameters:
  ///   - scope: The responses to purge.
  ///   - mode: Whether they are removed or become stale. Hard by default.
  /// - Returns: The number of covered entries, the size of their bodies in bytes, and the number of other entries,
  ///   counted immediately before the purge. Nil for a URL that cannot be cached.
  /// - Throws: `StoreError` of the module `ResponseStore` if the purge could not be logged. Nothing was purged then.
  /// - Complexity: O(entries), because it counts them.
  @discardableResult
  public func remove(
    _ scope: PurgeScope, mode: PurgeMode = .hard
  ) throws -> (entryCount: Int, byteCount: Int, keptCount: Int)? {
    guard let scope = scope.removalScope() else { return nil }
    let count = count(scope)
    try store.removeOrThrow(Removal(scope, mode.effect(at: Date())))
    // A soft purge frees no space, and marking many responses would take long. The next writer does it.
    if mode == .hard { store.applyRemovals() }
    return (count.entryCount, count.byteCount, count.keptCount)
  }

  /// Purges a directory that cannot be opened because other processes use all reader slots.
  ///
  /// Unlike ``remove(_:mode:)``, it neither counts entries nor frees disk space; the other processes free the space.
  ///
  /// - Parameters:
  ///   - scope: The responses to purge.
  ///   - mode: Whether they are removed or become stale. Hard by default.
  ///   - directory: The cache's directory.
  /// - Returns: False for a URL that cannot be cached.
  /// - Throws: `StoreError` of the module `ResponseStore`: the directory or the store in it is missing, corrupt, or not
  ///   a store of this library; no other process uses it; or the removal could not be logged. Nothing was removed then.
  public static func remove(
    _ scope: PurgeScope, mode: PurgeMode = .hard, fromDirectoryInUse directory: URL
  ) throws -> Bool {
    guard let scope = scope.removalScope() else { return false }
    try ResponseStore.remove(Removal(scope, mode.effect(at: Date())), fromStoreInUseAt: directory.path)
    return true
  }

  /// Returns whether an error of ``init(existingAt:)`` means that other processes use all reader slots.
  public static func isOutOfReaderSlots(_ error: any Error) -> Bool {
    (error as? StoreError)?.cause?.code == .readersFull
  }
}

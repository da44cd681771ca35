public import CacheActivity
import CacheModel
public import CachingClient
import FoundationEssentials
import HTTPCaching
import ResponseStore
import Synchronization

/// An HTTP cache in memory and on disk for programs that do not use Foundation's types.
///
///     let cache = try ResponseCache(directory: path, memoryCapacity: 32 << 20, diskCapacity: 512 << 20)
///     let client = CachingClient(cache)
///     let response = try await client.respond(to: CachingClientRequest(head: head), over: CurlTransport())
///     try await cache.purge(.host("api.example.com"))
///
/// It is the storage of its caching clients. They share the fetches in flight and the counts of requests.
/// `LMDBURLCache` is the same cache for Foundation's types.
///
/// All members can be called from any thread. A lookup never waits for a writer. A response that cannot be read is a
/// miss; one that cannot be written is dropped and counted in ``statistics``.
public final class ResponseCache: Sendable {
  package let tiers: TieredStorage
  /// The layer above; nil without one.
  let interceptor: (any StorageInterceptor)?
  /// The state that the caching clients share.
  package let clientState: ClientState
  private let eventStreams = EventStreams()

  // MARK: Creating a cache

  /// Opens a cache in a directory and creates the directory if needed.
  ///
  /// - Parameters:
  ///   - directory: The path of a directory on a local file system that only caches use. All caches of one directory,
  ///     in any process, share the stored responses.
  ///   - memoryCapacity: The maximum size of the memory tier in bytes; 0 for none. Negative values trap.
  ///   - diskCapacity: The maximum size of the directory on disk in bytes, exceeded by at most 10%; at least
  ///     ``minimumDiskCapacity``, or 0 for no disk tier. Removals by other processes from a store in the directory then
  ///     still apply to the memory tier. Negative values trap.
  ///   - options: Options that are fixed for the life of the cache.
  /// - Throws: ``/ResponseStore/StoreError`` with the cause and a remedy: the directory cannot be used, contains a file
  ///   that is not this library's, or is in use by another version of this library; the disk capacity is too small. An
  ///   error of the fleet tier, if its files in the directory cannot be used.
  public convenience init(
    directory: String, memoryCapacity: Int, diskCapacity: Int, options: Options = Options()
  ) throws {
    try self.init(
      directory: directory, memoryCapacity: memoryCapacity, diskCapacity: diskCapacity, options: options,
      interceptor: nil)
  }

  /// Opens a cache with a layer above it.
  package convenience init(
    directory: String, memoryCapacity: Int, diskCapacity: Int, options: Options,
    interceptor: (any StorageInterceptor)?
  ) throws {
    Self.check(memoryCapacity: memoryCapacity, diskCapacity: diskCapacity)
    try ArgumentChecks.check(diskCapacity: diskCapacity, directory: directory)
    ArgumentChecks.issue(withMemoryCapacity: memoryCapacity).map { options.log($0) }
    let usesDisk = diskCapacity >= ResponseStore.minimumCapacityByteCount
    try options.checkFleet(directory: directory, usesDisk: usesDisk)
    let (store, failure) = Self.openStore(directory: directory, diskCapacity: diskCapacity, options: options)
    if let failure, usesDisk { throw failure }
    let connection = StoreConnection(
      directory: directory, store: store, failure: failure, memory: MemoryTier(capacityByteCount: memoryCapacity),
      diskCapacity: diskCapacity, options: options)
    self.init(TieredStorage(connection, membership: try options.joinFleet(connection)), interceptor: interceptor)
  }

  /// Opens a cache that uses memory only, and logs why, if the directory cannot be used.
  package convenience init(
    directoryIfUsable directory: String, memoryCapacity: Int, diskCapacity: Int, options: Options,
    interceptor: (any StorageInterceptor)?
  ) {
    Self.check(memoryCapacity: memoryCapacity, diskCapacity: diskCapacity)
    ArgumentChecks.issue(withDiskCapacity: diskCapacity).map { options.log($0) }
    ArgumentChecks.issue(withMemoryCapacity: memoryCapacity).map { options.log($0) }
    let (store, failure) = Self.openStore(directory: directory, diskCapacity: diskCapacity, options: options)
    let connection = StoreConnection(
      directory: directory, store: store, failure: failure, memory: MemoryTier(capacityByteCount: memoryCapacity),
      diskCapacity: diskCapacity, options: options)
    self.init(TieredStorage(connection), interceptor: interceptor)
  }

  private init(_ tiers: TieredStorage, interceptor: (any StorageInterceptor)?) {
    self.tiers = tiers
    self.interceptor = interceptor
    // Captures the tiers alone, because the clients' state belongs to this object.
    clientState = ClientState(
      activity: tiers.activity,
      spaces: SpaceRecords(
        hasEquivalents: { tiers.mayHaveEquivalentURLs }, number: { tiers.connection.keySpaceNumber(at: $0) },
        record: { tiers.keySpaceRecord(at: $0) }),
      hasVariants: { tiers.variantCount($0) > 0 },
      effectOfRemovals: { tiers.connection.possibleEffectOfRemovals(on: $0, since: &$1) })
  }

  /// The minimum disk capacity of a disk tier: 1 MiB.
  public static var minimumDiskCapacity: Int { ResponseStore.minimumCapacityByteCount }

  /// Opens the store of a directory, or returns why it cannot be opened; neither if a cache without a disk tier finds
  /// none.
  private static func openStore(
    directory: String, diskCapacity: Int, options: Options
  ) -> (store: ResponseStore?, failure: StoreError?) {
    do throws(StoreError) {
      return (try StoreConnection.open(directory: directory, diskCapacity: diskCapacity, options: options), nil)
    } catch {
      return (nil, error.code == .notFound ? nil : error)
    }
  }

  private static func check(memoryCapacity: Int, diskCapacity: Int) {
    // The message of `precondition` would be missing in release builds.
    for (name, capacity) in [("memory", memoryCapacity), ("disk", diskCapacity)] where capacity < 0 {
      fatalError("LMDBURLCache: the \(name) capacity of a cache cannot be negative (\(capacity)).")
    }
  }

  // MARK: Settings

  /// The minimum lifetime in seconds for the disk tier; 300 by default, as in SDURLCache.
  ///
  /// The lifetime of a response is the time for which it stays fresh, and the window after it in which it may be served
  /// stale: `stale-while-revalidate`, `stale-if-error`, or that of ``Options/caching``.
  ///
  /// Shorter-lived responses stay in memory, unless they have a validator (`ETag` or `Last-Modified`) or declare no
  /// lifetime. 0 disables the check, also for responses that arrive stale. A new value applies to later writes.
  public var minimumDiskLifetime: Double {
    get { tiers.settings.withLock { $0.minCacheInterval } }
    set { tiers.settings.withLock { $0.minCacheInterval = newValue } }
  }

  /// The maximum size of the memory tier in bytes.
  ///
  /// A larger response is stored on disk only. Lowering the value evicts at once. A value above 0 that no response fits
  /// is logged. Negative values trap.
  public var memoryCapacity: Int {
    get { tiers.memory.capacityByteCount }
    set {
      Self.check(memoryCapacity: newValue, diskCapacity: 0)
      ArgumentChecks.issue(withMemoryCapacity: newValue).map { tiers.options.log($0) }
      tiers.memory.capacityByteCount = newValue
    }
  }

  /// The maximum size of the directory on disk in bytes, for all processes that use it.
  ///
  /// This is the capacity in effect: the last one that any cache of the directory was opened with or set. Lowering the
  /// value evicts before the assignment returns. A value below ``minimumDiskCapacity`` empties the disk tier, and is
  /// logged unless it is 0. If a value cannot be applied, the cache logs why and keeps the previous one. Negative
  /// values trap.
  ///
  /// The data file takes at least 0.8 MB and 1/128 of the size that it once had. With a lower capacity, the next
  /// process that opens the directory alone starts with an empty disk tier.
  public var diskCapacity: Int {
    get { tiers.connection.directoryCapacity }
    set {
      Self.check(memoryCapacity: 0, diskCapacity: newValue)
      ArgumentChecks.issue(withDiskCapacity: newValue).map { tiers.options.log($0) }
      tiers.setDiskCapacity(newValue)
    }
  }

  /// The size of the memory tier in bytes: bodies, header fields, keys, and an estimate for object overhead.
  public var memoryByteCount: Int { tiers.memory.byteCount }

  /// The size of the directory's files on disk in bytes: their allocated blocks, not their lengths.
  ///
  /// - Complexity: A few system calls.
  public var diskByteCount: Int { tiers.connection.diskByteCount }

  /// Makes everything stored so far durable. Blocks.
  ///
  /// Does not wait for background revalidation; see ``/CachingClient/CachingClient/finishBackgroundWork()``. Without a
  /// disk tier it does nothing.
  ///
  /// - Returns: False if a response that the disk tier accepted since this cache's last flush was lost or could not be
  ///   made durable. This includes responses that were lost before the disk recovered or an empty store replaced a
  ///   corrupt one. The log has the reason.
  @discardableResult
  public func flush() -> Bool {
    do {
      try tiers.connection.flush()
      return true
    } catch {
      tiers.options.log("LMDBURLCache: \(error)")
      return false
    }
  }

  // MARK: Events

  /// The number of events that a stream of ``events`` holds for a slow reader.
  public static let eventBufferCount = 1024

  /// A new stream of what happens in this cache from now on.
  ///
  ///     for await event in cache.events {
  ///       if case .storeFailed(let reason) = event { alert(reason) }
  ///     }
  ///
  /// Includes requests, stores, refusals, evictions, purges and failures of this process. The command
  /// `urlcache log` shows the requests of other processes. The stream holds up to ``eventBufferCount`` events
  /// for its reader. Then the oldest are dropped and counted in ``droppedEventCount``. The stream ends when its reader
  /// is cancelled or releases it, and when the cache is released.
  ///
  /// - Complexity: Without a stream, one load per request. With one, a request costs a few allocations more.
  public var events: AsyncStream<CacheEvent> {
    let (stream, continuation) = AsyncStream.makeStream(
      of: CacheEvent.self, bufferingPolicy: .bufferingNewest(Self.eventBufferCount))
    eventStreams.begin(continuation, observing: tiers.activity.observers)
    return stream
  }

  /// The number of events that were dropped because the readers of ``events`` were too slow.
  public var droppedEventCount: Int { eventStreams.droppedCount }
}

extension CachingClient where Storage == ResponseCache {
  /// Creates a caching client of a cache, with the cache's options.
  ///
  /// Clients of one cache share the fetches in flight and the counts.
  public convenience init(_ cache: ResponseCache) {
    let tiers = cache.tiers
    self.init(
      storage: cache, options: tiers.options.caching, lease: tiers.lease, layer: tiers.membership?.sharedResponses,
      bodyLimit: { [tiers] in tiers.maximumSessionBodyByteCount }, clock: tiers.options.clock,
      whenTooLarge: { [tiers] in tiers.reportSizeRefusal($0) })
  }
}

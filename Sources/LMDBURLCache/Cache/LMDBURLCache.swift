public import CachingClient
public import CachingStorage
import Foundation
import FoundationNetworking
import HTTPCaching
import ResponseStore
import Synchronization

/// A `URLCache` that stores HTTP responses in memory and in an LMDB database shared by threads and processes.
///
///     let cache = try LMDBURLCache(directory: url, memoryCapacity: 32 << 20, diskCapacity: 512 << 20)
///     let session = URLSession(configuration: .default.caching(with: cache))
///
/// Sessions from ``FoundationNetworking/URLSessionConfiguration/caching(with:)`` and ``data(for:)`` use it according to
/// RFC 9111. All members can be called from any thread. A lookup never waits for a writer. A response that cannot be
/// read is a miss; one that cannot be written is dropped and counted in ``statistics``.
///
/// A subclass that overrides `cachedResponse(for:)` or `storeCachedResponse(_:for:)` for a `URLRequest` receives every
/// lookup and every write of a session or of ``data(for:)``.
///
/// `@unchecked Sendable` like its superclass: its own properties are constant and `Sendable`.
open class LMDBURLCache: URLCache, @unchecked Sendable {
  /// The cache without Foundation's types, of which this object is the interface.
  package let storage: ResponseCache
  let options: Options
  /// The codings that the transport of the options removes from content.
  let contentDecoding: ContentDecoding
  private let clientReference = AtomicOnceReference<CachingClient<ResponseCache>>()
  private let contextReference = AtomicOnceReference<SessionContext>()
  private let hasReportedSession = Atomic(false)
  /// The transports of loads that use this cache.
  let sessionTransports = SessionTransports()

  package var core: TieredStorage { storage.tiers }

  // MARK: Creating a cache

  /// Opens a cache in a directory and creates the directory if needed.
  ///
  /// - Parameters:
  ///   - directory: A directory on a local file system that only caches use. All caches of one directory, in any
  ///     process, share the stored responses.
  ///   - memoryCapacity: The maximum size of the memory tier in bytes; 0 for none. Negative values trap.
  ///   - diskCapacity: The maximum size of the directory on disk in bytes, exceeded by at most 10%; at least
  ///     ``minimumDiskCapacity``, or 0 for no disk tier. Removals by other processes from a store in the directory then
  ///     still apply to the memory tier. Negative values trap.
  ///   - options: Options that are fixed for the life of the cache.
  /// - Throws: `StoreError` of the module `ResponseStore` with the cause and a remedy: the directory cannot be used,
  ///   contains a file that is not this library's, is in use by another version of this library, or is not a file URL;
  ///   the disk capacity is too small; a client certificate cannot be read. An error of the fleet tier, if its files in
  ///   the directory cannot be used.
  public init(directory: URL, memoryCapacity: Int, diskCapacity: Int, options: Options = Options()) throws {
    ProgramCredentials.beginRecording()
    let path = try ArgumentChecks.path(of: directory)
    self.options = try options.separatingClients(directory: path)
    contentDecoding = options.contentDecoding
    let interceptor = FoundationInterceptor()
    storage = try ResponseCache(
      directory: path, memoryCapacity: memoryCapacity, diskCapacity: diskCapacity, options: self.options.ofStorage,
      interceptor: interceptor)
    super.init(memoryCapacity: 0, diskCapacity: 0, diskPath: Self.superclassPath(path, storage))
    interceptor.attach(to: self)
  }

  /// Opens a cache; this is `URLCache`'s initializer, which cannot fail.
  ///
  /// If the path cannot be used, the cache uses memory only and logs a line to standard error. If other processes
  /// prevent it from opening the directory, the cache logs that and stores nothing until the directory can be opened,
  /// because it would not notice their removals. Lookups and writes start further attempts.
  ///
  /// - Parameters:
  ///   - memoryCapacity: The maximum size of the memory tier in bytes; 0 for none. Negative values trap.
  ///   - diskCapacity: The maximum size of the directory on disk in bytes; 0 for no disk tier. Negative values trap.
  ///   - path: A name for a directory in the user's caches directory, or an absolute path. Nil for
  ///     ``defaultCachePath``.
  public override init(memoryCapacity: Int, diskCapacity: Int, diskPath path: String?) {
    ProgramCredentials.beginRecording()
    options = Options()
    contentDecoding = options.contentDecoding
    let path = Self.resolve(path)
    let interceptor = FoundationInterceptor()
    storage = ResponseCache(
      directoryIfUsable: path, memoryCapacity: memoryCapacity, diskCapacity: diskCapacity, options: options.ofStorage,
      interceptor: interceptor)
    super.init(memoryCapacity: 0, diskCapacity: 0, diskPath: Self.superclassPath(path, storage))
    interceptor.attach(to: self)
  }

  /// Returns a path for the superclass, which creates the directory that it gets: another one than the cache's if the
  /// cache does not use that.
  private static func superclassPath(_ path: String, _ storage: ResponseCache) -> String {
    storage.tiers.connection.openStore.load() == nil ? NSTemporaryDirectory() : path
  }

  /// Opens a cache like `init(memoryCapacity:diskCapacity:diskPath:)`, in a directory or in ``defaultCachePath``.
  ///
  /// Newer Apple systems have this initializer. With a URL that is not that of a file, the cache uses memory only and
  /// logs a line.
  public convenience init(memoryCapacity: Int, diskCapacity: Int, directory: URL? = nil) {
    var (path, diskCapacity): (String?, Int) = (nil, diskCapacity)
    do {
      path = try directory.map { try ArgumentChecks.path(of: $0) }
    } catch {
      Options().log("LMDBURLCache: Disk caching is off. \(error)")
      diskCapacity = 0
    }
    self.init(memoryCapacity: memoryCapacity, diskCapacity: diskCapacity, diskPath: path)
  }

  /// The minimum disk capacity of a disk tier: 1 MiB.
  public static var minimumDiskCapacity: Int { ResponseStore.minimumCapacityByteCount }

  /// The directory of a cache without a path: `LMDBURLCache` in the user's caches directory.
  public static var defaultCachePath: String { resolve("LMDBURLCache") }

  private static func resolve(_ path: String?) -> String {
    guard let path, !path.isEmpty else { return defaultCachePath }
    guard !path.hasPrefix("/") else { return path }
    let caches =
      FileManager.default.urls(for: .cachesDirectory, in: .userDomainMask).first
      ?? FileManager.default.temporaryDirectory
    return caches.appendingPathComponent(path).path
  }

  /// The caching client of sessions and ``data(for:)``, for requests without Foundation's types.
  ///
  /// It shares the fetches in flight and the counts with other clients of this cache. An adapter for another HTTP
  /// client uses it:
  ///
  ///     let response = try await cache.client.respond(to: CachingClientRequest(head: head), over: transport)
  public var client: CachingClient<ResponseCache> { clientReference.load { CachingClient(storage) } }

  /// Whether methods may be overridden.
  var isSubclass: Bool { type(of: self) != LMDBURLCache.self }

  /// The context of loads without a session: it only provides the configuration and the transports of the options.
  var ownContext: SessionContext {
    contextReference.load {
      SessionContext(configuration: options.loadConfiguration, curl: options.curlConfiguration)
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
  public var minCacheInterval: TimeInterval {
    get { core.settings.withLock { $0.minCacheInterval } }
    set { core.settings.withLock { $0.minCacheInterval = newValue } }
  }

  /// Whether responses with the storage policy `.allowedInMemoryOnly` may also be stored on disk; false by default.
  public var ignoreMemoryOnlyStoragePolicy: Bool {
    get { core.settings.withLock { $0.ignoresMemoryOnlyPolicy } }
    set { core.settings.withLock { $0.ignoresMemoryOnlyPolicy = newValue } }
  }

  /// The maximum size of the memory tier in bytes.
  ///
  /// A larger response is stored on disk only. Lowering the value evicts at once. A value above 0 that no response fits
  /// is logged. Negative values trap.
  open override var memoryCapacity: Int {
    get { storage.memoryCapacity }
    set { storage.memoryCapacity = newValue }
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
  open override var diskCapacity: Int {
    get { storage.diskCapacity }
    set { storage.diskCapacity = newValue }
  }

  /// The size of the memory tier in bytes: bodies, header fields, keys, and an estimate for object overhead.
  open override var currentMemoryUsage: Int { storage.memoryByteCount }

  /// The size of the directory's files on disk in bytes: their allocated blocks, not their lengths.
  ///
  /// - Complexity: A few system calls.
  open override var currentDiskUsage: Int { storage.diskByteCount }

  // MARK: Lookups and stores

  /// Returns the newest stored response that matches the request, whether fresh or stale.
  ///
  /// - Returns: The response; nil on a miss, if the stored response cannot be read, or if it is a part of a response
  ///   and the request has no `Range`.
  /// - Complexity: A lookup in memory, or a lookup on disk and a copy of the body. The response object is created on
  ///   first access.
  open override func cachedResponse(for request: URLRequest) -> CachedURLResponse? {
    lookup(request)
  }

  /// Stores a response and replaces the stored one with the same Vary key.
  ///
  /// The storage policy selects the tiers: `.allowed` both, `.allowedInMemoryOnly` memory (see
  /// ``ignoreMemoryOnlyStoragePolicy``), `.notAllowed` none. `no-store`, or a lifetime below ``minCacheInterval``
  /// without a validator, keeps it off the disk. A response with more than 1,000 header fields or 256 KiB of them is
  /// not stored, and the previously stored one is removed.
  ///
  /// The response is readable at once and committed about 10 ms later. If the write queue (32 MiB) is full, the call
  /// waits for up to a second.
  open override func storeCachedResponse(_ cachedResponse: CachedURLResponse, for request: URLRequest) {
    guard cachedResponse.storagePolicy != .notAllowed else { return }
    let isMemoryOnly = cachedResponse.storagePolicy == .allowedInMemoryOnly
    let key = keyForStoring(
      request,
      isMemoryOnly: isMemoryOnly && !ignoreMemoryOnlyStoragePolicy || forbidsStoring(cachedResponse, for: request))
    guard let key else { return }
    let operation = isSubclass ? SubclassDetour.takeOperation(for: cachedResponse, in: self) : nil
    guard let own = (cachedResponse as? LMDBCachedURLResponse)?.entry, own.key == key, own.storedBody == nil else {
      let (response, allowsDiskStorage, refusal) = makeEntry(from: cachedResponse, for: request, key)
      if let refusal {
        core.refuse(refusal, of: key)
        return core.discard(response)
      }
      let reachesDisk = allowsDiskStorage && (!isMemoryOnly || ignoreMemoryOnlyStoragePolicy)
      insert(response, reachesDisk: reachesDisk, operation)
      // The older response would still answer equivalent URLs. The caching client removes it itself.
      if operation == nil, let older = keyOfStoredEquivalent(of: request) { core.remove([older]) }
      return
    }
    if case .update(let old, let token) = operation {
      return core.update(old, fields: own.fields, freshness: own.freshness, askedAt: token)
    }
    // A copy, because the response may be in the memory tier, with another position in the order of removals.
    insert(
      own.copy(), reachesDisk: core.allowsDiskStorage(own, isMemoryOnly: isMemoryOnly) { request.head },
      operation)
  }

  /// Inserts a response that a caller stores, or that an override stores for the caching client.
  private func insert(
    _ response: CacheEntry, reachesDisk: Bool, _ operation: SubclassDetour.Operation?
  ) {
    let outcome =
      switch operation {
      case .insert(let token, let isRevoked):
        // An override may store later than it was asked to. The caching client calls from Swift tasks, whose threads
        // must not block.
        isRevoked()
          ? StorageOutcome.notStored(.invalidatedInFlight)
          : core.insert(response, reachesDisk: reachesDisk, askedAt: token, waitsForSpace: false, unless: isRevoked)
      case .update: core.insert(response, reachesDisk: reachesDisk, waitsForSpace: false)
      case nil: core.insert(response, reachesDisk: reachesDisk)
      }
    if case .notStored(let rule) = outcome, rule.isOfStorage { core.refuse(rule, of: response.key) }
  }

  /// Looks up the stored response for a task's request as its session sends it.
  ///
  /// Calls the handler before it returns. For a task of a session that caches, a body of more than 1 MiB is read only
  /// when its data is asked for; the data is empty if the response has been removed or replaced by then.
  open override func getCachedResponse(
    for dataTask: URLSessionDataTask, completionHandler: @escaping (CachedURLResponse?) -> Void
  ) {
    let context = SessionContext.known(of: dataTask)
    if let context, !context.asksCachingProtocol { reportSessionWithoutCaching() }
    let readsFromStore = context?.asksCachingProtocol == true && !isSubclass
    completionHandler(
      SessionContext.request(of: dataTask, in: context).flatMap {
        readsFromStore
          ? lookup($0, leavingBodiesBeyond: TieredStorage.maximumCopiedBodyByteCount) : cachedResponse(for: $0)
      })
  }

  /// Logs, once, that a session asks this cache without storing what it fetches.
  private func reportSessionWithoutCaching() {
    guard !hasReportedSession.exchange(true, ordering: .relaxed) else { return }
    options.log(
      "LMDBURLCache: A URLSession has this cache as its urlCache, but does not store what it fetches, because its "
        + "configuration does not come from caching(with:). Write "
        + "URLSession(configuration: configuration.caching(with: cache))")
  }

  /// Stores a response for a task's request as its session sends it.
  open override func storeCachedResponse(_ cachedResponse: CachedURLResponse, for dataTask: URLSessionDataTask) {
    guard let request = SessionContext.request(of: dataTask) else { return }
    storeCachedResponse(cachedResponse, for: request)
  }

  // MARK: Removals

  /// Removes all variants stored for a request: those of its URL for all users, also by equivalent URLs, and its
  /// queries. For a query, removes the response to this query for the request's credentials.
  ///
  /// When it returns, no thread or process can read them. Like all removals, it waits for the disk.
  open override func removeCachedResponse(for request: URLRequest) {
    guard let removed = removedResponses(for: request) else { return }
    switch removed {
    case .resource(let key):
      core.onAllMachines([Removal(.resource(key))]) {
        storage.clientState.revokeStorePermits { $0 == key }
        var token = core.connection.removalToken
        core.remove(resources: [key], movingPast: &token, of: nil)
      }
    case .query(let keys, let urlKey):
      core.onAllMachines(keys.map { Removal(.key($0.bytes)) }) {
        storage.clientState.revokeStorePermits { $0 == urlKey }
        core.remove(keys)
      }
    }
  }

  /// Removes all variants stored for a task's request.
  open override func removeCachedResponse(for dataTask: URLSessionDataTask) {
    guard let request = SessionContext.request(of: dataTask) else { return }
    removeCachedResponse(for: request)
  }

  /// Removes all responses from both tiers, for all processes.
  open override func removeAllCachedResponses() {
    remove(.everything)
  }

  /// Removes the responses that were stored, or updated by a validation, after a date. Those of exactly that time
  /// remain.
  open override func removeCachedResponses(since date: Date) {
    remove(.since(date))
  }
}

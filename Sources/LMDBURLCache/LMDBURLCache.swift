import CachingClient
import Foundation
import HTTPCaching
import ResponseStore

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// A `URLCache` that keeps its word: responses on LMDB with a memory tier in front, and a `URLSession` that really caches.
///
///     let cache = try LMDBURLCache(directory: url, memoryCapacity: 32 << 20, diskCapacity: 512 << 20)
///     let session = URLSession(configuration: .default.caching(with: cache))
///
/// Everything may be called from any thread, and any number of threads and processes may use one directory. A lookup never
/// waits for a writer. What cannot be read is a miss; what cannot be written is dropped and counted in ``statistics``.
///
/// A subclass that overrides `cachedResponse(for:)` or `storeCachedResponse(_:for:)`, each in its form for a `URLRequest`, sees
/// every lookup and every store that a session or ``data(for:)`` makes.
///
/// `@unchecked Sendable`, as its superclass is: its own properties never change; what does is behind them.
open class LMDBURLCache: URLCache, @unchecked Sendable {
  let core: CacheCore
  private let engineBox: EngineBox
  /// What ``data(for:)`` goes by: the configuration of the options.
  var ownContext: SessionContext { engineBox.context(of: self) }

  // MARK: Making one

  /// Opens the cache in a directory, which is made if it is missing.
  ///
  /// - Parameters:
  ///   - directory: A folder for this cache alone, on a local file system. Caches of one directory, in this process or in
  ///     others, share what is stored.
  ///   - memoryCapacity: Bytes for the memory tier; 0 for none. Negative values trap.
  ///   - diskCapacity: Bytes that the directory may take on disk; it is exceeded by at most 10 %. 0 for no disk tier, as for
  ///     anything below ``smallestDiskCapacity``; what others remove from a store in the directory is still not answered
  ///     from memory. Negative values trap.
  ///   - options: Choices that hold for the life of the cache.
  /// - Throws: `StoreError` of the module `ResponseStore`, which says what failed, why, and what to do: the directory cannot
  ///   be used, holds a file that is not ours, or is in use by another version of this library.
  public init(directory: URL, memoryCapacity: Int, diskCapacity: Int, options: Options = Options()) throws {
    Self.check(memoryCapacity: memoryCapacity, diskCapacity: diskCapacity)
    let path = directory.path
    var store: ResponseStore?
    var failure: StoreError?
    if diskCapacity >= ResponseStore.smallestCapacityByteCount {
      store = try ResponseStore.open(directory: path, options: options.storeOptions(diskCapacity: diskCapacity))
    } else {
      (store, failure) = Self.openForRemovals(directory: path, options: options)
    }
    core = CacheCore(
      directory: path, store: store, failure: failure, memoryCapacity: memoryCapacity, diskCapacity: diskCapacity,
      options: options)
    engineBox = EngineBox()
    // The superclass makes the folder it is given, which without a disk tier nobody asked for.
    super.init(memoryCapacity: 0, diskCapacity: 0, diskPath: store == nil ? NSTemporaryDirectory() : path)
  }

  /// `URLCache`'s own initializer. It cannot fail: where the path cannot be used, the cache works in memory alone and says
  /// so in a line on standard error. Where other processes keep the directory from being opened, it says so too, and keeps
  /// nothing until the directory can be opened, which lookups and stores set off: it could not tell what others remove.
  ///
  /// - Parameters:
  ///   - memoryCapacity: Bytes for the memory tier; 0 for none. Negative values trap.
  ///   - diskCapacity: Bytes that the directory may take on disk; 0 for no disk tier. Negative values trap.
  ///   - path: A bare name is a folder in the user's caches directory, an absolute path is taken as it is, and nil is
  ///     ``defaultCachePath``.
  public override init(memoryCapacity: Int, diskCapacity: Int, diskPath path: String?) {
    Self.check(memoryCapacity: memoryCapacity, diskCapacity: diskCapacity)
    let options = Options()
    let path = Self.resolve(path)
    var store: ResponseStore?
    var failure: StoreError?
    if diskCapacity >= ResponseStore.smallestCapacityByteCount {
      do {
        store = try ResponseStore.open(directory: path, options: options.storeOptions(diskCapacity: diskCapacity))
      } catch {
        failure = error
      }
    } else if diskCapacity > 0 {
      options.log(
        "LMDBURLCache: The cache works in memory alone: the least disk capacity is \(Self.smallestDiskCapacity)")
    }
    if diskCapacity < ResponseStore.smallestCapacityByteCount {
      (store, failure) = Self.openForRemovals(directory: path, options: options)
    }
    core = CacheCore(
      directory: path, store: store, failure: failure, memoryCapacity: memoryCapacity, diskCapacity: diskCapacity,
      options: options)
    engineBox = EngineBox()
    // The superclass makes the folder it is given; a path that we could not use must not be used by it either.
    super.init(
      memoryCapacity: 0, diskCapacity: 0, diskPath: store == nil ? NSTemporaryDirectory() : path)
  }

  /// The initializer of Apple's newer systems: a folder, or nil for ``defaultCachePath``. Otherwise like
  /// `init(memoryCapacity:diskCapacity:diskPath:)`.
  public convenience init(memoryCapacity: Int, diskCapacity: Int, directory: URL? = nil) {
    self.init(memoryCapacity: memoryCapacity, diskCapacity: diskCapacity, diskPath: directory?.path)
  }

  /// The smallest disk capacity with which there is a disk tier: 1 MiB.
  public static var smallestDiskCapacity: Int { ResponseStore.smallestCapacityByteCount }

  /// Where a cache without a path keeps its data: `LMDBURLCache` in the user's caches directory.
  public static var defaultCachePath: String { resolve("LMDBURLCache") }

  /// The store that there is in the directory of a cache without a disk tier, or why it cannot be opened.
  private static func openForRemovals(
    directory: String, options: Options
  ) -> (store: ResponseStore?, failure: StoreError?) {
    do throws(StoreError) {
      return (try CacheCore.storeForRemovals(directory: directory, options: options), nil)
    } catch {
      return (nil, error.code == .missing ? nil : error)
    }
  }

  private static func resolve(_ path: String?) -> String {
    guard let path, !path.isEmpty else { return defaultCachePath }
    guard !path.hasPrefix("/") else { return path }
    let caches =
      FileManager.default.urls(for: .cachesDirectory, in: .userDomainMask).first
      ?? FileManager.default.temporaryDirectory
    return caches.appendingPathComponent(path).path
  }

  private static func check(memoryCapacity: Int, diskCapacity: Int) {
    precondition(memoryCapacity >= 0, "A cache's memory capacity cannot be negative (\(memoryCapacity))")
    precondition(diskCapacity >= 0, "A cache's disk capacity cannot be negative (\(diskCapacity))")
  }

  /// The engine that sessions and ``data(for:)`` go through. It asks this object, so it is made on first use.
  var engine: CachingClient<CacheStorage> {
    engineBox.engine {
      CachingClient(
        storage: CacheStorage(cache: self), options: core.options.caching,
        bodyLimit: { [core] in core.largestSessionBodyByteCount }, clock: core.options.clock)
    }
  }

  /// The engine, if anything went through it yet.
  var engineInUse: CachingClient<CacheStorage>? { engineBox.engineInUse }

  // MARK: Settings

  /// Seconds: a response that stays fresh for less is kept in memory only, unless it has a validator (`ETag` or
  /// `Last-Modified`) or says nothing of its lifetime. The default is 300, as SDURLCache's; 0 lets everything go to disk that
  /// may be stored. A new value holds for what is stored from then on.
  public var minCacheInterval: TimeInterval {
    get { core.settings.withLock { $0.minCacheInterval } }
    set { core.settings.withLock { $0.minCacheInterval = newValue } }
  }

  /// Whether responses with the storage policy `.allowedInMemoryOnly` go to disk all the same. False by default.
  public var ignoreMemoryOnlyStoragePolicy: Bool {
    get { core.settings.withLock { $0.ignoresMemoryOnlyPolicy } }
    set { core.settings.withLock { $0.ignoresMemoryOnlyPolicy = newValue } }
  }

  /// The bytes that the memory tier may take; a response larger than that is kept on disk only. A smaller value cuts it at
  /// once. Negative values trap.
  open override var memoryCapacity: Int {
    get { core.memory.capacityByteCount }
    set {
      Self.check(memoryCapacity: newValue, diskCapacity: 0)
      core.memory.capacityByteCount = newValue
    }
  }

  /// The bytes that the directory may take on disk, for all processes that use it. A smaller value evicts before the
  /// assignment returns; one below ``smallestDiskCapacity`` empties the disk tier. One that cannot be applied is logged and
  /// leaves the former one in force. Negative values trap.
  open override var diskCapacity: Int {
    get { core.diskCapacity }
    set {
      Self.check(memoryCapacity: 0, diskCapacity: newValue)
      core.setDiskCapacity(newValue)
    }
  }

  /// The bytes that the memory tier takes: bodies, header fields, keys, and an estimate for the objects around them.
  open override var currentMemoryUsage: Int { core.memory.byteCount }

  /// The bytes that the directory's files take on disk: their allocated blocks, not their lengths. Costs a few system calls.
  open override var currentDiskUsage: Int { core.diskByteCount }

  // MARK: Lookups and stores

  /// The stored response for a request, fresh or not: of the variants that match the request's fields the newest.
  ///
  /// - Returns: The response, or nil. What cannot be read is nil.
  /// - Complexity: A search in memory, or on disk and a copy of the body; the response object is built when it is asked for.
  open override func cachedResponse(for request: URLRequest) -> CachedURLResponse? {
    var parts = SelectingParts()
    guard let url = request.url, let key = key(for: request, url: url, parts: &parts) else { return nil }
    let cache = Lent(self)
    return core.find(key, url: url) { vary in cache.use { $0.matches(vary, request, parts: parts) } }
  }

  /// Stores a response for a request, in place of the one stored for the same variant.
  ///
  /// The storage policy decides the tiers: `.allowed` both, `.allowedInMemoryOnly` memory (see
  /// ``ignoreMemoryOnlyStoragePolicy``), `.notAllowed` none. `no-store`, and a lifetime shorter than ``minCacheInterval``
  /// without a validator, keep a response off the disk. More than 1,000 header fields, or 256 KiB of them, are not stored,
  /// and what was stored before is gone. The response can be looked up at once; it is on disk some ten
  /// milliseconds later. Returns at once, unless the disk is behind by 32 MiB: then it waits for up to a second.
  open override func storeCachedResponse(_ cachedResponse: CachedURLResponse, for request: URLRequest) {
    guard cachedResponse.storagePolicy != .notAllowed, let key = key(for: request) else { return }
    let isMemoryOnly = cachedResponse.storagePolicy == .allowedInMemoryOnly && !ignoreMemoryOnlyStoragePolicy
    guard let ours = cachedResponse as? StoredURLResponse, ours.record.key == key else {
      let (response, mayReachDisk, isStorable) = adopt(cachedResponse, for: request, key)
      guard isStorable else { return core.discard(response.record) }
      return keep(response, reachesDisk: mayReachDisk && !isMemoryOnly)
    }
    switch ours.order {
    case .update(let old): core.update(old, fields: ours.record.fields, facts: ours.record.facts)
    case .store(let token, let isVoid):
      core.keep(
        ours, reachesDisk: !isMemoryOnly && mayReachDisk(ours.record, request), askedAt: token, waitsForRoom: false,
        unless: isVoid)
    case nil: keep(ours, reachesDisk: !isMemoryOnly && mayReachDisk(ours.record, request))
    }
  }

  /// Keeps a response that a caller stores, or an override in the place of the engine's.
  private func keep(_ response: StoredURLResponse, reachesDisk: Bool) {
    let engineStore = type(of: self) == LMDBURLCache.self ? nil : EngineStore.current
    core.keep(
      response, reachesDisk: reachesDisk, askedAt: engineStore?.token, waitsForRoom: engineStore == nil)
  }

  /// The stored response for a task's request, as its session sends it; the handler is called before this returns.
  open override func getCachedResponse(
    for dataTask: URLSessionDataTask, completionHandler: @escaping (CachedURLResponse?) -> Void
  ) {
    completionHandler(SessionContext.request(of: dataTask).flatMap { cachedResponse(for: $0) })
  }

  /// Stores a response for a task's request, as its session sends it.
  open override func storeCachedResponse(_ cachedResponse: CachedURLResponse, for dataTask: URLSessionDataTask) {
    guard let request = SessionContext.request(of: dataTask) else { return }
    storeCachedResponse(cachedResponse, for: request)
  }

  // MARK: Removals

  /// Removes all variants stored for a request. When it returns, no thread or process reads them again; it waits for the
  /// disk, as all removals do.
  open override func removeCachedResponse(for request: URLRequest) {
    guard let key = key(for: request) else { return }
    voidFetches(.target(ofKey: key))
    core.remove(key)
  }

  /// Removes all variants stored for a task's request.
  open override func removeCachedResponse(for dataTask: URLSessionDataTask) {
    guard let request = SessionContext.request(of: dataTask) else { return }
    removeCachedResponse(for: request)
  }

  /// Removes everything, from both tiers, for all processes.
  open override func removeAllCachedResponses() {
    remove(.everything)
  }

  /// Removes what was stored after a moment; what was stored at it stays.
  open override func removeCachedResponses(since date: Date) {
    remove(.since(date))
  }
}

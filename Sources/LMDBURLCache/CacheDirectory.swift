public import Foundation
import HTTPCaching
import LMDB
import ResponseStore

/// A look at what a cache's directory holds, without a cache: for the tools of those who operate one.
///
///     let directory = try CacheDirectory(existingAt: url)
///     directory.forEachEntry { entry in print(entry.url, entry.bodyByteCount); return true }
///     let removed = directory.remove(.since(date))
///
/// It opens only what is there, with the capacity it has: it makes no directory and no store, and sets nothing aside. Other
/// processes may use the directory meanwhile, and no call waits for one that writes to the data, or was stopped while it did. In this process, no cache can be opened on it until this object is gone; one that
/// is open already is not disturbed.
///
/// All members may be called from any thread.
public final class CacheDirectory: Sendable {
  /// The directory's path.
  public let path: String
  private let store: ResponseStore

  /// One stored response, without its body.
  public struct Entry: Sendable {
    /// The URL that the response answers, with its query.
    public let url: String
    /// The request's method.
    public let method: String
    /// The HTTP status code; 0 for a response that is not HTTP.
    public let status: Int
    /// When it was stored.
    public let storedAt: Date
    /// The body's size in bytes.
    public let bodyByteCount: Int
    /// The request fields by which its variant was chosen, in lower case. `authorization` is among them for a response to a
    /// request with credentials.
    public let varyNames: [String]
    /// The partition, by which a cache keeps users apart; empty by default.
    public let partition: String
    private let facts: FreshnessFacts
    private let rowID: UInt64
    private let keyBytes: [UInt8]

    fileprivate init(_ entry: StoredEntry) {
      url = entry.key.urlString
      method = entry.key.method
      status = entry.status
      storedAt = entry.storedAt
      bodyByteCount = entry.bodyByteCount
      varyNames = entry.varyNames
      partition = entry.key.partition
      facts = entry.facts
      rowID = entry.rowID
      keyBytes = entry.key.bytes
    }

    /// Its age in seconds at a moment (RFC 9111, section 4.2.3).
    public func age(at now: Date) -> TimeInterval { facts.currentAge(at: now) }

    /// The seconds for which it stays fresh; negative if it is stale.
    public func timeLeft(at now: Date) -> TimeInterval { facts.remaining(at: now) }

    /// Whether it can be served without asking the origin.
    public func isFresh(at now: Date) -> Bool { facts.isFresh(at: now) && !facts.flags.contains(.noCache) }

    /// Whether it comes before another one in the order of hosts, then schemes and ports, then paths: the order on disk.
    public func precedes(_ other: Entry) -> Bool {
      keyBytes == other.keyBytes ? rowID < other.rowID : keyBytes.lexicographicallyPrecedes(other.keyBytes)
    }
  }

  /// What to remove.
  public enum Selection: Sendable, Hashable {
    /// Everything.
    case all
    /// What was stored after a moment; what was stored at it stays.
    case since(Date)
    /// What is stored for a host, whatever scheme and port. Not for its subdomains.
    case host(String)
    /// URLs that begin with this one: same scheme, host and port, and a path and query that begin with these characters.
    case prefix(URL)
    /// The members of a cache group (RFC 9875) of a URL's origin.
    case group(String, origin: URL)
  }

  /// Opens the store in a directory.
  ///
  /// - Throws: `StoreError` of the module `ResponseStore`: the directory or the store in it is missing, damaged, of another version, or not
  ///   ours; or it may not be read and written.
  public init(existingAt directory: URL) throws {
    path = directory.path
    store = try ResponseStore.open(directory: path, options: .existing)
  }

  deinit {
    store.close()
  }

  /// The bytes that the directory may take on disk.
  public var capacityByteCount: Int { store.capacityByteCount }

  /// The bytes that the directory's files take on disk now: their allocated blocks.
  public var diskByteCount: Int { store.diskByteCount }

  /// The bytes of the stored heads and bodies, without the store's own.
  public var payloadByteCount: Int { store.statistics.payloadByteCount }

  /// How many responses are stored, those that a purge hides and has still to delete included. Constant time.
  public var entryCount: Int { store.entryCount }

  /// When the oldest and the newest response were stored; nil when there is none. O(log entries).
  public var storedTimes: ClosedRange<Date>? { store.storedTimes }

  /// The bytes on disk beyond the capacity and its 10 %, as after the capacity was lowered; the cache works them off.
  public var excessByteCount: Int { store.excessByteCount }

  /// How many purges hide responses that the cache has still to delete from the disk.
  public var pendingPurgeCount: Int { store.pendingRemovalCount }

  /// Calls `body` with each stored response until it returns false.
  ///
  /// Holds a bounded number of entries, and nothing between two calls: `body` may take its time.
  ///
  /// - Parameters:
  ///   - order: By the time of storing, oldest first, by default.
  ///   - body: Is called with each response, and returns whether to go on.
  /// - Throws: What `body` throws.
  /// - Complexity: O(entries).
  public func forEachEntry<E: Error>(
    in order: EntryOrder = .time, _ body: (Entry) throws(E) -> Bool
  ) throws(E) {
    try store.forEachEntry(in: order) { (entry) throws(E) in try body(Entry(entry)) }
  }

  /// Checks the whole store: all checksums, every table against the others, sizes and counts.
  ///
  /// - Parameter progress: Gets the responses checked so far, and how many there are, now and then.
  /// - Complexity: O(bytes stored). Memory does not grow with them.
  public func verify(progress: (_ done: Int, _ total: Int) -> Void = { _, _ in }) -> StoreVerification {
    store.verify(progress: progress)
  }

  /// The violations that ``verify(progress:)`` finds: a sentence for each thing that is wrong.
  public func checkInvariants() -> [String] { store.checkInvariants() }

  /// Removes a selection. When it returns, no thread and no process reads what was selected, also not after a crash.
  ///
  /// The room on the disk is free for new responses as well, unless another process keeps the right to write for longer than a
  /// second; then whoever writes next frees it.
  ///
  /// - Returns: How many entries went, the bytes of their bodies, and how many entries stay, as counted right before. Nil for a URL
  ///   that cannot be cached, of which nothing can be stored.
  /// - Throws: `StoreError` of the module `ResponseStore`: the removal could not be written down. Nothing was removed then.
  /// - Complexity: O(entries), for the counting.
  @discardableResult
  public func remove(_ selection: Selection) throws -> (entryCount: Int, byteCount: Int, keptCount: Int)? {
    guard let scope = selection.scope else { return nil }
    var count = (entryCount: 0, byteCount: 0, keptCount: 0)
    store.forEachEntry(coveredBy: scope) { entry, isCovered in
      if isCovered {
        count.entryCount += 1
        count.byteCount += entry.bodyByteCount
      } else {
        count.keptCount += 1
      }
      return true
    }
    try store.removeOrThrow(scope)
    store.applyRemovals()
    return count
  }

  /// Removes a selection from a directory that cannot be opened, as other processes have all reader slots: as ``remove(_:)``,
  /// without counting and without freeing the room on the disk, which the others do.
  ///
  /// - Returns: False for a URL that cannot be cached, of which nothing can be stored.
  /// - Throws: `StoreError` of the module `ResponseStore`: the directory or the store in it is missing, damaged, or not ours;
  ///   nobody else uses it; or the removal could not be written down. Nothing was removed then.
  public static func remove(_ selection: Selection, fromDirectoryInUse directory: URL) throws -> Bool {
    guard let scope = selection.scope else { return false }
    try ResponseStore.remove(scope, fromStoreInUseAt: directory.path)
    return true
  }

  /// Whether an error of ``init(existingAt:)`` says that other processes have all reader slots.
  public static func isOutOfReaderSlots(_ error: any Error) -> Bool {
    (error as? StoreError)?.cause?.code == .readersFull
  }
}

extension CacheDirectory.Selection {
  fileprivate var scope: RemovalScope? {
    switch self {
    case .all: .everything
    case .since(let date): .since(date)
    case .host(let host): .host(host)
    case .prefix(let url): .urlPrefix(url)
    case .group(let name, let origin): .group(name, ofOrigin: origin)
    }
  }
}

import CacheModel
import FoundationEssentials
import HTTPCaching
import LMDB
import Synchronization

/// A bounded store of HTTP responses in one directory, shared by threads and processes.
///
/// - **Bound.** `capacityByteCount` is bytes on disk. The directory exceeds it by at most 10%. The eviction thread
///   works ahead of the writer, and evicts the records of lowest priority.
/// - **Reads** run on the calling thread, never wait for the writer and return copies. A record that cannot be read, or
///   does not match its checksum, is a miss.
/// - **Writes** are readable at once by this process, and committed in groups by one writer thread within
///   ``Options/commitDelay``. `kill -9` loses writes that are not committed; a power failure loses one commit more at
///   most. ``flush()`` makes them durable.
/// - **Removals** return when no thread or process can read a removed response, even after a crash.
/// - **Sharing.** Any number of threads and processes may use one directory on a local file system. Opening it twice in
///   one process returns the same object.
/// - **Failures** at run time are misses and dropped writes, each kind counted and logged once; see
///   ``StoreStatistics``.
///
/// After ``close()``, every use traps. In a forked child, lookups miss and writes are dropped; the child may reopen the
/// directory.
public final class ResponseStore: Sendable {
  // This class creates the components and forwards calls to them. All of them share `StoreContext`. Most are structs of
  // references: a copy of a component shares its state, which is behind a lock.

  /// The minimum capacity: 1 MiB. With less, LMDB's own pages leave no space for records.
  public static let minimumCapacityByteCount = 1 << 20

  let context: StoreContext
  let indexMaintainer: IndexMaintainer
  let space: DiskSpace
  let sweep: RemovalSweep
  let evictor: Evictor
  let capacity: CapacityController
  let writer: Writer
  let flusher: Flusher
  let reader: Reader
  /// ``reader``, without reference counting by lookups.
  private let unretainedReader: Unretained<Reader>
  let intake: WriteIntake
  let maintainer: Maintainer
  let remover: Remover
  let threads: BackgroundThreads
  /// The number of callers of `open` that have not closed this object.
  let openCount = Monitor(1)

  init(_ context: StoreContext) {
    self.context = context
    indexMaintainer = IndexMaintainer(context: context)
    space = DiskSpace(context)
    let puncher = HolePuncher(context: context, space: space)
    sweep = RemovalSweep(context: context, space: space, puncher: puncher)
    evictor = Evictor(context: context, space: space, sweep: sweep)
    capacity = CapacityController(context: context, space: space, evictor: evictor)
    writer = Writer(
      context: context, space: space, evictor: evictor, puncher: puncher, indexMaintainer: indexMaintainer)
    flusher = Flusher(context, writer: writer)
    reader = Reader(context)
    unretainedReader = Unretained(reader)
    intake = WriteIntake(context: context, space: space, reader: reader, writer: writer)
    let maintainer = Maintainer(
      context: context, indexMaintainer: indexMaintainer, space: space, sweep: sweep, evictor: evictor,
      capacity: capacity, puncher: puncher)
    self.maintainer = maintainer
    remover = Remover(context: context, writer: writer, maintainer: maintainer)
    threads = BackgroundThreads(
      context, space: space, writer: writer, maintainer: maintainer, capacity: capacity)
    context.database.bodiesInProgress.notify { [weak context] in context?.wakeMaintenance() }
  }

  deinit {
    threads.close(as: .closed)
  }

  // MARK: Opening and closing

  /// Opens the store in a directory and creates the directory if needed.
  ///
  /// If this process has the directory open, returns the same object. Its options stay, but its capacity is set (unless
  /// ``Options/opensExistingOnly``). A failed store (``hasFailed``) is replaced by a new one. Data that is corrupt is
  /// deleted, and the store starts empty. So is data that no other process uses, if it has another format version, is
  /// far larger than the capacity (see ``capacityByteCount``), or after three crashes in a row: the last process that
  /// used it ended within a transaction, or while it opened the data. A closed store uses its directory until its last
  /// reference is released.
  ///
  /// Traps if the capacity is below ``minimumCapacityByteCount``.
  ///
  /// - Throws: ``StoreError`` if the directory cannot be used, holds a foreign file, or is in use by another version of
  ///   this library.
  /// - Complexity: Constant; it does not depend on the number of entries. If the capacity is lower, the surplus is
  ///   evicted in the background; ``StoreStatistics/excessByteCount`` shows the rest.
  public static func open(directory: String, options: Options) throws(StoreError) -> ResponseStore {
    if options.capacityByteCount < minimumCapacityByteCount { Trap.capacityTooSmall(options.capacityByteCount) }
    try checkFleet(directory: directory, options: options)
    return try StoreRegistry.shared.open(directory: directory, options: options)
  }

  /// The store's directory.
  public var directory: String { context.directory }

  /// Whether the store failed: corruption, a removal that could not be logged, or a directory that was deleted or
  /// moved; or because another process found one of these.
  ///
  /// Lookups miss, writes and removals do nothing. Open the directory again to get an empty store. If LMDB could not
  /// write a meta page, this process gets the same data, and removals are logged until then.
  public var hasFailed: Bool { context.hasFailed }

  /// Reopens the directory in place of this failed store. The new store continues its statistics.
  ///
  /// - Throws: ``StoreError``, for example if the disk is full.
  package func reopen(options: Options) throws(StoreError) -> ResponseStore {
    try StoreRegistry.shared.open(directory: directory, options: options, inPlaceOf: self)
  }

  /// The path of the data file in use in a directory; nil if the directory has no store. The file may not exist.
  package static func dataFile(inDirectory directory: String) -> String? { StoreDirectory.dataFile(in: directory) }

  /// Closes the store: writes the queue, ends the threads and releases the directory. Later uses trap.
  ///
  /// The store closes when each caller of ``open(directory:options:)`` in this process has called this. It closes by
  /// itself when its last reference is released, and when the process exits. Traps if it is called more often than the
  /// store was opened.
  public func close() {
    let isLast = openCount.withLock { count -> Bool in
      if count == 0 { Trap.closedTwice(directory) }
      count -= 1
      return count == 0
    }
    if isLast { threads.close(as: .closed) }
  }

  /// Counts one more user of the store, which must call ``close()``; returns false if it is closed.
  func retainOpen() -> Bool {
    openCount.withLock { count -> Bool in
      guard count > 0 else { return false }
      count += 1
      return true
    }
  }

  /// Commits the next group of queued writes; returns false if there was none.
  ///
  /// The writer thread does this. Call it for a store without background threads.
  @discardableResult
  public func writePending() -> Bool { writer.writePending() }

  /// Does one step of the eviction thread; returns true if there may be more to do.
  ///
  /// The eviction thread does this. Call it for a store without background threads.
  @discardableResult
  public func maintain() -> Bool { maintainer.maintain() }

  // MARK: Lookups

  /// Returns the stored response for a key, whether fresh or stale; nil on a miss.
  ///
  /// Of the variants that `matches` accepts, selects one with Vary fields before one without (RFC 9111, section 4.1),
  /// then the newest by its Date (section 4). Corruption and I/O errors are misses. Safe from any thread; waits only
  /// for the disk.
  ///
  /// - Complexity: O(log entries) and a copy of the record, without a body that is left in the store.
  /// - Parameters:
  ///   - key: The cache key.
  ///   - limit: A complete body of more bytes is left in the store, to be read through ``StoredResponse/storedBody``;
  ///     nil to copy any body. This process's first read of a record reads a body of at most 1 MiB nevertheless, to
  ///     verify its checksum; of a larger one it reads the checksums of the blocks.
  ///   - matches: Whether a variant may be selected; any by default.
  public func lookup(
    _ key: RequestKey, leavingBodiesBeyond limit: Int? = nil, where matches: (VaryKey) -> Bool = { _ in true }
  ) -> StoredResponse? {
    lookup(key, leavingBodiesBeyond: limit, isCounted: true, where: matches)
  }

  /// Looks up without being counted in ``statistics`` if it is not for a response, but for a record of the caching
  /// client.
  package func lookup(
    _ key: RequestKey, leavingBodiesBeyond limit: Int?, isCounted: Bool, where matches: (VaryKey) -> Bool
  ) -> StoredResponse? {
    unretainedReader.use {
      $0.lookup(key, leaving: limit.map { ($0, self) }, isCounted: isCounted, where: matches)
    }
  }

  /// Calls `body` with a zero-copy view of a stored response; returns nil on a miss.
  ///
  /// Selects the response as ``lookup(_:leavingBodiesBeyond:where:)`` does. Keep `body` short: while it runs, no
  /// process can reuse pages freed by the writer. This process's first read of a record copies it to compare its
  /// checksum; with ``Options/verifiesEveryRead`` every read does.
  ///
  /// - Complexity: O(log entries) for each chunk of the body.
  @inlinable
  public func withResponse<R>(
    _ key: RequestKey, where matches: (VaryKey) -> Bool = { _ in true }, _ body: (borrowing BorrowedResponse) -> R
  ) -> R? {
    // Only this part is specialized for each `R`.
    var result: R?
    borrow(key, where: matches) { result = body($0) }
    return result
  }

  @usableFromInline
  func borrow(_ key: RequestKey, where matches: (VaryKey) -> Bool, _ body: (borrowing BorrowedResponse) -> Void) {
    unretainedReader.use { $0.borrow(key, where: matches, body) }
  }

  /// Calls `body` with the Vary key of each variant that a lookup of a key would consider.
  ///
  /// Copies no record, and does not count as a lookup. May call `body` more than once for a variant.
  package func forEachVariant(of key: RequestKey, _ body: (VaryKey) -> Void) {
    reader.forEachVariant(of: key, body)
  }

  /// Counts a use of a response for eviction without a lookup, for a memory tier in front of the store.
  ///
  /// Counts for all variants of the key. Costs tens of nanoseconds.
  /// - Parameter digest: ``useDigest(of:)`` of the key.
  public func recordUse(of digest: UInt64) {
    context.index.use { mapping in
      guard let index = mapping.current else { return }
      var matches = index.matches(of: digest)
      while let match = matches.next() { index.recordUse(of: match) }
    }
  }

  /// Returns the digest of a key for ``recordUse(of:)`` of this store.
  public func useDigest(of key: RequestKey) -> UInt64 { context.database.keyDigest(of: key.bytes) }

  // MARK: Writes

  /// Stores a response, and replaces the stored one with the same key and Vary key. A replaced write that is still
  /// queued is not written.
  ///
  /// Returns at once: the response is readable in this process, and committed within ``Options/commitDelay``. If the
  /// queue is full, the call waits up to ``Options/fullQueueTimeout``; then the response is dropped and counted. A
  /// response that is too large for the store is dropped and counted, too. Even if a response is dropped or cannot
  /// be committed, the older response that it replaces is deleted, unless pending deletions of this kind fill
  /// ``Options/queueByteCount``. Safe from any thread.
  ///
  /// The store does not decide whether a response may be stored; `HTTPCaching` does.
  ///
  /// - Parameters:
  ///   - response: The response to store.
  ///   - key: The cache key.
  ///   - attachment: Bytes of the caller that are stored with the response and returned unchanged. Nil by default.
  ///   - token: The ``removalToken`` from before the request was sent to the origin. If a later removal covers the
  ///     response, the response is dropped and counted, or hidden. By default, only removals from now on cover it.
  ///   - waitsForSpace: False for a thread that must not block: if the queue is full, the response is dropped at once.
  /// - Returns: Whether the response was accepted; false if it was dropped.
  @discardableResult
  public func store(
    _ response: CacheableResponse, for key: RequestKey, attachment: [UInt8]? = nil,
    askedAt token: RemovalToken? = nil, waitsForSpace: Bool = true
  ) -> Bool {
    store(
      response, for: key, attachment: attachment, askedAt: token, waitsForSpace: waitsForSpace, by: nil) == .stored
  }

  /// Stores a response for a holder of copies, which updates its own copy. On return, all other holders have dropped
  /// their copies.
  package func store(
    _ response: CacheableResponse, for key: RequestKey, attachment: [UInt8]?, askedAt token: RemovalToken?,
    waitsForSpace: Bool, by writer: (any CopyHolder)?
  ) -> StorageOutcome {
    if !context.mayHaveEquivalentURLs, key.isSearchSpace { context.noteEquivalentURLs() }
    return intake.store(
      response, for: key, attachment: attachment, askedAt: token, waitsForSpace: waitsForSpace, by: writer)
  }

  /// Replaces the header fields and freshness of a stored response, after a 304 (RFC 9111, section 4.3.4). Key, body
  /// and stored time stay.
  ///
  /// Returns at once, like ``store(_:for:attachment:askedAt:waitsForSpace:)``. If the response was removed, evicted or
  /// replaced since it was looked up, the update is dropped and counted: a removed response must not reappear. A body
  /// that the lookup left in the store is not read.
  ///
  /// - Parameters:
  ///   - stored: The response as a lookup returned it.
  ///   - fields: The new fields.
  ///   - freshness: The new freshness.
  ///   - token: The ``removalToken`` from before the validation was sent. The response stays stale if a later soft
  ///     purge covers it. Nil, the default, means the token of the lookup.
  ///   - waitsForSpace: As for ``store(_:for:attachment:askedAt:waitsForSpace:)``.
  /// - Returns: Whether the update was accepted; false if it was dropped.
  @discardableResult
  public func update(
    _ stored: StoredResponse, fields: HeaderFields, freshness: FreshnessInfo, askedAt token: RemovalToken? = nil,
    waitsForSpace: Bool = true
  ) -> Bool {
    intake.update(
      stored, fields: fields, freshness: freshness, askedAt: token, waitsForSpace: waitsForSpace, by: nil)
  }

  /// Updates a response for a holder of copies, which updates its own copy. On return, all other holders have dropped
  /// their copies.
  @discardableResult
  package func update(
    _ stored: StoredResponse, fields: HeaderFields, freshness: FreshnessInfo, askedAt token: RemovalToken?,
    waitsForSpace: Bool, by writer: (any CopyHolder)?
  ) -> Bool {
    intake.update(
      stored, fields: fields, freshness: freshness, askedAt: token, waitsForSpace: waitsForSpace, by: writer)
  }

  /// Deletes a stored response because a newer response exists that is not stored.
  ///
  /// Returns at once: from then on this process misses the older response, and the writer deletes it. Costs a lookup if
  /// nothing is stored.
  ///
  /// - Parameter writer: A holder of copies that updates its own copy. On return, all other holders have dropped their
  ///   copies.
  package func discard(_ newer: CacheableResponse, for key: RequestKey, by writer: (any CopyHolder)? = nil) {
    intake.discard(newer, for: key, by: writer)
  }

  /// Deletes a stored response like ``discard(_:for:by:)``, in the store that this process has open in a directory.
  ///
  /// For a cache without a usable store that drops the newer response: another cache of this process may have opened
  /// the directory in the meantime. Does nothing if the directory is not open. Costs a `stat` and a lookup.
  package static func discard(_ newer: CacheableResponse, for key: RequestKey, inDirectory directory: String) {
    StoreRegistry.shared.withOpenStore(inDirectory: directory) { $0.discard(newer, for: key) }
  }

  /// Whether a response with No-Vary-Search may be stored. Costs a load.
  package var mayHaveEquivalentURLs: Bool { context.mayHaveEquivalentURLs }

  /// Adds a holder of copies. Call this before it holds a copy. It is not retained.
  package func add(_ holder: any CopyHolder) { intake.add(holder) }

  /// Whether other processes, or several caches of this process, may store responses in the directory.
  package var mayHaveOtherUsers: Bool { intake.hasSeveralHolders || context.storeDirectory.mayHaveOtherUsers }

  /// The maximum size of a body in bytes: half of the live pages that the capacity allows.
  public var maximumBodyByteCount: Int { space.maximumBodyByteCount }

  /// Makes everything stored so far durable. Removed responses are deleted or, if there are many, hidden by a
  /// tombstone.
  ///
  /// Throws if writes that were accepted since the last flush were lost, even if the disk works again. Each loss is
  /// reported once: to all flushes in progress, and to the next flush if the write was accepted after they began.
  /// Responses that ``store(_:for:attachment:askedAt:waitsForSpace:)`` dropped at once, and updates of responses that
  /// no longer exist, are only counted in ``StoreStatistics/droppedWrites``.
  ///
  /// - Throws: ``StoreError`` if responses could not be written because the disk is full or failing
  ///   (``StoreError/Code/storage``), if the store failed (``StoreError/Code/failed``), or if no process commits for
  ///   ``Options/stallTimeout`` (``StoreError/Code/busy``).
  public func flush() throws(StoreError) { try flusher.flush() }

  /// Flushes for a caller that receives its own reports of losses.
  ///
  /// - Parameter mark: The number up to which losses were reported to the caller; ``acceptedNumber`` at first. Raised
  ///   by this call.
  package func flush(since mark: borrowing Atomic<UInt64>) throws(StoreError) { try flusher.flush(since: mark) }

  /// The number of the latest accepted write.
  package var acceptedNumber: UInt64 { flusher.acceptedNumber }

  // MARK: Capacity

  /// The capacity of the directory in bytes on disk; see ``Options/capacityByteCount``.
  ///
  /// This is the capacity in effect, which another process may have set. A new value applies to all processes that use
  /// the directory. Setting a smaller value evicts before it returns. If no process commits for
  /// ``Options/stallTimeout``, the setter logs that and returns, and the value takes effect when writing is possible
  /// again.
  ///
  /// The data file takes at least 0.8 MB and 1/128 of the size that it once had. With a lower capacity, the next
  /// process that opens the directory alone starts with an empty store.
  public var capacityByteCount: Int {
    get { context.isOpen ? space.storedCapacityByteCount : space.capacityByteCount }
    set {
      if newValue < Self.minimumCapacityByteCount { Trap.capacityTooSmall(newValue) }
      guard context.isUsable, !context.isForked else { return }
      capacity.set(newValue) { maintainer.maintainNext() }
    }
  }

  /// Whether a capacity that was set is still being applied.
  package var isApplyingCapacity: Bool { capacity.isApplying }
}

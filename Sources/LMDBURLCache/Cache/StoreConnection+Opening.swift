import Foundation
import ResponseStore
import Synchronization

/// Opening of a store that the cache could not open when it was created.
///
/// Either other processes kept the store from being opened, or another cache created it later in the directory of a
/// cache that uses memory only.
extension StoreConnection {
  /// Checks whether the memory tier may be used without a store. If the directory has a store that this cache may open,
  /// begins to wait for it, and starts a thread that opens it if an attempt is due.
  ///
  /// Costs a `stat`, because another process may have created a store, whose removals this cache must obey at once.
  /// Lookups miss and writes are dropped until that store is open.
  ///
  /// - Returns: True if the directory has no store, or none that this cache can open.
  func checkMayUseMemoryOnly() -> Bool {
    if case .absent = availability.withLock({ $0.state }) {
      guard let file = DataFileMark(directory: directory), awaitStore(of: file) else { return true }
    }
    openIfAwaited()
    return false
  }

  /// Begins to wait for the store of a data file. Returns false if the file cannot be opened.
  private func awaitStore(of file: DataFileMark) -> Bool {
    let (isUsable, isNew) = availability.withLock { availability in
      guard case .absent(let unusableFile) = availability.state else { return (true, false) }
      if let unusableFile, file.matches(unusableFile) { return (false, false) }
      availability.beginWaiting()
      return (true, true)
    }
    if isNew { memory.removeAll { _ in true } }
    return isUsable
  }

  /// Starts an attempt to open an awaited store on another thread if one is due.
  ///
  /// Call this after a lookup or a write without an open store.
  func openIfAwaited() {
    guard availability.withLock({ $0.isAwaited }), recovery.withLock({ $0.begin(at: .now) }) else { return }
    Thread.detachNewThread { [weak self] in
      guard let self else { return }
      openAwaited()
      recovery.withLock { $0.end(at: .now) }
    }
  }

  /// Opens the awaited store unless another thread has done so.
  private func openAwaited() {
    resizing.withLock { _ in
      guard openStore.load() == nil else { return }
      do throws(StoreError) {
        let usesDisk = usesDisk
        try open()
        let hasLoggedFailure = recovery.withLock { $0.exchangeLoggedFailure(false) }
        if usesDisk || hasLoggedFailure {
          options.log("LMDBURLCache: The disk tier could be opened, and responses are kept (\(directory))")
        }
      } catch {
        noteFailure(error)
      }
    }
  }

  /// Logs an error of opening, and stops waiting for the store if retrying is useless.
  private func noteFailure(_ error: StoreError) {
    let isRetryUseless = error.makesRetryUseless(in: directory)
    if isRetryUseless {
      let file = DataFileMark(directory: directory, leftAloneAfter: error)
      availability.withLock { $0.endWaiting(leaving: file) }
    }
    let hasLoggedFailure = recovery.withLock { $0.exchangeLoggedFailure(!isRetryUseless) }
    guard !hasLoggedFailure || isRetryUseless, error.code != .notFound else { return }
    options.log(Self.line(on: error, usesDisk: usesDisk, isAwaited: !isRetryUseless))
  }

  /// Opens the store for the first time.
  func open() throws(StoreError) {
    let store = try Self.open(directory: directory, diskCapacity: diskCapacity, options: options)
    connect(store)
    // The tokens of these responses mark them as removed already; this releases their memory. Later ones stay.
    memory.removeAll { _ in true }
    repeat {
      if availability.withLock({ $0.takeMissedRemoval() }) { store.remove(.everything) }
      flushMark.store(store.acceptedNumber, ordering: .sequentiallyConsistent)
    } while !publish(store)
  }

  /// Returns the store for a removal; nil if there is none or it cannot be opened now.
  ///
  /// If it cannot be opened now, everything is removed when it is opened.
  func storeToRemoveFrom() -> ResponseStore? {
    if let store = openStore.load() { return store }
    guard !checkMayUseMemoryOnly() else { return openStore.load() }
    // Wait for the first attempt.
    if !recovery.withLock({ $0.hasLoggedFailure }) {
      openAwaited()
      if let store = openStore.load() { return store }
    }
    guard availability.withLock({ $0.missRemoval() }) else { return openStore.load() }
    openIfAwaited()
    return nil
  }

  /// Returns the log line for a directory that cannot be opened.
  ///
  /// - Parameter isAwaited: Whether opening is retried. By default, if other processes prevent it.
  static func line(on error: StoreError, usesDisk: Bool, isAwaited: Bool? = nil) -> String {
    if isAwaited ?? error.isInUseByOthers {
      return "LMDBURLCache: Nothing is cached until the directory can be opened, which is tried again. \(error)"
    }
    return usesDisk
      ? "LMDBURLCache: Disk caching is off; responses are cached in memory only. \(error)"
      : "LMDBURLCache: Removals by other processes do not reach this cache. \(error)"
  }

  /// Opens the store of a directory: as the disk tier, or only to notice removals by other processes.
  ///
  /// Without a disk tier, only an existing store is opened. It keeps its capacity, and nothing is created in the
  /// directory.
  ///
  /// - Throws: ``StoreError``, with the code `notFound` if there is no store for a cache without a disk tier.
  static func open(
    directory: String, diskCapacity: Int, options: LMDBURLCache.Options
  ) throws(StoreError) -> ResponseStore {
    let capacity =
      diskCapacity >= ResponseStore.minimumCapacityByteCount
      ? diskCapacity
      : try capacity(options: options) { existing throws(StoreError) in
        try ResponseStore.open(directory: directory, options: existing)
      }
    return try ResponseStore.open(directory: directory, options: options.storeOptions(diskCapacity: capacity))
  }
}

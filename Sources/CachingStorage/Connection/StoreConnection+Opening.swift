import Dispatch
import ResponseStore
import Synchronization

/// Opening of the store: when it appears in the directory of a cache that uses memory only, when other processes no
/// longer keep it from being opened, and after it has failed.
///
/// A lookup or a write that finds no usable store starts a thread that opens it, and a removal opens it at once. The
/// memory tier's older responses then count as removed, because other processes may have removed them in the meantime.
extension StoreConnection {
  /// Checks whether the memory tier may be used without a store. If the directory has a store that this cache may open,
  /// begins to wait for it, and starts a thread that opens it if an attempt is due.
  ///
  /// Costs a system call, because another process may have created a store, whose removals this cache must obey at
  /// once. Lookups miss and writes are dropped until that store is open.
  ///
  /// - Returns: True if the directory has no store, or none that this cache can open.
  func checkMayUseMemoryOnly() -> Bool {
    if case .memoryOnly(let unusableFile) = state.withLock({ $0.phase }) {
      guard let file = DataFileMark(directory: directory), unusableFile.map({ !file.matches($0) }) ?? true else {
        return true
      }
      beginWaiting()
    }
    openIfWaiting()
    return false
  }

  /// Begins to wait for a store in the directory of a cache that uses memory only.
  func beginWaiting() {
    state.withLock { if case .memoryOnly = $0.phase { $0.phase = .waiting } }
    memory.removeAll { _ in true }
  }

  /// Starts an attempt to open the store on another thread, if it is awaited and an attempt is due.
  ///
  /// Call this after a lookup or a write without an open store.
  func openIfWaiting() {
    guard state.withLock({ $0.isWaiting && $0.attempts.begin(at: .now) }) else { return }
    // A thread that runs no Swift tasks, because opening may wait for the disk.
    DispatchQueue(label: "LMDBURLCache.opening").async { [weak self] in
      guard let self else { return }
      openNow()
      state.withLock { $0.attempts.end(at: .now) }
    }
  }

  /// Begins to wait for another store if this one has failed, and starts a thread that opens it if an attempt is due.
  ///
  /// Call this after a lookup or a write. It costs one load unless the store has failed.
  func reopenIfFailed(_ store: ResponseStore) {
    if store.hasFailed { reopen(store) }
  }

  private func reopen(_ failed: ResponseStore) {
    let isNew = state.withLock { state -> Bool in
      guard case .open = state.phase, openStore.load() === failed else { return false }
      // A cache without a disk tier creates no store. It opens one that another process creates.
      state.phase = usesDisk ? .waiting : .memoryOnly(unusableFile: nil)
      if !usesDisk { openStore.set(nil) }
      return true
    }
    if isNew { memory.removeAll { _ in true } }
    openIfWaiting()
  }

  /// Opens the awaited store, unless another thread has done so.
  private func openNow() {
    resizing.withLock { _ in
      guard state.withLock({ $0.isWaiting }) else { return }
      do throws(StoreError) {
        try open()
      } catch {
        noteFailure(error)
      }
    }
  }

  /// Logs an error of opening, and stops waiting for the store if retrying is useless.
  private func noteFailure(_ error: StoreError) {
    let isRetryUseless = error.makesRetryUseless(in: directory)
    let hasLoggedFailure = state.withLock { state in
      if isRetryUseless {
        state.phase = .memoryOnly(unusableFile: DataFileMark(directory: directory, leftAloneAfter: error))
        openStore.set(nil)
      }
      defer { state.hasLoggedFailure = !isRetryUseless }
      return state.hasLoggedFailure
    }
    guard !hasLoggedFailure || isRetryUseless, error.code != .notFound else { return }
    options.log(Self.line(on: error, usesDisk: usesDisk, isAwaited: !isRetryUseless))
  }

  /// Opens the store, in place of a failed one if there is one. Call this with the lock `resizing`.
  func open() throws(StoreError) {
    let failed = openStore.load()
    let store = try Self.open(directory: directory, diskCapacity: diskCapacity, options: options, inPlaceOf: failed)
    connect(store)
    // The tokens of these responses mark them as removed already; this releases their memory. Later ones stay.
    memory.removeAll { _ in true }
    repeat {
      if state.withLock({ $0.takeMissedRemoval() }) { store.remove(.everything) }
      // Losses of a failed store are still to be reported.
      if failed == nil { flushMark.store(store.acceptedNumber, ordering: .sequentiallyConsistent) }
    } while !publish(store)
    if failed != nil { activity.observers.emit(.reopened) }
    let hadLoggedFailure = state.withLock { state in
      defer { state.hasLoggedFailure = false }
      return state.hasLoggedFailure
    }
    if failed != nil {
      options.log("LMDBURLCache: Disk caching is on again (\(directory))")
    } else if hadLoggedFailure {
      options.log("LMDBURLCache: The disk tier could be opened, and responses are kept (\(directory))")
    }
  }

  /// Removes from the store. If it has failed, removes from the store that replaces it.
  ///
  /// Another process may have created that store already, and stored covered responses in it.
  func removeFromStore(_ remove: (ResponseStore) -> Void) {
    // On a failing disk, each of them may fail.
    for _ in 0..<5 {
      guard let store = storeToRemoveFrom() else { return }
      remove(store)
      guard store.hasFailed else { return }
      reopenIfFailed(store)
    }
    state.withLock { $0.missRemoval() }
  }

  /// Returns the store for a removal; nil if there is none or it cannot be opened now.
  ///
  /// If it cannot be opened now, everything is removed when it is opened.
  private func storeToRemoveFrom() -> ResponseStore? {
    if let store = openStore.load(), !store.hasFailed || state.withLock({ !$0.isWaiting }) { return store }
    guard !checkMayUseMemoryOnly() else { return openStore.load() }
    // Without a failed store, only the first attempt is worth a wait.
    if openStore.load() != nil || !state.withLock({ $0.hasLoggedFailure }) { openNow() }
    if let store = openStore.load(), !store.hasFailed { return store }
    state.withLock { $0.missRemoval() }
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
    directory: String, diskCapacity: Int, options: ResponseCache.Options, inPlaceOf failed: ResponseStore? = nil
  ) throws(StoreError) -> ResponseStore {
    var capacity = diskCapacity
    if capacity < ResponseStore.minimumCapacityByteCount {
      var existing = ResponseStore.Options.existing
      existing.allowsUntrustedDirectory = options.allowsUntrustedDirectory
      existing.log = options.log
      let store = try ResponseStore.open(directory: directory, options: existing)
      defer { store.close() }
      capacity = store.capacityByteCount
    }
    let storeOptions = options.storeOptions(diskCapacity: capacity)
    if let failed { return try failed.reopen(options: storeOptions) }
    return try ResponseStore.open(directory: directory, options: storeOptions)
  }
}

import Foundation
import Glibc
import LMDB
import ResponseStore
import Synchronization

/// Opening of a store that the cache could not open when it was created.
///
/// Either other processes kept the store from being opened, or another cache created it later in the directory of a
/// cache that uses memory only.
extension TieredStorage {
  /// Whether the memory tier may be used without a store: the directory has none, or none that this cache can open.
  ///
  /// Costs a `stat`, because another process may have created a store, whose removals this cache must obey at once. If a
  /// store has appeared, another thread opens it. Lookups miss and writes are dropped until it is open.
  func worksAlone() -> Bool {
    guard let directory else { return true }
    if isWaitingForDisk.load(ordering: .sequentiallyConsistent) {
      openDiskIfWaiting()
      return false
    }
    guard hasStoreToOpen(in: directory) else { return true }
    beginWaiting(for: directory)
    openDiskIfWaiting()
    return false
  }

  private func hasStoreToOpen(in directory: String) -> Bool {
    guard let file = DataFileMark(directory: directory) else { return false }
    return !unusableFile.withLock { $0.map { file.matches($0) } ?? false }
  }

  private func beginWaiting(for directory: String) {
    isWaitingForDisk.store(true, ordering: .sequentiallyConsistent)
    // The thread that opens the store sets `openStore` before it clears the flag, so this flag is cleared, too.
    if openStore.load() != nil || !hasStoreToOpen(in: directory) {
      isWaitingForDisk.store(false, ordering: .sequentiallyConsistent)
    } else {
      memory.removeAll { _ in true }
    }
  }

  /// Returns whether the cache waits for a store, and starts an attempt on another thread if one is due.
  ///
  /// Call this after a lookup or a write without an open store.
  @discardableResult
  func openDiskIfWaiting() -> Bool {
    guard isWaitingForDisk.load(ordering: .relaxed) else { return false }
    guard let directory, recovery.withLock({ $0.begin(at: .now) }) else { return true }
    Thread.detachNewThread { [weak self] in
      guard let self else { return }
      openAwaited(directory)
      recovery.withLock { $0.end(at: .now) }
    }
    return true
  }

  /// Opens the awaited store unless another thread has done so.
  private func openAwaited(_ directory: String) {
    resizing.withLock { _ in
      guard openStore.load() == nil else { return isWaitingForDisk.store(false, ordering: .sequentiallyConsistent) }
      do throws(StoreError) {
        let usesDisk = usesDisk
        if usesDisk { try openDisk(directory) } else { try openForRemovals(directory) }
        let hasLoggedFailure = recovery.withLock { recovery -> Bool in
          defer { recovery.hasLoggedFailure = false }
          return recovery.hasLoggedFailure
        }
        if usesDisk || hasLoggedFailure {
          options.log("LMDBURLCache: The disk tier could be opened, and responses are kept (\(directory))")
        }
      } catch {
        noteFailure(error, in: directory)
      }
    }
  }

  /// Logs an error of opening, and stops waiting for the store if retrying is useless.
  private func noteFailure(_ error: StoreError, in directory: String) {
    let isLeftAlone = error.leavesMemoryAlone(in: directory)
    if isLeftAlone {
      let file = DataFileMark(directory: directory, leftAloneAfter: error)
      unusableFile.withLock { $0 = file }
      isWaitingForDisk.store(false, ordering: .sequentiallyConsistent)
    }
    let isFirst = recovery.withLock { recovery -> Bool in
      defer { recovery.hasLoggedFailure = !isLeftAlone }
      return !recovery.hasLoggedFailure || isLeftAlone
    }
    guard isFirst, error.code != .notFound else { return }
    options.log(Self.line(on: error, usesDisk: usesDisk, isAwaited: !isLeftAlone))
  }

  /// Opens the disk tier for the first time.
  ///
  /// If a removal was requested while the store could not be opened, everything is removed, because its scope is no
  /// longer known.
  func openDisk(_ directory: String) throws(StoreError) {
    begin(
      with: try ResponseStore.open(directory: directory, options: options.storeOptions(diskCapacity: diskCapacity)))
  }

  private func openForRemovals(_ directory: String) throws(StoreError) {
    begin(with: try Self.storeForRemovals(directory: directory, options: options))
  }

  private func begin(with store: ResponseStore) {
    if hasMissedRemoval.exchange(false, ordering: .sequentiallyConsistent) { store.removeAll() }
    flushMark.store(store.acceptedNumber, ordering: .sequentiallyConsistent)
    setStore(store)
    isWaitingForDisk.store(false, ordering: .sequentiallyConsistent)
    // The tokens of these responses mark them as removed already; this releases their memory.
    memory.removeAll { _ in true }
  }

  /// Returns the store for a removal; nil if there is none or it cannot be opened now.
  ///
  /// If it cannot be opened now, everything is removed when it is opened.
  func storeToRemoveFrom() -> ResponseStore? {
    if let store = openStore.load() { return store }
    guard let directory, !worksAlone() else { return openStore.load() }
    // Wait for the first attempt.
    if !recovery.withLock({ $0.hasLoggedFailure }) {
      openAwaited(directory)
      if let store = openStore.load() { return store }
    }
    guard isWaitingForDisk.load(ordering: .sequentiallyConsistent) else { return nil }
    hasMissedRemoval.store(true, ordering: .sequentiallyConsistent)
    openDiskIfWaiting()
    // Another thread that has not seen `hasMissedRemoval` may have opened it in the meantime.
    return openStore.load()
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

  /// Opens an existing store for a cache without a disk tier, so that other processes' removals reach its memory tier.
  ///
  /// The store keeps its capacity, and nothing is created in the directory.
  ///
  /// - Throws: ``StoreError``, with the code `notFound` if there is no store.
  static func storeForRemovals(
    directory: String, options: LMDBURLCache.Options
  ) throws(StoreError) -> ResponseStore {
    let capacity = try capacity(options: options) { existing throws(StoreError) in
      try ResponseStore.open(directory: directory, options: existing)
    }
    return try ResponseStore.open(directory: directory, options: options.storeOptions(diskCapacity: capacity))
  }
}

/// The identity of a data file in a cache's directory, according to `stat`.
struct DataFileMark: Sendable, Hashable {
  private let device: UInt
  private let inode: UInt
  /// The file's size; nil if files of any size match.
  private var byteCount: Int?

  /// Reads the file's identity; nil if there is no data file or it is empty.
  ///
  /// The store of an empty file is still being created, so nothing was removed from it.
  init?(directory: String) {
    var status = stat()
    guard stat(directory + "/" + DataFile.name, &status) == 0, status.st_size > 0 else { return nil }
    device = UInt(status.st_dev)
    inode = UInt(status.st_ino)
    byteCount = Int(status.st_size)
  }

  /// The file that must not be opened again after a failure; nil if it may be opened again.
  init?(directory: String?, leftAloneAfter error: StoreError) {
    guard let directory, error.code != .notFound, error.leavesMemoryAlone(in: directory),
      let file = DataFileMark(directory: directory)
    else { return nil }
    self = file
    // An incomplete file counts as corrupt. If another process completes its creation, its size changes.
    if error.code != .corrupt { byteCount = nil }
  }

  /// Whether this file is the one that `mark` identifies.
  func matches(_ mark: DataFileMark) -> Bool {
    device == mark.device && inode == mark.inode && (mark.byteCount == nil || byteCount == mark.byteCount)
  }
}

extension StoreError {
  /// Whether other processes prevent this process from opening the directory.
  ///
  /// This process would then not notice their removals.
  var isInUseByOthers: Bool {
    switch code {
    case .busy, .fleetMismatch, .corruptAndInUse, .otherVersionInUse, .otherProcessNamespace: true
    default: false
    }
  }

  /// Whether retrying with the same file is useless, so that the cache uses memory only.
  ///
  /// The file is not a store of this version, no process can read it, or this user may not use it.
  func leavesMemoryAlone(in directory: String) -> Bool {
    switch code {
    case .notFound, .notAStore, .unsupportedFormat, .corrupt, .untrustedDirectory: true
    case .unusableDirectory: cause != nil || access(directory, R_OK | W_OK | X_OK) != 0
    default: false
    }
  }
}

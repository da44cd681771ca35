import Foundation
import Glibc
import LMDB
import ResponseStore
import Synchronization

/// Stores that a cache without an open store comes to need: one that others keep from being opened, and one that another cache
/// makes in the directory of a cache that works in memory alone.
extension CacheCore {
  /// Whether memory may be relied on without a store: there is none in the directory, or none that this cache can open. Costs
  /// a `stat`, also while others make a store: a removal from it that has returned shows here.
  ///
  /// Where a store has appeared, another thread begins to open it. Nothing is found and nothing is kept until it is open.
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
    // The thread that opens the store sets it first and ends the waiting then, so this waiting ends, too.
    if openStore.load() != nil || !hasStoreToOpen(in: directory) {
      isWaitingForDisk.store(false, ordering: .sequentiallyConsistent)
    } else {
      memory.removeAll { _ in true }
    }
  }

  /// After a lookup or a store without an open store: whether one is waited for. Where it is time to, another thread tries
  /// again.
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

  /// Opens the store that is waited for, unless another thread has.
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
    guard isFirst, error.code != .missing else { return }
    options.log(Self.line(on: error, usesDisk: usesDisk, isAwaited: !isLeftAlone))
  }

  /// Opens the disk tier for the first time. What was removed while it could not be opened is not known any more: then all is.
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
    openStore.set(store)
    isWaitingForDisk.store(false, ordering: .sequentiallyConsistent)
    // By its token it counts as removed; this frees its bytes.
    memory.removeAll { _ in true }
  }

  /// The store; nil if there is none, or it cannot be opened now, and then a removal is made up for when it is.
  func storeToRemoveFrom() -> ResponseStore? {
    if let store = openStore.load() { return store }
    guard let directory, !worksAlone() else { return openStore.load() }
    // The first attempt is worth waiting for.
    if !recovery.withLock({ $0.hasLoggedFailure }) {
      openAwaited(directory)
      if let store = openStore.load() { return store }
    }
    guard isWaitingForDisk.load(ordering: .sequentiallyConsistent) else { return nil }
    hasMissedRemoval.store(true, ordering: .sequentiallyConsistent)
    openDiskIfWaiting()
    // It may have been opened since, by a thread that did not see this.
    return openStore.load()
  }

  /// What is logged when the directory cannot be opened.
  ///
  /// - Parameter isAwaited: Whether opening is tried again; by default it is where others are in the way.
  static func line(on error: StoreError, usesDisk: Bool, isAwaited: Bool? = nil) -> String {
    if isAwaited ?? error.isInUseByOthers {
      return "LMDBURLCache: Nothing is cached until the directory can be opened, which is tried again. \(error)"
    }
    return usesDisk
      ? "LMDBURLCache: The cache works in memory alone. \(error)"
      : "LMDBURLCache: Removals by other processes do not reach this cache. \(error)"
  }

  /// Opens a store for a cache that does not use the disk: other processes may use it, and their removals are to reach what
  /// this cache has in memory. The store keeps its capacity, and nothing is made in the directory.
  ///
  /// - Throws: ``StoreError``; with the code `missing` if there is no store.
  static func storeForRemovals(
    directory: String, options: LMDBURLCache.Options
  ) throws(StoreError) -> ResponseStore {
    let capacity = try capacity(options: options) { existing throws(StoreError) in
      try ResponseStore.open(directory: directory, options: existing)
    }
    return try ResponseStore.open(directory: directory, options: options.storeOptions(diskCapacity: capacity))
  }
}

/// A data file in a cache's directory, as a `stat` shows it.
struct DataFileMark: Sendable, Hashable {
  private let device: UInt
  private let inode: UInt
  /// Nil where the file counts as the same at any size.
  private var byteCount: Int?

  /// Nil if there is no data. A file without bytes is none: its store is still being made, so nothing was removed from it.
  init?(directory: String) {
    var status = stat()
    guard stat(directory + "/" + DataFile.name, &status) == 0, status.st_size > 0 else { return nil }
    device = UInt(status.st_dev)
    inode = UInt(status.st_ino)
    byteCount = Int(status.st_size)
  }

  /// The file that is not to be opened again after a failure; nil if it is.
  init?(directory: String?, leftAloneAfter error: StoreError) {
    guard let directory, error.code != .missing, error.leavesMemoryAlone(in: directory),
      let file = DataFileMark(directory: directory)
    else { return nil }
    self = file
    // A file whose making was not completed is completed in its place.
    if error.code != .damaged { byteCount = nil }
  }

  /// Whether it is the file of this mark.
  func matches(_ mark: DataFileMark) -> Bool {
    device == mark.device && inode == mark.inode && (mark.byteCount == nil || byteCount == mark.byteCount)
  }
}

extension StoreError {
  /// Whether other processes keep the directory from being opened. They may remove what this one would keep, and it could not tell.
  var isInUseByOthers: Bool {
    switch code {
    case .busy, .damagedAndInUse, .otherVersionInUse, .otherProcessNamespace: true
    default: false
    }
  }

  /// Whether it is of no use to try again with the same file, so that a cache works in memory alone and says so: the file is
  /// no store of this version, nobody finds anything in it, or this user may not use it.
  func leavesMemoryAlone(in directory: String) -> Bool {
    switch code {
    case .missing, .foreignFile, .otherVersion, .damaged, .untrustedDirectory: true
    case .unusableDirectory: cause != nil || access(directory, R_OK | W_OK | X_OK) != 0
    default: false
    }
  }
}

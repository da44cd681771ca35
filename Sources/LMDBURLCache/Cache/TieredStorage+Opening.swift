import Foundation
import Glibc
import LMDB
import ResponseStore
import Synchronization

/// Whether the store of a cache's directory is open.
enum StoreAvailability: Sendable {
  /// The directory has no store, or only this data file, which cannot be opened. The cache uses memory only.
  case absent(unusableFile: DataFileMark?, hasMissedRemoval: Bool = false)
  /// The directory has a store that is not open yet, or cannot be opened now.
  ///
  /// Until it is open, nothing is stored, because removals by other processes would not be noticed. If a removal was
  /// requested in the meantime, everything is removed when it is opened, because the scope is not remembered.
  case awaited(hasMissedRemoval: Bool)
  /// ``TieredStorage/openStore`` has the store.
  case open

  /// The state of a new cache.
  ///
  /// - Parameter failure: The error because of which the directory could not be opened.
  init(directory: String?, failure: StoreError?) {
    self =
      failure?.isInUseByOthers == true
      ? .awaited(hasMissedRemoval: false)
      : .absent(unusableFile: failure.flatMap { DataFileMark(directory: directory, leftAloneAfter: $0) })
  }

  var isAwaited: Bool { if case .awaited = self { true } else { false } }

  /// Begins to wait for the store, unless it is open or already awaited.
  mutating func beginWaiting() {
    if case .absent(_, let hasMissedRemoval) = self { self = .awaited(hasMissedRemoval: hasMissedRemoval) }
  }

  /// Ends waiting for a store that cannot be opened.
  mutating func endWaiting(leaving file: DataFileMark?) {
    if case .awaited(let hasMissedRemoval) = self {
      self = .absent(unusableFile: file, hasMissedRemoval: hasMissedRemoval)
    }
  }

  /// Records a removal that no store receives. Returns whether a store is awaited.
  mutating func missRemoval() -> Bool {
    guard isAwaited else { return false }
    self = .awaited(hasMissedRemoval: true)
    return true
  }

  /// Whether a removal was missed, which the store must make up for before it is used.
  var hasMissedRemoval: Bool {
    switch self {
    case .absent(_, let hasMissedRemoval), .awaited(let hasMissedRemoval): hasMissedRemoval
    case .open: false
    }
  }

  /// Returns ``hasMissedRemoval``, and clears it.
  mutating func takeMissedRemoval() -> Bool {
    defer {
      switch self {
      case .absent(let file, _): self = .absent(unusableFile: file)
      case .awaited: self = .awaited(hasMissedRemoval: false)
      case .open: break
      }
    }
    return hasMissedRemoval
  }
}

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
    if case .absent = availability.withLock({ $0 }) {
      guard let file = DataFileMark(directory: directory), awaitStore(of: file) else { return true }
    }
    openIfAwaited()
    return false
  }

  /// Begins to wait for the store of a data file. Returns false if the file cannot be opened.
  private func awaitStore(of file: DataFileMark) -> Bool {
    let (isUsable, isNew) = availability.withLock { availability in
      guard case .absent(let unusableFile, _) = availability else { return (true, false) }
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
    guard availability.withLock({ $0.isAwaited }), let directory, recovery.withLock({ $0.begin(at: .now) }) else {
      return
    }
    Thread.detachNewThread { [weak self] in
      guard let self else { return }
      openAwaited(directory)
      recovery.withLock { $0.end(at: .now) }
    }
  }

  /// Opens the awaited store unless another thread has done so.
  private func openAwaited(_ directory: String) {
    resizing.withLock { _ in
      guard openStore.load() == nil else { return }
      do throws(StoreError) {
        let usesDisk = usesDisk
        try openStore(in: directory)
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
      availability.withLock { $0.endWaiting(leaving: file) }
    }
    let isFirst = recovery.withLock { recovery -> Bool in
      defer { recovery.hasLoggedFailure = !isLeftAlone }
      return !recovery.hasLoggedFailure || isLeftAlone
    }
    guard isFirst, error.code != .notFound else { return }
    options.log(Self.line(on: error, usesDisk: usesDisk, isAwaited: !isLeftAlone))
  }

  /// Opens the store for the first time: as the disk tier, or only to notice removals if there is none.
  func openStore(in directory: String) throws(StoreError) {
    let store =
      usesDisk
      ? try ResponseStore.open(directory: directory, options: options.storeOptions(diskCapacity: diskCapacity))
      : try Self.storeForRemovals(directory: directory, options: options)
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
    guard let directory, !worksAlone() else { return openStore.load() }
    // Wait for the first attempt.
    if !recovery.withLock({ $0.hasLoggedFailure }) {
      openAwaited(directory)
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

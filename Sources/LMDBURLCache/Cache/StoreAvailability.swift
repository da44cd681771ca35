import Glibc
import LMDB
import ResponseStore

/// Whether the store of a cache's directory is open.
enum StoreAvailability: Sendable {
  /// The directory has no store, or only this data file, which cannot be opened. The cache uses memory only.
  case absent(unusableFile: DataFileMark?, hasMissedRemoval: Bool = false)
  /// The directory has a store that is not open yet, or cannot be opened now.
  ///
  /// Until it is open, nothing is stored, because removals by other processes would not be noticed. If a removal was
  /// requested in the meantime, everything is removed when it is opened, because the scope is not remembered.
  case awaited(hasMissedRemoval: Bool)
  /// ``StoreConnection/openStore`` has the store.
  case open

  /// The state of a new cache.
  ///
  /// - Parameter failure: The error because of which the directory could not be opened.
  init(directory: String, failure: StoreError?) {
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
  init?(directory: String, leftAloneAfter error: StoreError) {
    guard error.code != .notFound, error.leavesMemoryAlone(in: directory),
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

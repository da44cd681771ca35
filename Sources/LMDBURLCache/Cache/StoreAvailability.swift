import Glibc
import LMDB
import ResponseStore

/// Whether the store of a cache's directory is open.
struct StoreAvailability: Sendable {
  enum State: Sendable {
    /// The directory has no store, or only this data file, which cannot be opened. The cache uses memory only.
    case absent(unusableFile: DataFileMark?)
    /// The directory has a store that is not open yet, or cannot be opened now.
    ///
    /// Until it is open, nothing is stored, because removals by other processes would not be noticed.
    case awaited
    /// ``StoreConnection/openStore`` has the store.
    case open
  }

  var state: State
  /// Whether a removal was requested while the store was awaited.
  ///
  /// Everything is then removed before the store is used, because the scope is not remembered.
  private(set) var hasMissedRemoval = false

  /// Creates the state of a new cache.
  ///
  /// - Parameter failure: The error because of which the directory could not be opened.
  init(directory: String, failure: StoreError?) {
    state =
      failure?.isInUseByOthers == true
      ? .awaited : .absent(unusableFile: failure.flatMap { DataFileMark(directory: directory, leftAloneAfter: $0) })
  }

  var isAwaited: Bool { if case .awaited = state { true } else { false } }

  /// Begins to wait for the store, unless it is open or already awaited.
  mutating func beginWaiting() {
    if case .absent = state { state = .awaited }
  }

  /// Ends waiting for a store that cannot be opened.
  mutating func endWaiting(leaving file: DataFileMark?) {
    if isAwaited { state = .absent(unusableFile: file) }
  }

  /// Records a removal that no store receives. Returns whether a store is awaited.
  mutating func missRemoval() -> Bool {
    if isAwaited { hasMissedRemoval = true }
    return isAwaited
  }

  /// Returns ``hasMissedRemoval``, and clears it.
  mutating func takeMissedRemoval() -> Bool {
    defer { hasMissedRemoval = false }
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
    guard error.code != .notFound, error.makesRetryUseless(in: directory),
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

  /// Whether opening the same file again is useless, so that only the memory tier is left.
  ///
  /// The file is not a store of this version, no process can read it, or this user may not use it.
  func makesRetryUseless(in directory: String) -> Bool {
    switch code {
    case .notFound, .notAStore, .unsupportedFormat, .corrupt, .untrustedDirectory: true
    case .unusableDirectory: cause != nil || access(directory, R_OK | W_OK | X_OK) != 0
    default: false
    }
  }
}

import Glibc
import ResponseStore

/// The state of a cache's connection with the store of its directory, and when it tries to open the store.
package struct ConnectionState: Sendable {
  enum Phase: Sendable {
    /// The directory has no store, or only this data file, which cannot be opened. The cache uses memory only.
    case memoryOnly(unusableFile: DataFileMark?)
    /// The directory has a store that is not open yet, has failed, or cannot be opened now.
    ///
    /// Until it is open, nothing is stored, because removals by other processes would not be noticed.
    case waiting
    /// ``StoreConnection/openStore`` has the store. It may have failed without a notice.
    case open
  }

  var phase: Phase
  /// The attempts to open the store.
  package var attempts = Backoff()
  /// Whether the log says that the attempts fail.
  var hasLoggedFailure = false
  /// Whether a removal was requested while the store could not be opened.
  ///
  /// Everything is then removed before the store is used, because the scope is not remembered.
  private(set) var hasMissedRemoval = false

  /// Records a removal that no store receives.
  mutating func missRemoval() {
    if isWaiting { hasMissedRemoval = true }
  }

  /// Returns ``hasMissedRemoval``, and clears it.
  mutating func takeMissedRemoval() -> Bool {
    defer { hasMissedRemoval = false }
    return hasMissedRemoval
  }

  var isWaiting: Bool { if case .waiting = phase { true } else { false } }

  /// The times at which the store may be opened: at once the first time, then after pauses that double.
  ///
  /// A disk that fails repeatedly therefore costs little time, and few failed stores stay in memory.
  package struct Backoff: Sendable {
    private static let shortestPause = Duration.seconds(1)
    private static let longestPause = Duration.seconds(60)

    private var isUnderWay = false
    private var nextAttempt: ContinuousClock.Instant?
    private var pause = Self.shortestPause

    /// Begins with an attempt that is due.
    package init() {}

    /// Begins an attempt and returns true if one is due. Call ``end(at:)`` after the attempt.
    package mutating func begin(at now: ContinuousClock.Instant) -> Bool {
      guard !isUnderWay else { return false }
      if let nextAttempt {
        guard now >= nextAttempt else { return false }
        // After an hour without failures, a failure has another cause.
        if now - nextAttempt > .seconds(3600) { pause = Self.shortestPause }
      }
      isUnderWay = true
      return true
    }

    package mutating func end(at now: ContinuousClock.Instant) {
      isUnderWay = false
      nextAttempt = now + pause
      pause = min(pause * 2, Self.longestPause)
    }
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
    guard let path = ResponseStore.dataFile(inDirectory: directory), stat(path, &status) == 0, status.st_size > 0 else {
      return nil
    }
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
    case .busy, .fleetMismatch, .otherVersionInUse, .otherProcessNamespace: true
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

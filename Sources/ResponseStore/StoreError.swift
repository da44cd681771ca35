public import FoundationEssentials
public import LMDB

/// An error from opening or flushing a store: the directory, what failed, why, and what to do.
///
/// Its description names the directory but never a URL, a header field or a body.
public struct StoreError: Error, Sendable, Hashable {
  /// The kind of failure. Later versions may add cases.
  public enum Code: Sendable, Hashable {
    /// An argument is a mistake: a capacity that is too small, a directory that is no file URL, or a client certificate
    /// that cannot be read.
    case invalidArgument
    /// The directory cannot be created, is not a directory, or is not writable.
    case unusableDirectory
    /// The directory is a symbolic link or belongs to another user.
    case untrustedDirectory
    /// `data.mdb` exists and is not a store of this library.
    case notAStore
    /// There is no store, and ``ResponseStore/Options/opensExistingOnly`` forbids creating one.
    case notFound
    /// The data is corrupt, and ``ResponseStore/Options/opensExistingOnly`` forbids replacing it.
    case corrupt
    /// The data has another version, and ``ResponseStore/Options/opensExistingOnly`` forbids replacing it.
    case unsupportedFormat
    /// Another process uses the directory with another version of the format.
    case otherVersionInUse
    /// A process in another PID namespace, such as another container, uses the directory.
    case otherProcessNamespace
    /// Other processes or threads kept the directory busy for too long: its locks, its reader slots, or its data.
    case busy
    /// The directory belongs to a fleet, and the cache has no fleet tier; or the cache has one and no disk tier.
    case fleetMismatch
    /// A limit of the process is too low: on open files, on the size of files, or on memory.
    case limitReached
    /// The loaded liblmdb is not a version 0.9, or the machine's pages have more than 32 KiB.
    case unsupportedSystem
    /// The store failed while it was open: its data is corrupt, or a removal could not be logged.
    case failed
    /// LMDB or the file system failed.
    case storage
  }

  /// The kind of failure.
  public let code: Code
  /// The path of the store's directory.
  public let directory: String
  /// The operation that failed, and why.
  public let reason: String
  /// Advice on how to solve the problem.
  public let remedy: String
  /// The failed LMDB call, if any.
  public let cause: LMDBError?

  package init(_ code: Code, directory: String, reason: String, remedy: String, cause: LMDBError? = nil) {
    self.code = code
    self.directory = directory
    self.reason = reason
    self.remedy = remedy
    self.cause = cause
  }
}

extension StoreError: CustomStringConvertible {
  /// One sentence for the failure, one for the remedy, and the failed call.
  public var description: String {
    var text = "Cannot use the response store at \(directory): \(reason). \(remedy)."
    if let cause { text += " (\(cause))" }
    return text
  }
}

extension StoreError: LocalizedError {
  /// The ``description``.
  public var errorDescription: String? { description }
}

// Here, because LMDB needs nothing of Foundation.
extension LMDBError: LocalizedError {
  /// The `description`.
  public var errorDescription: String? { description }
}

extension StoreError {
  /// Returns the error for an argument with which no store can be opened.
  package static func invalidArgument(_ reason: String, directory: String, remedy: String) -> StoreError {
    StoreError(.invalidArgument, directory: directory, reason: reason, remedy: remedy)
  }

  static func missing(_ directory: String, reason: String) -> StoreError {
    StoreError(
      .notFound, directory: directory, reason: reason,
      remedy: "See whether the path is right; a cache makes its store when it is first opened")
  }

  /// Returns the error for a directory that other processes or threads keep busy.
  static func busy(
    _ directory: String, reason: String,
    remedy: String = "Resume or end suspended processes that use the directory", cause: LMDBError? = nil
  ) -> StoreError {
    StoreError(.busy, directory: directory, reason: reason, remedy: remedy, cause: cause)
  }

  /// Returns the error for an LMDB call that failed while the store was opened or flushed.
  static func storage(_ cause: LMDBError, directory: String, doing what: String) -> StoreError {
    let cause = ProcessLimits.cause(of: cause, writing: "\(directory)/\(DataFile.name)")
    if let error = ProcessLimits.error(cause.code, cause, directory: directory, doing: what) { return error }
    return switch cause.code {
    case .accessDenied:
      StoreError(
        .unusableDirectory, directory: directory, reason: "\(what) is not permitted",
        remedy: "Give this user read and write permission to the directory and its files, or choose another directory",
        cause: cause)
    case .readersFull:
      .busy(directory, reason: "\(what) found no reader slot: other processes have all of them", cause: cause)
    case .temporarilyUnavailable where cause.function == "flock":
      .busy(directory, reason: "another process has been opening or closing it for too long", cause: cause)
    case .temporarilyUnavailable where cause.function == "mdb_env_close":
      .busy(
        directory, reason: "this process still reads the data that it must open again",
        remedy: "Try again when the present lookups have ended", cause: cause)
    case .unsupportedLibrary:
      StoreError(
        .unsupportedSystem, directory: directory, reason: "\(what) failed", remedy: "Install a version 0.9 of liblmdb",
        cause: cause)
    case _ where cause.isOutOfSpace:
      StoreError(
        .storage, directory: directory, reason: "\(what) failed because the disk is full or failing",
        remedy: "Free space or choose another disk", cause: cause)
    default:
      StoreError(
        .storage, directory: directory, reason: "\(what) failed",
        remedy:
          "Run 'urlcache verify' on the directory; if the error persists, delete the directory, which is only a cache",
        cause: cause)
    }
  }
}

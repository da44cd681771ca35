import LMDB

/// Why a store cannot be opened or flushed: what failed, why, what to do now, and where.
///
/// Its description names the directory but never a URL, a header field or a body.
public struct StoreError: Error, Sendable, Hashable {
  /// The kind of failure, to switch on. More may come.
  public enum Code: Sendable, Hashable {
    /// The directory cannot be made, is not a directory, or may not be written.
    case unusableDirectory
    /// The directory is a symbolic link or belongs to someone else.
    case untrustedDirectory
    /// `data.mdb` is there and is not a store of this project.
    case foreignFile
    /// There is no store, and none was to be made: ``ResponseStore/Options/opensExistingOnly``.
    case missing
    /// The data is damaged, and was not to be set aside: ``ResponseStore/Options/opensExistingOnly``.
    case damaged
    /// The data has another version, and was not to be set aside: ``ResponseStore/Options/opensExistingOnly``.
    case otherVersion
    /// Another process uses the directory with another version of the format.
    case otherVersionInUse
    /// A process of another PID namespace, as of another container, uses the directory.
    case otherProcessNamespace
    /// Another process uses the directory, and its file is damaged.
    case damagedAndInUse
    /// Another process kept the directory locked for too long while opening it.
    case busy
    /// The store was given up while it was open, after damage or a removal that could not be written down.
    case givenUp
    /// LMDB or the file system failed.
    case storage
  }

  /// The kind of failure.
  public let code: Code
  /// The directory of the store.
  public let directory: String
  /// What failed and why.
  public let reason: String
  /// What to do now.
  public let remedy: String
  /// The failing LMDB call, if there was one.
  public let cause: LMDBError?

  init(_ code: Code, directory: String, reason: String, remedy: String, cause: LMDBError? = nil) {
    self.code = code
    self.directory = directory
    self.reason = reason
    self.remedy = remedy
    self.cause = cause
  }
}

extension StoreError: CustomStringConvertible {
  /// One sentence each for what failed and what to do, and the failing call.
  public var description: String {
    var text = "The response store at \(directory) failed: \(reason). \(remedy)."
    if let cause { text += " (\(cause))" }
    return text
  }
}

extension StoreError {
  /// An LMDB call failed while the store was opened or flushed.
  static func storage(_ cause: LMDBError, directory: String, doing what: String) -> StoreError {
    switch cause.code {
    case .accessDenied:
      StoreError(
        .unusableDirectory, directory: directory, reason: "\(what) is not permitted",
        remedy: "Give this user read and write permission to the directory and its files, or choose another directory",
        cause: cause)
    case .readersFull:
      StoreError(
        .busy, directory: directory, reason: "\(what) found no reader slot: other processes have all of them",
        remedy: "See whether processes that use the directory are stopped, and let them go on or end them", cause: cause
      )
    case .temporarilyUnavailable where cause.function == "flock":
      StoreError(
        .busy, directory: directory, reason: "another process has been opening or closing it for too long",
        remedy: "See whether a process that uses the directory is stopped, and let it go on or end it", cause: cause)
    case _ where cause.isLackOfRoom:
      StoreError(
        .storage, directory: directory, reason: "\(what) met a full or failing disk",
        remedy: "Make room or choose another disk", cause: cause)
    default:
      StoreError(
        .storage, directory: directory, reason: "\(what) failed",
        remedy: "Run 'urlcache verify' on the directory; if it stays so, delete the directory, as it is a cache",
        cause: cause)
    }
  }
}

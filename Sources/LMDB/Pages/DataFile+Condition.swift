extension DataFile {
  /// The condition of a data file, determined without LMDB.
  public enum Condition: Sendable, Hashable, CustomStringConvertible {
    /// There is no file. LMDB creates one.
    case missing
    /// The file has no bytes. LMDB initializes it.
    case empty
    /// No error was found.
    case healthy
    /// The file ends before its last page: it was truncated, or never written completely.
    case tooShort(byteCount: Int, neededByteCount: Int)
    /// The file is not an LMDB file.
    case notLMDB
    /// The file was written by a version of LMDB with another format.
    case otherVersion(UInt32)
    /// The file was written on a machine with another page size.
    case otherPageSize(UInt32)
    /// The file's pages exceed the map.
    case largerThanMap(byteCount: Int, mapByteCount: Int)
    /// The meta pages are inconsistent; the text describes how.
    case implausible(String)
    /// The path is a directory, a pipe or the like.
    case notRegularFile
    /// The file belongs to another user, with this user ID.
    case otherOwner(UInt32)
    /// The operating system refuses reading.
    case unreadable(LMDBError)

    /// Whether LMDB can open or create the file.
    public var isUsable: Bool {
      switch self {
      case .missing, .empty, .healthy: true
      default: false
      }
    }

    /// The condition as a predicate for a sentence about the file.
    public var description: String {
      switch self {
      case .missing: "is missing"
      case .empty: "is empty"
      case .healthy: "is healthy"
      case .tooShort(let byteCount, let needed): "has \(byteCount) bytes and should have at least \(needed)"
      case .notLMDB: "is not an LMDB file"
      case .otherVersion(let version): "has LMDB's format \(version) instead of 1"
      case .otherPageSize(let byteCount): "was written with pages of \(byteCount) bytes"
      case .largerThanMap(let byteCount, let map): "holds \(byteCount) bytes, more than the map's \(map)"
      case .implausible(let reason): "is corrupt: \(reason)"
      case .notRegularFile: "is not a regular file"
      case .otherOwner(let user): "belongs to user \(user)"
      case .unreadable(let error): "cannot be read: \(error)"
      }
    }
  }
}

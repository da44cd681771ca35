extension DataFile {
  /// What a data file looks like from outside.
  public enum Condition: Sendable, Hashable, CustomStringConvertible {
    /// There is no file. LMDB makes a new one.
    case missing
    /// There is a file of no bytes. LMDB fills it.
    case empty
    /// Nothing speaks against opening it.
    case healthy
    /// It ends before its last page: it was cut, or never written to the end.
    case tooShort(byteCount: Int, neededByteCount: Int)
    /// It is something else than an LMDB file.
    case notLMDB
    /// It was written by a version of LMDB with another format.
    case otherVersion(UInt32)
    /// It was written on a machine with pages of another size.
    case otherPageSize(UInt32)
    /// It holds more than the map has room for.
    case largerThanMap(byteCount: Int, mapByteCount: Int)
    /// Its meta pages contradict themselves; the text says how.
    case implausible(String)
    /// It is a directory, a pipe or the like.
    case notRegularFile
    /// It belongs to another user, whose number is given.
    case otherOwner(UInt32)
    /// The operating system does not let it be read.
    case unreadable(LMDBError)

    /// Whether LMDB can open the file, or make it.
    public var isUsable: Bool {
      switch self {
      case .missing, .empty, .healthy: true
      default: false
      }
    }

    /// What was found, as the rest of a sentence that begins with the file.
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
      case .implausible(let reason): "is damaged: \(reason)"
      case .notRegularFile: "is not a regular file"
      case .otherOwner(let user): "belongs to user \(user)"
      case .unreadable(let error): "cannot be read: \(error)"
      }
    }
  }
}

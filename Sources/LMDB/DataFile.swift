internal import Glibc

/// What can be known of `data.mdb` without opening it with LMDB.
///
/// `mdb_env_open` looks at little: a cut or damaged file can open well and end the process at a later read.
public enum DataFile {
  /// The name of the data file in an environment's directory.
  public static let name = "data.mdb"

  /// Looks at a data file before it is opened: length, and both meta pages.
  ///
  /// Finds files that LMDB would crash on from the start; damage within pages it cannot see. It reads the data file
  /// only, never `lock.mdb`, and needs no lock: a file that a live process is writing is looked at again before it is
  /// found bad. Costs a few system calls.
  /// - Parameters:
  ///   - path: of the data file itself, ``name`` in the environment's directory.
  ///   - mapByteCount: the size of the map that the file is about to be opened with, in bytes.
  /// - Returns: what was found; ``Condition/isUsable`` sums it up.
  public static func inspect(path: String, mapByteCount: Int) -> Condition {
    var condition = Condition.missing
    // A commit may fall between the reads of length and of meta pages, or of one and the other.
    for _ in 0..<3 {
      condition = inspectOnce(path: path, mapByteCount: mapByteCount)
      if condition.isUsable { break }
    }
    return condition
  }

  private static func inspectOnce(path: String, mapByteCount: Int) -> Condition {
    // Not to wait for the writer of a pipe that lies there.
    let descriptor = FileDescriptor.open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)
    guard descriptor >= 0 else {
      return errno == ENOENT ? .missing : .unreadable(.system("open"))
    }
    defer { close(descriptor) }
    var status = stat()
    guard fstat(descriptor, &status) == 0 else { return .unreadable(.system("fstat")) }
    guard status.st_mode & S_IFMT == S_IFREG else { return .notRegularFile }
    guard status.st_uid == geteuid() else { return .otherOwner(status.st_uid) }
    let byteCount = Int(status.st_size)
    if byteCount == 0 { return .empty }

    let page = Int(getpagesize())
    var metas: [MetaPage] = []
    for number in 0..<2 {
      var bytes = [UInt8](repeating: 0, count: MetaPage.byteCount)
      let read = bytes.withUnsafeMutableBytes { pread(descriptor, $0.baseAddress, $0.count, off_t(number * page)) }
      guard read >= 0 else { return .unreadable(.system("pread")) }
      let meta = MetaPage(bytes)
      if read < MetaPage.byteCount {
        // Of a short text, say what it is rather than what it lacks.
        let isForeign = number == 0 && read >= MetaPage.magicEnd && !meta.isMeta
        return isForeign ? .notLMDB : .tooShort(byteCount: byteCount, neededByteCount: 2 * page)
      }
      if let condition = meta.condition(number: number, pageByteCount: page, mapByteCount: mapByteCount) {
        return condition
      }
      metas.append(meta)
    }
    let (older, newer) =
      metas[0].transactionID <= metas[1].transactionID ? (metas[0], metas[1]) : (metas[1], metas[0])
    // Commits take turns between the two pages; only a new file has twice the same.
    guard newer.transactionID == 0 || newer.transactionID - older.transactionID == 1 else {
      return .implausible("its two meta pages are not of successive commits")
    }
    let needed = (Int(newer.lastPage) + 1) * page
    guard byteCount >= needed else { return .tooShort(byteCount: byteCount, neededByteCount: needed) }
    return .healthy
  }
}

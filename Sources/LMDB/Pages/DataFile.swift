internal import Glibc
internal import SystemFiles

/// Checks of `data.mdb` without LMDB.
///
/// `mdb_env_open` checks little: a truncated or corrupt file can be opened and crash the process at a later read.
public enum DataFile {
  /// The name of the data file in an environment's directory.
  public static let name = "data.mdb"

  /// The maximum size of a page in bytes. LMDB has pages of this size where those of the operating system are larger.
  package static let maximumPageByteCount = 32 << 10

  /// Checks the length and both meta pages of a data file before it is opened.
  ///
  /// Finds files that would crash LMDB from the start, but not corruption within other pages. Reads only the data file,
  /// never `lock.mdb`, and needs no lock. If the result is an error, it checks again, because a process may be writing
  /// the file. Costs a few system calls.
  /// - Parameters:
  ///   - path: The path of the data file itself, ``name`` in the environment's directory.
  ///   - mapByteCount: The map size in bytes for the file.
  /// - Returns: The condition of the file; see ``Condition/isUsable``.
  public static func inspect(path: String, mapByteCount: Int) -> Condition {
    var condition = Condition.missing
    // A commit may happen between the reads of the length and the meta pages.
    for _ in 0..<3 {
      condition = inspectOnce(path: path, mapByteCount: mapByteCount)
      if condition.isUsable { break }
    }
    return condition
  }

  /// Returns the size of the pages in use, which can be less than that of the file; 0 if it cannot be read.
  ///
  /// - Parameter path: The path of the data file.
  public static func usedByteCount(path: String) -> Int {
    let descriptor = FileDescriptor.open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)
    guard descriptor >= 0 else { return 0 }
    defer { close(descriptor) }
    let page = Int(getpagesize())
    return (0..<2).reduce(0) { largest, number in
      let (meta, readCount) = readMeta(number, descriptor)
      return readCount == MetaPage.byteCount && meta.isMeta && meta.lastPage < UInt64(Int.max / page)
        ? max(largest, (Int(meta.lastPage) + 1) * page) : largest
    }
  }

  static func readMeta(_ number: Int, _ descriptor: CInt) -> (meta: MetaPage, readCount: Int) {
    var bytes = [UInt8](repeating: 0, count: MetaPage.byteCount)
    let offset = off_t(number * Int(getpagesize()))
    let readCount = bytes.withUnsafeMutableBytes { pread(descriptor, $0.baseAddress, $0.count, offset) }
    return (MetaPage(bytes), readCount)
  }

  private static func inspectOnce(path: String, mapByteCount: Int) -> Condition {
    // O_NONBLOCK: do not wait for the writer of a pipe at this path.
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
      let (meta, read) = readMeta(number, descriptor)
      guard read >= 0 else { return .unreadable(.system("pread")) }
      if read < MetaPage.byteCount {
        // A short text file is reported as foreign, not as too short.
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
    // Commits alternate between the two pages. Only a new file has two equal ones.
    guard newer.transactionID == 0 || newer.transactionID - older.transactionID == 1 else {
      return .implausible("its two meta pages are not of successive commits")
    }
    guard newer.hasPlausibleRoots else { return .implausible("a tree's root is outside of the pages in use") }
    let needed = (Int(newer.lastPage) + 1) * page
    guard byteCount >= needed else { return .tooShort(byteCount: byteCount, neededByteCount: needed) }
    return .healthy
  }
}

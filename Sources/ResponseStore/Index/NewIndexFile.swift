import Glibc
import LMDB
import SystemFiles

/// An index file under another name, so that no process sees an unfinished one.
struct NewIndexFile {
  let index: RecordIndex
  let inode: UInt64
  private let path: String

  /// Creates and maps a file without records, and touches each page of it.
  ///
  /// - Parameters:
  ///   - path: The path at which the file will be put in place.
  ///   - owner: The identity of the data file.
  /// - Throws: ``LMDBError`` with the system call that failed.
  init(path: String, cellCount: Int, owner: UInt64) throws(LMDBError) {
    self.path = path
    let temporaryPath = Self.temporaryPath(of: path)
    // A process that died, or that was suspended for long, left this file.
    unlink(temporaryPath)
    let descriptor = FileDescriptor.open(
      temporaryPath, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode: 0o600)
    guard descriptor >= 0 else { throw LMDBError(code: .init(rawValue: errno), function: "open") }
    defer { close(descriptor) }
    reachedIndexStep()
    // Without that, a mapped page that finds no space raises a signal instead of an error.
    let allocation = MappedFileBlocks.allocateEmptyFile(
      descriptor, byteCount: IndexLayout.byteCount(cellCount: cellCount))
    var status = stat()
    guard allocation == 0, fstat(descriptor, &status) == 0,
      let index = RecordIndex(descriptor: descriptor, cellCount: cellCount)
    else {
      let number = allocation == 0 ? errno : allocation
      unlink(temporaryPath)
      throw LMDBError(code: .init(rawValue: number), function: allocation == 0 ? "mmap" : "posix_fallocate")
    }
    index.touch()
    index[IndexLayout.Word.magic] = IndexLayout.magic
    index[IndexLayout.Word.owner] = owner
    index[IndexLayout.Word.cellCount] = UInt64(cellCount)
    index[IndexLayout.Word.fileNumber] = .random(in: 1 ... .max)
    index[IndexLayout.Word.inode] = UInt64(status.st_ino)
    index[IndexLayout.Word.device] = UInt64(status.st_dev)
    (self.index, inode) = (index, UInt64(status.st_ino))
  }

  /// The other name of a new file.
  static func temporaryPath(of path: String) -> String { path + ".new" }

  private var temporaryPath: String { Self.temporaryPath(of: path) }

  /// Whether no other process has replaced the file with its own.
  private var exists: Bool {
    var status = stat()
    return stat(temporaryPath, &status) == 0 && UInt64(status.st_ino) == inode
  }

  /// Renames the file to the path of the index. Returns false if that fails.
  func putInPlace() -> Bool {
    guard exists, rename(temporaryPath, path) == 0 else { return false }
    reachedIndexStep()
    return true
  }

  func delete() {
    if exists { unlink(temporaryPath) }
  }
}

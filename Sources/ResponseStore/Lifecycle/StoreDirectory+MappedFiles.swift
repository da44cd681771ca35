import CacheActivity
import Glibc
import LMDB
import SystemFiles

/// The blocks of the files that processes map for writing; see ``MappedFileBlocks``. LMDB's lock file is not among
/// them: opening the environment does the same for it.
extension StoreDirectory {
  /// The name of each file, and whether the store works without its contents.
  private var mappedFiles: [(path: String, isDispensable: Bool)] {
    [
      (path(of: Self.lockFileName), false), (dataPath(of: RemovalLog.name), false),
      (dataPath(of: IndexLayout.fileName), true), (path(of: ActivityFile.name), true),
      (path(of: EventWatch.fileName), true),
    ]
  }

  /// The maximum size of an index that is written again while the store is opened. A larger one is built behind the
  /// first lookups.
  private static let maximumByteCount = 16 << 20

  /// Gives the files blocks of their own, which they lack after the directory was copied, or a snapshot of it was made.
  ///
  /// Call this with the open lock and while no other process uses the directory.
  ///
  /// - Parameter mayDelete: Whether a dispensable file is deleted if there is no space for its blocks, or too large.
  /// - Returns: Whether the file of the lock was replaced.
  /// - Throws: ``StoreError`` if there is no space.
  func giveMappedFilesOwnBlocks(mayDelete: Bool) throws(StoreError) -> Bool {
    var isLockFileNew = false
    for (path, isDispensable) in mappedFiles {
      let limit = mayDelete && isDispensable ? Self.maximumByteCount : .max
      if let isNew = MappedFile.takeOwnBlocks(path: path, maximumByteCount: limit) {
        if isNew, path == mappedFiles[0].path { isLockFileNew = true }
      } else if mayDelete, isDispensable {
        unlink(path)
      } else {
        throw .unusable(self.path, doing: "allocating disk space for \(path)", errno)
      }
    }
    if isLockFileNew { Self.synchronize(path) }
    return isLockFileNew
  }
}

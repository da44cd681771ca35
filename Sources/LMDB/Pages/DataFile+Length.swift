internal import CLMDB
internal import Glibc
internal import SystemFiles

extension DataFile {
  /// The maximum number of pages of the free list that ``extendFileToLastPage(path:)`` reads.
  private static let maximumReadCount = 2048

  /// Extends a file to its last page, if the missing pages are free.
  ///
  /// liblmdb may count pages at the end that it never wrote, and a process may die before
  /// ``LMDBEnvironment/extendFileToLastPage()``. Call this while no process has the file open.
  /// - Parameter path: The path of the data file.
  /// - Returns: Whether the file is long enough now. False if pages in use are missing, or if the free list is very long.
  public static func extendFileToLastPage(path: String) -> Bool {
    let descriptor = FileDescriptor.open(path, O_RDWR | O_CLOEXEC)
    guard descriptor >= 0 else { return false }
    defer { close(descriptor) }
    do throws(UnexpectedPage) {
      let walk = try TreeWalk(descriptor: descriptor)
      guard try lacksOnlyFreePages(walk) else { return false }
      return ftruncate(descriptor, off_t((Int(walk.lastPage) + 1) * walk.pageByteCount)) == 0
    } catch {
      return false
    }
  }

  /// Whether all pages in use that the file lacks are in its free list.
  private static func lacksOnlyFreePages(_ walk: TreeWalk) throws(UnexpectedPage) -> Bool {
    let present = max(walk.filePageCount, 2)
    let tree = try walk.freeList()
    guard present <= walk.lastPage, walk.lastPage - present < 1 << 16, tree.root != .max else { return false }
    var missing = Set(present...walk.lastPage)
    // The newest entry contains the pages that the last commit freed. It is the last one in the list.
    var pages = [(number: tree.root, level: tree.depth)]
    var readCount = 0
    while let (number, level) = pages.popLast() {
      readCount += 1
      guard readCount < maximumReadCount else { return false }
      let (page, nodes) = try walk.readNodes(of: number, level: level)
      guard level == 1 else {
        for node in nodes { pages.append((try page.child(node), level - 1)) }
        continue
      }
      for node in nodes.reversed() {
        // A count, followed by as many page numbers.
        let value = TreePage(bytes: Array(try walk.value(of: page, node)))
        let count: UInt64 = try value.load(0)
        guard count < UInt64(value.bytes.count / 8) else { return false }
        for index in 0..<Int(count) { missing.remove(try value.load(8 + index * 8)) }
        if missing.isEmpty { return true }
      }
    }
    return false
  }
}

extension LMDBEnvironment {
  /// Returns the descriptor of the data file. Call this within a transaction, which keeps the environment open.
  func dataDescriptor() throws(LMDBError) -> CInt {
    var descriptor: CInt = -1
    let rc = mdb_env_get_fd(pointer, &descriptor)
    guard rc == 0 else { throw LMDBError(rc, "mdb_env_get_fd") }
    return descriptor
  }
}

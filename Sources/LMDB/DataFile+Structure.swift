internal import CLMDB
internal import Glibc

extension Environment {
  /// Walks all trees of the data as the last commit left them, as ``DataFile/findBrokenStructure(path:)`` does before they are mapped.
  ///
  /// Holds the write lock, so that writers of all processes wait; readers do not.
  /// - Returns: what is wrong, as a phrase; nil if liblmdb can follow every pointer.
  /// - Throws: ``LMDBError``: `mdb_txn_begin`, `mdb_env_get_fd`.
  /// - Complexity: O(pages of branches and leaves), one read of the file for each.
  public func findBrokenStructure() throws(LMDBError) -> String? {
    // A write transaction that writes nothing keeps the pages as they are.
    try write { (_) throws(LMDBError) -> String? in
      var descriptor: CInt = -1
      let rc = mdb_env_get_fd(pointer, &descriptor)
      guard rc == 0 else { throw LMDBError(rc, "mdb_env_get_fd") }
      return DataFile.findBrokenStructure(descriptor: descriptor)
    }
  }
}

extension DataFile {
  /// Walks all trees of a data file, and its list of free pages, by plain reads: liblmdb trusts every page that it maps, and
  /// ends the process on one that is cut, zeroed or scribbled on.
  ///
  /// To be called while no process has the file open, after ``inspect(path:mapByteCount:)`` found it healthy or too short: a
  /// file may be shorter than it claims and yet hold all that is in use. Bodies in overflow pages are not read, only their
  /// first bytes; what they hold is for checksums to tell.
  /// - Parameter path: of the data file itself.
  /// - Returns: what is wrong, as a phrase; nil if liblmdb can follow every pointer.
  /// - Complexity: O(pages of branches and leaves), one read of the file for each.
  public static func findBrokenStructure(path: String) -> String? {
    let descriptor = open(path, O_RDONLY | O_CLOEXEC)
    guard descriptor >= 0 else { return "it cannot be read" }
    defer { close(descriptor) }
    return findBrokenStructure(descriptor: descriptor)
  }

  static func findBrokenStructure(descriptor: CInt) -> String? {
    var walk = StructureWalk(descriptor: descriptor, pageByteCount: Int(getpagesize()))
    do throws(BrokenStructure) {
      try walk.run()
      return nil
    } catch {
      return error.reason
    }
  }
}

private struct BrokenStructure: Error {
  let reason: String

  init(_ reason: String) { self.reason = reason }
}

/// One page, or the beginning of one. LMDB 0.9 on 64-bit machines, integers in the machine's order:
///
///     offset  bytes  what
///          0      8  its own number
///         10      2  flags: branch 1, leaf 2, overflow 4
///         12      2  where the list of nodes ends; an overflow page has a count of pages here, of 4 bytes
///         14      2  where the nodes begin
///         16         offsets of the nodes, 2 bytes each
///
/// A node: 4 bytes of size or page number, 2 bytes of flags (in a branch the high bytes of the page number), 2 bytes of
/// key length, key, value.
private struct Page {
  var bytes: [UInt8]

  func load<T: BitwiseCopyable>(_ offset: Int, as type: T.Type = T.self) throws(BrokenStructure) -> T {
    guard offset >= 0, offset + MemoryLayout<T>.size <= bytes.count else {
      throw BrokenStructure("a node reaches out of its page")
    }
    return bytes.span.bytes.unsafeLoadUnaligned(fromByteOffset: offset, as: T.self)
  }
}

/// What the file says of a tree; 48 bytes, in a meta page or as the value of a named table.
private struct TreeRecord {
  static let byteCount = 48
  let depth: Int
  let branchCount, leafCount, overflowCount, entryCount, root: UInt64

  init(_ page: Page, at offset: Int) throws(BrokenStructure) {
    depth = Int(try page.load(offset + 6, as: UInt16.self))
    branchCount = try page.load(offset + 8)
    leafCount = try page.load(offset + 16)
    overflowCount = try page.load(offset + 24)
    entryCount = try page.load(offset + 32)
    root = try page.load(offset + 40)
  }
}

private struct StructureWalk {
  enum Kind {
    case freeList, main, table
  }

  private struct Counts {
    var branches: UInt64 = 0
    var leaves: UInt64 = 0
    var overflows: UInt64 = 0
    var entries: UInt64 = 0
  }

  let descriptor: CInt
  let pageByteCount: Int
  private var lastPage: UInt64 = 0
  /// How many whole pages the file has.
  private var pageCount: UInt64 = 0
  /// Pages that a tree or the free list has claimed.
  private var isClaimed: [Bool] = []
  private var freePages: [UInt64] = []
  private var tables: [TreeRecord] = []

  init(descriptor: CInt, pageByteCount: Int) {
    self.descriptor = descriptor
    self.pageByteCount = pageByteCount
  }

  mutating func run() throws(BrokenStructure) {
    let first = try read(0, byteCount: MetaPage.byteCount)
    let second = try read(1, byteCount: MetaPage.byteCount)
    let isSecondNewer = try second.load(144, as: UInt64.self) > first.load(144, as: UInt64.self)
    let meta = isSecondNewer ? second : first
    lastPage = try meta.load(136)
    guard lastPage < 1 << 40 else { throw BrokenStructure("it claims to have too many pages") }
    var status = stat()
    guard fstat(descriptor, &status) == 0 else { throw BrokenStructure("it cannot be looked at") }
    pageCount = UInt64(Int(status.st_size) / pageByteCount)
    isClaimed = [Bool](repeating: false, count: Int(lastPage) + 1)
    try walk(TreeRecord(meta, at: 40), kind: .freeList)
    try walk(TreeRecord(meta, at: 88), kind: .main)
    for table in tables { try walk(table, kind: .table) }
    // Free pages need not be in the file.
    pageCount = .max
    for page in freePages { try claim(page) }
  }

  private func read(_ number: UInt64, byteCount: Int) throws(BrokenStructure) -> Page {
    let descriptor = descriptor
    let offset = off_t(Int(number) * pageByteCount)
    var done = 0
    let bytes = [UInt8](unsafeUninitializedCapacity: byteCount) { buffer, count in
      done = pread(descriptor, buffer.baseAddress, byteCount, offset)
      count = max(done, 0)
    }
    guard done == byteCount else { throw BrokenStructure("page \(number) cannot be read") }
    return Page(bytes: bytes)
  }

  private mutating func claim(_ number: UInt64, count: UInt64 = 1) throws(BrokenStructure) {
    guard number >= 2, number <= lastPage, count <= lastPage + 1 - number, number + count <= pageCount else {
      throw BrokenStructure("a pointer leads out of the file")
    }
    for page in Int(number)..<Int(number + count) {
      guard !isClaimed[page] else { throw BrokenStructure("page \(page) is used twice") }
      isClaimed[page] = true
    }
  }

  private mutating func walk(_ tree: TreeRecord, kind: Kind) throws(BrokenStructure) {
    var counts = Counts()
    if tree.root != .max {
      guard (1...32).contains(tree.depth) else { throw BrokenStructure("a tree cannot be \(tree.depth) deep") }
      try walk(page: tree.root, level: tree.depth, kind: kind, counts: &counts)
    }
    guard counts.branches == tree.branchCount, counts.leaves == tree.leafCount,
      counts.overflows == tree.overflowCount, counts.entries == tree.entryCount
    else { throw BrokenStructure("a tree has not the pages and entries that it claims") }
  }

  private mutating func walk(
    page number: UInt64, level: Int, kind: Kind, counts: inout Counts
  ) throws(BrokenStructure) {
    try claim(number)
    let page = try read(number, byteCount: pageByteCount)
    let isLeaf = level == 1
    guard try page.load(0, as: UInt64.self) == number, try page.load(10, as: UInt16.self) == (isLeaf ? 2 : 1) else {
      throw BrokenStructure("page \(number) is not the \(isLeaf ? "leaf" : "branch") that it should be")
    }
    let lower = Int(try page.load(12, as: UInt16.self))
    let upper = Int(try page.load(14, as: UInt16.self))
    let nodeCount = (lower - 16) / 2
    guard lower <= upper, upper <= pageByteCount, nodeCount >= (isLeaf ? 1 : 2) else {
      throw BrokenStructure("the nodes of page \(number) lie wrong")
    }
    var lastKey: Range<Int>?
    for index in 0..<nodeCount {
      let node = Int(try page.load(16 + index * 2, as: UInt16.self))
      let keyByteCount = Int(try page.load(node + 6, as: UInt16.self))
      let key = (node + 8)..<(node + 8 + keyByteCount)
      guard node >= upper, key.upperBound <= pageByteCount, keyByteCount <= 511, keyByteCount > 0 || !isLeaf else {
        throw BrokenStructure("a node of page \(number) lies wrong")
      }
      // The first key of a branch stands for everything below the second, and may be empty.
      if isLeaf || index > 0 {
        if let lastKey, !isAscending(page, lastKey, key, kind: kind) {
          throw BrokenStructure("the keys of page \(number) are out of order")
        }
        lastKey = key
      }
      if isLeaf {
        counts.entries += 1
        try checkValue(page, node: node, at: key.upperBound, kind: kind, counts: &counts)
      } else {
        let low = UInt64(try page.load(node, as: UInt32.self))
        let child = low | UInt64(try page.load(node + 4, as: UInt16.self)) << 32
        try walk(page: child, level: level - 1, kind: kind, counts: &counts)
      }
    }
    if isLeaf { counts.leaves += 1 } else { counts.branches += 1 }
  }

  private func isAscending(_ page: Page, _ left: Range<Int>, _ right: Range<Int>, kind: Kind) -> Bool {
    if kind == .freeList {
      // Numbers of transactions, in the machine's order.
      guard left.count == 8, right.count == 8 else { return false }
      return page.bytes[left].reversed().lexicographicallyPrecedes(page.bytes[right].reversed())
    }
    return page.bytes[left].lexicographicallyPrecedes(page.bytes[right])
  }

  private mutating func checkValue(
    _ page: Page, node: Int, at offset: Int, kind: Kind, counts: inout Counts
  ) throws(BrokenStructure) {
    let byteCount = Int(try page.load(node, as: UInt32.self))
    let flags = try page.load(node + 4, as: UInt16.self)
    switch flags {
    case 0:
      guard offset + byteCount <= pageByteCount else { throw BrokenStructure("a value reaches out of its page") }
      if kind == .freeList { try noteFreePages(page, at: offset, byteCount: byteCount) }
    case 1:
      let number: UInt64 = try page.load(offset)
      let pageCount = UInt64((byteCount + 16 + pageByteCount - 1) / pageByteCount)
      try claim(number, count: pageCount)
      let start = try read(number, byteCount: 16)
      guard try start.load(0, as: UInt64.self) == number, try start.load(10, as: UInt16.self) == 4,
        UInt64(try start.load(12, as: UInt32.self)) == pageCount
      else { throw BrokenStructure("page \(number) is not the overflow page that it should be") }
      counts.overflows += pageCount
      if kind == .freeList {
        let value = try read(number, byteCount: 16 + byteCount)
        try noteFreePages(value, at: 16, byteCount: byteCount)
      }
    case 2 where kind == .main && byteCount == TreeRecord.byteCount:
      tables.append(try TreeRecord(page, at: offset))
    default:
      throw BrokenStructure("a value has impossible flags")
    }
  }

  /// An entry of the free list: a count, and so many page numbers.
  private mutating func noteFreePages(_ page: Page, at offset: Int, byteCount: Int) throws(BrokenStructure) {
    let count: UInt64 = try page.load(offset)
    guard byteCount >= 8, count <= UInt64(byteCount / 8 - 1) else {
      throw BrokenStructure("the list of free pages is broken")
    }
    for index in 0..<Int(count) { freePages.append(try page.load(offset + 8 + index * 8)) }
  }
}

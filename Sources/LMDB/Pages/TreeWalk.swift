internal import Glibc

/// A page that cannot be read, or is not what the page that leads to it says.
struct UnexpectedPage: Error {}

/// A page or its beginning. LMDB 0.9 on 64-bit machines, with integers in the machine's byte order:
///
///     offset  bytes  content
///          0      8  page number
///         10      2  flags: branch 1, leaf 2, overflow 4
///         12      2  end of the node offsets; an overflow page has a page count of 4 bytes here
///         14      2  beginning of the nodes
///         16         offsets of the nodes, 2 bytes each
///
/// A node has 4 bytes of size or page number, 2 bytes of flags, 2 bytes of key length, the key, and the value. In a
/// branch, the flags are the high bytes of the page number.
struct TreePage {
  var bytes: [UInt8]

  func load<T: BitwiseCopyable>(_ offset: Int, as type: T.Type = T.self) throws(UnexpectedPage) -> T {
    guard offset >= 0, offset + MemoryLayout<T>.size <= bytes.count else { throw UnexpectedPage() }
    return bytes.span.bytes.unsafeLoadUnaligned(fromByteOffset: offset, as: T.self)
  }

  struct Node {
    let offset: Int
    let key: Range<Int>
  }

  /// Returns the bytes of a node's key.
  func key(_ node: Node) -> [UInt8] { Array(bytes[node.key]) }

  /// Returns the page to which a node of a branch leads.
  func child(_ node: Node) throws(UnexpectedPage) -> UInt64 {
    UInt64(try load(node.offset, as: UInt32.self)) | UInt64(try load(node.offset + 4, as: UInt16.self)) << 32
  }

  /// Returns the size of the value of a leaf's node.
  func valueByteCount(_ node: Node) throws(UnexpectedPage) -> Int { Int(try load(node.offset, as: UInt32.self)) }

  /// Whether the value of a leaf's node is on overflow pages, the first of which is named in the leaf.
  func isLargeValue(_ node: Node) throws(UnexpectedPage) -> Bool {
    try load(node.offset + 4, as: UInt16.self) == UInt16(1)
  }
}

/// Reads of the trees of a commit without the map: plain reads, which check that all positions are within the file.
struct TreeWalk {
  private let descriptor: CInt
  let pageByteCount = Int(getpagesize())
  private let meta: TreePage
  /// The number of the last page in use.
  let lastPage: UInt64
  /// The number of complete pages in the file.
  let filePageCount: UInt64

  /// The position of a tree, in a meta page or in the value of a named table.
  struct Tree {
    static let byteCount = 48
    let depth: Int
    /// The root page; all ones in an empty tree.
    let root: UInt64

    init(_ page: TreePage, at offset: Int) throws(UnexpectedPage) {
      depth = Int(try page.load(offset + 6, as: UInt16.self))
      root = try page.load(offset + 40)
      guard depth <= 32 else { throw UnexpectedPage() }
    }
  }

  /// - Parameter commit: The number of the commit; nil for the last one. Its meta page may be replaced by now.
  init(descriptor: CInt, commit: UInt64? = nil) throws(UnexpectedPage) {
    self.descriptor = descriptor
    let size = pageByteCount
    func readMeta(_ number: UInt64) throws(UnexpectedPage) -> (page: TreePage, commit: UInt64) {
      let page = try Self.read(descriptor, Int(number) * size, byteCount: MetaPage.byteCount)
      return (page, try page.load(144))
    }
    let metas = [try readMeta(0), try readMeta(1)]
    let wanted = commit ?? max(metas[0].commit, metas[1].commit)
    let again = try readMeta(wanted % 2)
    meta = again.page
    // Another process may be writing a later commit's meta page here.
    guard again.commit == wanted, again.page.bytes == metas[Int(wanted % 2)].page.bytes else { throw UnexpectedPage() }
    lastPage = try meta.load(136)
    var status = stat()
    guard lastPage < 1 << 40, fstat(descriptor, &status) == 0 else { throw UnexpectedPage() }
    filePageCount = UInt64(Int(status.st_size) / pageByteCount)
  }

  /// The tree of the free list.
  func freeList() throws(UnexpectedPage) -> Tree { try Tree(meta, at: 40) }

  /// Returns the tree of a table; nil if there is none.
  func table(_ name: [UInt8]) throws(UnexpectedPage) -> Tree? {
    let main = try Tree(meta, at: 88)
    guard main.root != .max else { return nil }
    var number = main.root
    for level in (1...max(main.depth, 1)).reversed() {
      let (page, nodes) = try readNodes(of: number, level: level)
      if level > 1 {
        // The first key of a branch covers all keys below the second, and may be empty.
        let next = nodes.dropFirst().first { name.lexicographicallyPrecedes(page.key($0)) }
        let index = next.flatMap { next in nodes.firstIndex { $0.offset == next.offset } } ?? nodes.count
        number = try page.child(nodes[index - 1])
      } else if let node = nodes.first(where: { page.key($0) == name }) {
        guard try page.valueByteCount(node) == Tree.byteCount else { throw UnexpectedPage() }
        return try Tree(page, at: node.key.upperBound)
      }
    }
    return nil
  }

  /// Reads a branch, or a leaf for level 1.
  func readNodes(of number: UInt64, level: Int) throws(UnexpectedPage) -> (TreePage, [TreePage.Node]) {
    let page = try read(number, byteCount: pageByteCount)
    guard try page.load(0, as: UInt64.self) == number, try page.load(10, as: UInt16.self) == (level == 1 ? 2 : 1) else {
      throw UnexpectedPage()
    }
    let nodeCount = (Int(try page.load(12, as: UInt16.self)) - 16) / 2
    guard nodeCount >= 1 else { throw UnexpectedPage() }
    var nodes: [TreePage.Node] = []
    nodes.reserveCapacity(nodeCount)
    for index in 0..<nodeCount {
      let offset = Int(try page.load(16 + index * 2, as: UInt16.self))
      let key = (offset + 8)..<(offset + 8 + Int(try page.load(offset + 6, as: UInt16.self)))
      guard key.upperBound <= pageByteCount else { throw UnexpectedPage() }
      nodes.append(TreePage.Node(offset: offset, key: key))
    }
    return (page, nodes)
  }

  /// Returns the overflow pages of a leaf's node; nil if its value is in the leaf.
  func overflowPages(of page: TreePage, _ node: TreePage.Node) throws(UnexpectedPage) -> Range<UInt64>? {
    guard try page.isLargeValue(node) else { return nil }
    let first: UInt64 = try page.load(node.key.upperBound)
    let count = UInt64((try page.valueByteCount(node) + 16 + pageByteCount - 1) / pageByteCount)
    guard first >= 2, first < filePageCount, count <= filePageCount - first else { throw UnexpectedPage() }
    return first..<(first + count)
  }

  /// Returns the bytes of the value of a leaf's node.
  func value(of page: TreePage, _ node: TreePage.Node) throws(UnexpectedPage) -> ArraySlice<UInt8> {
    let byteCount = try page.valueByteCount(node)
    guard let pages = try overflowPages(of: page, node) else {
      guard node.key.upperBound + byteCount <= page.bytes.count else { throw UnexpectedPage() }
      return page.bytes[node.key.upperBound..<(node.key.upperBound + byteCount)]
    }
    return try read(pages.lowerBound, byteCount: 16 + byteCount).bytes[16...]
  }

  private func read(_ number: UInt64, byteCount: Int) throws(UnexpectedPage) -> TreePage {
    guard number >= 2, number <= lastPage, number < filePageCount else { throw UnexpectedPage() }
    return try Self.read(descriptor, Int(number) * pageByteCount, byteCount: byteCount)
  }

  private static func read(_ descriptor: CInt, _ offset: Int, byteCount: Int) throws(UnexpectedPage) -> TreePage {
    var done = 0
    let bytes = [UInt8](unsafeUninitializedCapacity: byteCount) { buffer, count in
      done = pread(descriptor, buffer.baseAddress, byteCount, off_t(offset))
      count = max(done, 0)
    }
    guard done == byteCount else { throw UnexpectedPage() }
    return TreePage(bytes: bytes)
  }
}

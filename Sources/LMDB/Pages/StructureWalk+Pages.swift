internal import Glibc

/// Reading and checking of single pages.
extension StructureWalk {
  // MARK: Meta pages

  func newestMeta() throws(BrokenStructure) -> StructurePage {
    let (first, second) = try metas()
    return try second.load(144, as: UInt64.self) > first.load(144, as: UInt64.self) ? second : first
  }

  /// Returns the meta page of a commit; nil if a later commit replaced it.
  func meta(ofCommit number: UInt64) throws(BrokenStructure) -> StructurePage? {
    for _ in 0..<3 {
      let (first, second) = try metas()
      let meta = number % 2 == 0 ? first : second
      guard try meta.load(144, as: UInt64.self) == number else { return nil }
      // Another process may be writing a later commit's meta page here.
      let again = try metas()
      if (number % 2 == 0 ? again.0 : again.1).bytes == meta.bytes { return meta }
    }
    return nil
  }

  private func metas() throws(BrokenStructure) -> (StructurePage, StructurePage) {
    (try read(0, byteCount: MetaPage.byteCount), try read(1, byteCount: MetaPage.byteCount))
  }

  // MARK: Pages

  private func read(_ number: UInt64, byteCount: Int) throws(BrokenStructure) -> StructurePage {
    let descriptor = descriptor
    let offset = off_t(Int(number) * pageByteCount)
    var done = 0
    let bytes = [UInt8](unsafeUninitializedCapacity: byteCount) { buffer, count in
      done = pread(descriptor, buffer.baseAddress, byteCount, offset)
      count = max(done, 0)
    }
    guard done == byteCount else { throw BrokenStructure("page \(number) cannot be read") }
    return StructurePage(bytes: bytes)
  }

  mutating func claim(_ number: UInt64, count: UInt64 = 1) throws(BrokenStructure) {
    guard number >= 2, number <= lastPage, count <= lastPage + 1 - number, number + count <= pageCount else {
      throw BrokenStructure("a pointer leads out of the file")
    }
    guard isClaimed != nil else { return }
    for page in Int(number)..<Int(number + count) {
      guard isClaimed?[page] == false else { throw BrokenStructure("page \(page) is used twice") }
      isClaimed?[page] = true
    }
  }

  func checkedDepth(_ tree: TreeRecord) throws(BrokenStructure) -> Int {
    guard (1...32).contains(tree.depth) else { throw BrokenStructure("a tree cannot be \(tree.depth) deep") }
    return tree.depth
  }

  /// Reads a page, and checks its number, its kind, and that its nodes are within the page, in order and in bounds.
  mutating func readNodes(
    of number: UInt64, level: Int, kind: Kind, bounds: Bounds
  ) throws(BrokenStructure) -> (StructurePage, [Node]) {
    try claim(number)
    readCount += 1
    let page = try read(number, byteCount: pageByteCount)
    let isLeaf = level == 1
    guard try page.load(0, as: UInt64.self) == number, try page.load(10, as: UInt16.self) == (isLeaf ? 2 : 1) else {
      throw BrokenStructure("page \(number) is not the \(isLeaf ? "leaf" : "branch") that it should be")
    }
    let lower = Int(try page.load(12, as: UInt16.self))
    let upper = Int(try page.load(14, as: UInt16.self))
    let nodeCount = (lower - 16) / 2
    guard lower <= upper, upper <= pageByteCount, nodeCount >= (isLeaf ? 1 : 2) else {
      throw BrokenStructure("the nodes of page \(number) are at invalid offsets")
    }
    var nodes: [Node] = []
    nodes.reserveCapacity(nodeCount)
    for index in 0..<nodeCount {
      let offset = Int(try page.load(16 + index * 2, as: UInt16.self))
      let keyByteCount = Int(try page.load(offset + 6, as: UInt16.self))
      let key = (offset + 8)..<(offset + 8 + keyByteCount)
      guard offset >= upper, key.upperBound <= pageByteCount, keyByteCount <= 511, keyByteCount > 0 || !isLeaf else {
        throw BrokenStructure("a node of page \(number) is at an invalid offset")
      }
      nodes.append(Node(offset: offset, key: key))
    }
    try checkSizes(of: nodes, in: page, from: upper, number: number, isLeaf: isLeaf)
    // The first key of a branch covers all keys below the second, and may be empty.
    let keys = nodes.dropFirst(isLeaf ? 0 : 1).map(\.key)
    for (key, next) in zip(keys, keys.dropFirst())
    where !isInOrder(page.bytes[key], page.bytes[next], kind, orSame: false) {
      throw BrokenStructure("the keys of page \(number) are out of order")
    }
    if let first = bounds.first, let key = keys.first, !isInOrder(first[...], page.bytes[key], kind, orSame: true) {
      throw BrokenStructure("the keys of page \(number) are not those that lead to it")
    }
    if let end = bounds.end, let key = keys.last, !isInOrder(page.bytes[key], end, kind, orSame: false) {
      throw BrokenStructure("the keys of page \(number) are not those that lead to it")
    }
    return (page, nodes)
  }

  /// Checks that the nodes fill the end of the page without gaps.
  ///
  /// liblmdb moves nodes by their sizes when it deletes one, so that a wrong size would destroy the others.
  private func checkSizes(
    of nodes: [Node], in page: StructurePage, from upper: Int, number: UInt64, isLeaf: Bool
  ) throws(BrokenStructure) {
    var end = upper
    for node in nodes.sorted(by: { $0.offset < $1.offset }) {
      guard node.offset == end else { throw BrokenStructure("a node of page \(number) has a wrong size") }
      end = node.key.upperBound
      if isLeaf {
        let isLarge = try page.load(node.offset + 4, as: UInt16.self) == Self.largeValueFlag
        end += isLarge ? MemoryLayout<UInt64>.size : Int(try page.load(node.offset, as: UInt32.self))
      }
      // Nodes have even sizes.
      end += end % 2
    }
    guard end == pageByteCount else { throw BrokenStructure("a node of page \(number) has a wrong size") }
  }

  func childBounds(
    of page: StructurePage, _ nodes: [Node], _ index: Int, within bounds: Bounds
  ) -> Bounds {
    Bounds(
      first: index > 0 ? Array(page.bytes[nodes[index].key]) : bounds.first,
      end: index + 1 < nodes.count ? Array(page.bytes[nodes[index + 1].key]) : bounds.end)
  }

  func child(of page: StructurePage, _ node: Node) throws(BrokenStructure) -> UInt64 {
    let low = UInt64(try page.load(node.offset, as: UInt32.self))
    return low | UInt64(try page.load(node.offset + 4, as: UInt16.self)) << 32
  }

  func isInOrder(
    _ left: ArraySlice<UInt8>, _ right: some BidirectionalCollection<UInt8>, _ kind: Kind, orSame: Bool
  ) -> Bool {
    if orSame, left.elementsEqual(right) { return true }
    if kind == .freeList {
      // Transaction IDs in the machine's byte order.
      guard left.count == 8, right.count == 8 else { return false }
      return left.reversed().lexicographicallyPrecedes(right.reversed())
    }
    return left.lexicographicallyPrecedes(right)
  }

  // MARK: Values

  mutating func checkValue(
    _ page: StructurePage, node: Int, at offset: Int, kind: Kind, counts: inout Counts
  ) throws(BrokenStructure) {
    let byteCount = Int(try page.load(node, as: UInt32.self))
    let flags = try page.load(node + 4, as: UInt16.self)
    switch flags {
    case 0:
      guard offset + byteCount <= pageByteCount else { throw BrokenStructure("a value reaches out of its page") }
      if kind == .freeList { try noteFreePages(page, at: offset, byteCount: byteCount) }
    case 1:
      let number: UInt64 = try page.load(offset)
      let neededCount = UInt64((byteCount + 16 + pageByteCount - 1) / pageByteCount)
      try claim(number)
      readCount += 1
      let start = try read(number, byteCount: 16)
      let pageCount = UInt64(try start.load(12, as: UInt32.self))
      // A value that replaced a longer one within a transaction keeps all of its pages.
      guard try start.load(0, as: UInt64.self) == number, try start.load(10, as: UInt16.self) == 4,
        pageCount >= neededCount
      else { throw BrokenStructure("page \(number) is not the overflow page that it should be") }
      if pageCount > 1 { try claim(number + 1, count: pageCount - 1) }
      counts.overflows += pageCount
      if kind == .freeList {
        let value = try read(number, byteCount: 16 + byteCount)
        try noteFreePages(value, at: 16, byteCount: byteCount)
      }
    case 2 where kind == .main && byteCount == TreeRecord.byteCount:
      let keyByteCount = Int(try page.load(node + 6, as: UInt16.self))
      tables.append((Array(page.bytes[(node + 8)..<(node + 8 + keyByteCount)]), try TreeRecord(page, at: offset)))
    default:
      throw BrokenStructure("a value has impossible flags")
    }
  }

  /// Records an entry of the free list: a count, followed by as many page numbers.
  private mutating func noteFreePages(
    _ page: StructurePage, at offset: Int, byteCount: Int
  ) throws(BrokenStructure) {
    let count: UInt64 = try page.load(offset)
    guard byteCount >= 8, count <= UInt64(byteCount / 8 - 1) else {
      throw BrokenStructure("the free list is invalid")
    }
    for index in 0..<Int(count) {
      let number: UInt64 = try page.load(offset + 8 + index * 8)
      guard number >= 2, number <= lastPage else { throw BrokenStructure("the free list is invalid") }
      freePages.append(number)
    }
  }
}

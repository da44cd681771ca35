internal import Glibc

/// A walk over the trees of a data file with plain reads. It validates all data that it reads.
struct StructureWalk {
  enum Kind {
    case freeList, main, table
  }

  private struct Counts {
    var branches: UInt64 = 0
    var leaves: UInt64 = 0
    var overflows: UInt64 = 0
    var entries: UInt64 = 0
  }

  /// The keys that a page may contain: at least `first`, and below `end`. Nil means no bound.
  private struct Bounds {
    var first: [UInt8]?
    var end: [UInt8]?
  }

  private struct Node {
    let offset: Int
    let key: Range<Int>
  }

  private let descriptor: CInt
  private let pageByteCount: Int
  private var lastPage: UInt64 = 0
  /// The number of complete pages in the file.
  private var pageCount: UInt64 = 0
  /// The pages that a tree or the free list has claimed; nil in a stepwise walk, which does not see all pages.
  private var isClaimed: [Bool]?
  private var freePages: [UInt64] = []
  private var tables: [(name: [UInt8], tree: TreeRecord)] = []

  // The state of a step.
  private var startKey: [UInt8]?
  private var lastKey: [UInt8]?
  private var readCount = 0
  private var readLimit = Int.max
  private var isStopped = false

  init(descriptor: CInt, pageByteCount: Int) {
    self.descriptor = descriptor
    self.pageByteCount = pageByteCount
  }

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

  // MARK: Walks

  /// Checks all trees and the free list.
  mutating func run(from meta: StructurePage) throws(BrokenStructure) {
    try begin(meta)
    isClaimed = [Bool](repeating: false, count: Int(lastPage) + 1)
    try walkWhole(TreeRecord(meta, at: 40), kind: .freeList)
    try walkWhole(TreeRecord(meta, at: 88), kind: .main)
    for table in tables { try walkWhole(table.tree, kind: .table) }
    // Free pages may be beyond the end of the file.
    pageCount = .max
    for page in freePages { try claim(page) }
  }

  /// Checks some leaves after a position, and the pages that lead to them.
  ///
  /// - Parameter table: The name of the only table to check; all by default.
  mutating func step(
    from position: DataFile.StructurePosition, meta: StructurePage, pageCount limit: Int, table: [UInt8]? = nil
  ) throws(BrokenStructure) -> DataFile.StructureFinding {
    try begin(meta)
    try walkWhole(TreeRecord(meta, at: 88), kind: .main)
    readLimit = readCount + limit
    var number = position.tree
    var key = position.key
    while number < 2 + tables.count {
      // The main table is always checked.
      let isWanted = table == nil ? number != 1 : number > 1 && tables[number - 2].name == table
      if isWanted {
        let tree = number == 0 ? try TreeRecord(meta, at: 40) : tables[number - 2].tree
        startKey = key
        lastKey = nil
        var counts = Counts()
        try walk(tree, kind: number == 0 ? .freeList : .table, counts: &counts)
        if isStopped { return .unfinished(DataFile.StructurePosition(tree: number, key: lastKey)) }
      }
      number += 1
      key = nil
    }
    return .sound
  }

  /// Checks the pages on the path to a key.
  mutating func checkPath(to key: [UInt8], table name: [UInt8], meta: StructurePage) throws(BrokenStructure) {
    try begin(meta)
    try walkWhole(TreeRecord(meta, at: 88), kind: .main)
    guard let tree = tables.first(where: { $0.name == name })?.tree else {
      throw BrokenStructure("a table is missing")
    }
    guard tree.root != .max else { return }
    var number = tree.root
    var bounds = Bounds()
    var counts = Counts()
    for level in (1...(try checkedDepth(tree))).reversed() {
      let (page, nodes) = try readNodes(of: number, level: level, kind: .table, bounds: bounds)
      if level == 1 {
        guard let node = nodes.first(where: { Array(page.bytes[$0.key]) == key }) else { return }
        return try checkValue(page, node: node.offset, at: node.key.upperBound, kind: .table, counts: &counts)
      }
      let later = nodes.dropFirst().firstIndex { !isInOrder(page.bytes[$0.key], key, .table, orSame: true) }
      let index = (later ?? nodes.count) - 1
      bounds = childBounds(of: page, nodes, index, within: bounds)
      number = try child(of: page, nodes[index])
    }
  }

  /// Returns the length that a file needs; nil if a missing page at its end is not known to be free.
  mutating func neededByteCount(_ meta: StructurePage, maximumPageCount: Int) throws(BrokenStructure) -> Int? {
    try begin(meta)
    let present = max(pageCount, 2)
    guard present <= lastPage, lastPage - present < 1 << 16 else { return nil }
    let tree = try TreeRecord(meta, at: 40)
    guard tree.root != .max else { return nil }
    var missing = Set(present...lastPage)
    // The newest entry contains the pages that the last commit freed. It is the last one in the list.
    var pages = [(number: tree.root, level: try checkedDepth(tree))]
    while let (number, level) = pages.popLast() {
      guard readCount < maximumPageCount else { return nil }
      let (page, nodes) = try readNodes(of: number, level: level, kind: .freeList, bounds: Bounds())
      if level > 1 {
        for node in nodes { pages.append((try child(of: page, node), level - 1)) }
        continue
      }
      for node in nodes.reversed() {
        var counts = Counts()
        try checkValue(page, node: node.offset, at: node.key.upperBound, kind: .freeList, counts: &counts)
        missing.subtract(freePages)
        freePages = []
        if missing.isEmpty { return (Int(lastPage) + 1) * pageByteCount }
      }
    }
    return nil
  }

  /// Finds the pages of a table from a key on, in key order, for ``PageExtents``.
  ///
  /// Reads leaves only to find the pages of large values.
  mutating func find(_ extents: inout PageExtents, table name: [UInt8], meta: StructurePage) throws(BrokenStructure) {
    try begin(meta)
    try walkWhole(TreeRecord(meta, at: 88), kind: .main)
    guard let tree = tables.first(where: { $0.name == name })?.tree, tree.root != .max else { return }
    try collect(&extents, page: tree.root, level: try checkedDepth(tree), bounds: Bounds())
  }

  private mutating func collect(
    _ extents: inout PageExtents, page number: UInt64, level: Int, bounds: Bounds
  ) throws(BrokenStructure) {
    if level == 1 {
      try claim(number)
      extents.append(number, count: 1)
      guard extents.includesLargeValues else { return }
    }
    let (page, nodes) = try readNodes(of: number, level: level, kind: .table, bounds: bounds)
    for (index, node) in nodes.enumerated() {
      if level == 1 {
        guard try page.load(node.offset + 4, as: UInt16.self) == 1 else { continue }
        let byteCount = Int(try page.load(node.offset, as: UInt32.self))
        let first: UInt64 = try page.load(node.key.upperBound)
        let count = UInt64((byteCount + 16 + pageByteCount - 1) / pageByteCount)
        try claim(first, count: count)
        extents.append(first, count: count)
      } else {
        let childBounds = childBounds(of: page, nodes, index, within: bounds)
        if let end = childBounds.end, isInOrder(end[...], extents.start, .table, orSame: true) { continue }
        if extents.isComplete {
          extents.next = childBounds.first
          return
        }
        try collect(&extents, page: try child(of: page, node), level: level - 1, bounds: childBounds)
        if extents.next != nil { return }
      }
    }
  }

  private mutating func begin(_ meta: StructurePage) throws(BrokenStructure) {
    lastPage = try meta.load(136)
    guard lastPage < 1 << 40 else { throw BrokenStructure("it claims to have too many pages") }
    var status = stat()
    guard fstat(descriptor, &status) == 0 else { throw BrokenStructure("its size cannot be determined") }
    pageCount = UInt64(Int(status.st_size) / pageByteCount)
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

  private mutating func claim(_ number: UInt64, count: UInt64 = 1) throws(BrokenStructure) {
    guard number >= 2, number <= lastPage, count <= lastPage + 1 - number, number + count <= pageCount else {
      throw BrokenStructure("a pointer leads out of the file")
    }
    guard isClaimed != nil else { return }
    for page in Int(number)..<Int(number + count) {
      guard isClaimed?[page] == false else { throw BrokenStructure("page \(page) is used twice") }
      isClaimed?[page] = true
    }
  }

  private mutating func walkWhole(_ tree: TreeRecord, kind: Kind) throws(BrokenStructure) {
    var counts = Counts()
    try walk(tree, kind: kind, counts: &counts)
    guard counts.branches == tree.branchCount, counts.leaves == tree.leafCount,
      counts.overflows == tree.overflowCount, counts.entries == tree.entryCount
    else { throw BrokenStructure("a tree has another number of pages or entries than it claims") }
  }

  private mutating func walk(_ tree: TreeRecord, kind: Kind, counts: inout Counts) throws(BrokenStructure) {
    guard tree.root != .max else { return }
    let level = try checkedDepth(tree)
    try walk(page: tree.root, level: level, kind: kind, bounds: Bounds(), counts: &counts)
  }

  private func checkedDepth(_ tree: TreeRecord) throws(BrokenStructure) -> Int {
    guard (1...32).contains(tree.depth) else { throw BrokenStructure("a tree cannot be \(tree.depth) deep") }
    return tree.depth
  }

  private mutating func walk(
    page number: UInt64, level: Int, kind: Kind, bounds: Bounds, counts: inout Counts
  ) throws(BrokenStructure) {
    let (page, nodes) = try readNodes(of: number, level: level, kind: kind, bounds: bounds)
    guard level > 1 else { return try finishLeaf(page, nodes, kind: kind, counts: &counts) }
    for (index, node) in nodes.enumerated() {
      let childBounds = childBounds(of: page, nodes, index, within: bounds)
      // Skip the children before the position, which were checked.
      if let startKey, let end = childBounds.end, isInOrder(end[...], startKey, kind, orSame: true) { continue }
      let child = try child(of: page, node)
      try walk(page: child, level: level - 1, kind: kind, bounds: childBounds, counts: &counts)
      if isStopped { return }
    }
    counts.branches += 1
  }

  private mutating func finishLeaf(
    _ page: StructurePage, _ nodes: [Node], kind: Kind, counts: inout Counts
  ) throws(BrokenStructure) {
    for node in nodes {
      counts.entries += 1
      try checkValue(page, node: node.offset, at: node.key.upperBound, kind: kind, counts: &counts)
    }
    counts.leaves += 1
    guard readCount >= readLimit, let last = nodes.last else { return }
    let key = Array(page.bytes[last.key])
    // A step must advance, regardless of how short it is.
    if let startKey, !isInOrder(startKey[...], key, kind, orSame: false) { return }
    lastKey = key
    isStopped = true
  }

  /// Reads a page, and checks its number, its kind, and that its nodes are within the page, in order and in bounds.
  private mutating func readNodes(
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

  private func childBounds(
    of page: StructurePage, _ nodes: [Node], _ index: Int, within bounds: Bounds
  ) -> Bounds {
    Bounds(
      first: index > 0 ? Array(page.bytes[nodes[index].key]) : bounds.first,
      end: index + 1 < nodes.count ? Array(page.bytes[nodes[index + 1].key]) : bounds.end)
  }

  private func child(of page: StructurePage, _ node: Node) throws(BrokenStructure) -> UInt64 {
    let low = UInt64(try page.load(node.offset, as: UInt32.self))
    return low | UInt64(try page.load(node.offset + 4, as: UInt16.self)) << 32
  }

  private func isInOrder(
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

  private mutating func checkValue(
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

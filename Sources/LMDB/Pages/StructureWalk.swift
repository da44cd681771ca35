internal import Glibc

/// A walk over the trees of a data file with plain reads. It validates all data that it reads.
struct StructureWalk {
  /// The flag of a node whose value is on pages of its own, `F_BIGDATA` in liblmdb.
  static let largeValueFlag: UInt16 = 1

  enum Kind {
    case freeList, main, table
  }

  struct Counts {
    var branches: UInt64 = 0
    var leaves: UInt64 = 0
    var overflows: UInt64 = 0
    var entries: UInt64 = 0
  }

  /// The keys that a page may contain: at least `first`, and below `end`. Nil means no bound.
  struct Bounds {
    var first: [UInt8]?
    var end: [UInt8]?
  }

  struct Node {
    let offset: Int
    let key: Range<Int>
  }

  let descriptor: CInt
  let pageByteCount: Int
  var lastPage: UInt64 = 0
  /// The number of complete pages in the file.
  var pageCount: UInt64 = 0
  /// The pages that a tree or the free list has claimed; nil in a stepwise walk, which does not see all pages.
  var isClaimed: [Bool]?
  var freePages: [UInt64] = []
  var tables: [(name: [UInt8], tree: TreeRecord)] = []

  // The state of a step.
  private var startKey: [UInt8]?
  private var lastKey: [UInt8]?
  var readCount = 0
  private var readLimit = Int.max
  private var isStopped = false

  init(descriptor: CInt, pageByteCount: Int) {
    self.descriptor = descriptor
    self.pageByteCount = pageByteCount
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
        guard try page.load(node.offset + 4, as: UInt16.self) == Self.largeValueFlag else { continue }
        let byteCount = Int(try page.load(node.offset, as: UInt32.self))
        let first: UInt64 = try page.load(node.key.upperBound)
        let count = UInt64((byteCount + 16 + pageByteCount - 1) / pageByteCount)
        try claim(first, count: count)
        extents.append(first, count: count)
      } else {
        let childBounds = childBounds(of: page, nodes, index, within: bounds)
        if let end = childBounds.end, isInOrder(end[...], extents.start, .table, orSame: true) { continue }
        if let end = extents.end, let first = childBounds.first, isInOrder(end[...], first, .table, orSame: true) {
          return
        }
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

  // MARK: Trees

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
}

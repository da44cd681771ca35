internal import Glibc

/// Asks the operating system to read the leaves of a table before a scan in key order reaches them.
///
/// Successive leaves of a table are scattered over the file, so the kernel's own read-ahead would mostly read other
/// pages. The branch pages of the table contain the leaves' positions. They are read two windows ahead of the scan. The
/// pages of a window are requested together, in file order.
///
/// All requests are hints. Pages that cannot be read are left to the scan, which reports the error.
public struct ReadAhead: Sendable {
  private let table: [UInt8]
  private let windowPageCount: Int
  private let end: [UInt8]?
  /// The first key of the last requested window. When the scan reaches it, the next window is requested.
  private var windowStart: [UInt8]?
  /// The first key of the next window; nil at the table's end.
  private var next: [UInt8]?
  private var hasBegun = false

  /// Creates a read-ahead for a table.
  ///
  /// - Parameters:
  ///   - table: The table's name.
  ///   - windowPageCount: The approximate number of pages per request; 2048 (8 MiB) by default. Twice as many can be in
  ///     memory before the scan needs them.
  ///   - end: The key at which the scan ends; nil, the default, for the table's end.
  public init(table: String, windowPageCount: Int = 2048, end: [UInt8]? = nil) {
    self.table = Array(table.utf8)
    self.windowPageCount = windowPageCount
    self.end = end
  }

  /// Reports the position of the scan. Keys must ascend. A key after all windows starts again at that key.
  ///
  /// - Complexity: Usually one comparison of keys. Once per window it reads the window's branch pages and requests its
  ///   pages, which waits only while the disk's queue is full.
  public mutating func advance(
    to key: [UInt8], in environment: LMDBEnvironment, _ transaction: borrowing ReadTransaction
  ) {
    if !hasBegun || next.map({ $0.lexicographicallyPrecedes(key) }) == true {
      hasBegun = true
      next = request(from: key, environment, transaction)
      windowStart = next
    } else if windowStart.map({ key.lexicographicallyPrecedes($0) }) ?? true {
      return
    }
    guard let start = next else { return }
    next = request(from: start, environment, transaction)
    windowStart = next == nil ? nil : start
  }

  /// Requests the pages from a key on. Returns the first key after them; nil at the end.
  private func request(
    from key: [UInt8], _ environment: LMDBEnvironment, _ transaction: borrowing ReadTransaction
  ) -> [UInt8]? {
    guard let map = MappedPages(of: environment, transaction), let tree = map.tree(ofTable: table, transaction) else {
      return nil
    }
    var leaves = Leaves(map: map, start: key, end: end, limit: windowPageCount)
    leaves.collect(tree.root, level: tree.depth, first: nil)
    Self.request(LMDBEnvironment.runs(of: leaves.pages.sorted()), environment)
    return leaves.next
  }

  private static func request(_ runs: [Range<Int>], _ environment: LMDBEnvironment) {
    // Reading ahead only saves time: without a descriptor, the pages are read when they are used.
    guard let descriptor = try? environment.dataDescriptor() else { return }
    for run in runs {
      let (start, count) = (run.lowerBound * environment.pageByteCount, run.count * environment.pageByteCount)
      posix_fadvise(descriptor, off_t(start), off_t(count), POSIX_FADV_WILLNEED)
    }
  }

  /// Requests the leaves with these keys, in any part of a table.
  ///
  /// Choose as many keys as are used within a tenth of a second or so: the disk reads most pages of a large request at
  /// once.
  ///
  /// - Parameters:
  ///   - keys: Keys of ``BigEndianUInt64Codec`` in ascending order. Those without a row have no effect.
  ///   - table: The table's name.
  ///   - environment: The environment of the table.
  ///   - transaction: The transaction in which the leaves are found.
  /// - Complexity: Reads the branch pages above the leaves.
  public static func request(
    leavesWith keys: [UInt64], ofTable table: String, in environment: LMDBEnvironment,
    _ transaction: borrowing ReadTransaction
  ) {
    guard let map = MappedPages(of: environment, transaction),
      let tree = map.tree(ofTable: Array(table.utf8), transaction)
    else { return }
    var leaves = LeavesOfKeys(map: map, keys: keys[...])
    leaves.collect(tree.root, level: tree.depth, end: nil)
    // Fewer and larger requests, with the pages between close leaves. Larger ones than this took twice as long.
    let maximumPageCount = (128 << 10) / environment.pageByteCount
    let runs = leaves.pages.sorted().reduce(into: [Range<Int>]()) { runs, page in
      if let run = runs.last, page - run.upperBound < 8, page - run.lowerBound < maximumPageCount {
        runs[runs.count - 1] = run.lowerBound..<(page + 1)
      } else {
        runs.append(page..<(page + 1))
      }
    }
    request(runs, environment)
  }

  /// The leaves of a table with certain keys.
  struct LeavesOfKeys {
    let map: MappedPages
    /// The keys whose leaves were not found yet.
    var keys: ArraySlice<UInt64>
    var pages: [Int] = []

    /// - Parameter end: The lowest key after those that the page may contain; nil for no bound.
    mutating func collect(_ page: Int, level: Int, end: UInt64?) {
      if level <= 1 {
        pages.append(page)
        keys = keys.drop { key in end.map { key < $0 } ?? true }
        return
      }
      guard let nodes = map.branch(page) else { return }
      for (index, node) in nodes.enumerated() {
        let end = index + 1 < nodes.count ? Self.number(nodes[index + 1].key) : end
        guard let key = keys.first else { return }
        if end.map({ key < $0 }) ?? true { collect(node.page, level: level - 1, end: end) }
      }
    }

    private static func number(_ key: [UInt8]) -> UInt64 { key.reduce(0) { $0 << 8 | UInt64($1) } }
  }

  /// The leaves of a table from a key on.
  struct Leaves {
    let map: MappedPages
    let start: [UInt8]
    let end: [UInt8]?
    let limit: Int
    var pages: [Int] = []
    /// The first key after the pages found; nil at the end.
    var next: [UInt8]?

    /// - Parameter first: The lowest key that the page may contain; nil for no bound.
    mutating func collect(_ page: Int, level: Int, first: [UInt8]?) {
      guard level > 1 else { return pages.append(page) }
      guard let nodes = map.branch(page) else { return }
      for (index, node) in nodes.enumerated() {
        // Skip children whose keys are all before the start.
        if index + 1 < nodes.count, !start.lexicographicallyPrecedes(nodes[index + 1].key) { continue }
        let first = index > 0 ? node.key : first
        if let end, let first, !first.lexicographicallyPrecedes(end) { return }
        if pages.count >= limit { next = first }
        if next != nil { return }
        collect(node.page, level: level - 1, first: first)
        if next != nil { return }
      }
    }
  }
}

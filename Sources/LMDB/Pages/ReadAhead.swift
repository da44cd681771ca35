internal import Glibc

/// Asks the operating system to read the pages of a table before a scan in key order reaches them.
///
/// Successive leaves of a table are scattered over the file, so the kernel's own read-ahead would mostly read other
/// pages. The branch pages of the table contain the leaves' positions. They are read two windows ahead of the scan. The
/// pages of a window are requested together, in file order.
///
/// All requests are hints. Pages that cannot be read are left to the scan, which reports the error.
public struct ReadAhead: Sendable {
  private let table: [UInt8]
  private let windowPageCount: Int
  private let includesLargeValues: Bool
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
  ///   - includesLargeValues: Whether to request overflow pages, too; false by default. This reads the leaves that lead
  ///     to them, so use it for tables whose values are mostly large.
  ///   - end: The key at which the scan ends; nil, the default, for the table's end.
  public init(table: String, windowPageCount: Int = 2048, includesLargeValues: Bool = false, end: [UInt8]? = nil) {
    self.table = Array(table.utf8)
    self.windowPageCount = windowPageCount
    self.includesLargeValues = includesLargeValues
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
      guard let following = request(from: key, environment, transaction) else { return }
      hasBegun = true
      (windowStart, next) = (following.next, following.next)
    } else if windowStart.map({ key.lexicographicallyPrecedes($0) }) ?? true {
      return
    }
    guard let start = next, let following = request(from: start, environment, transaction) else {
      // The last window was requested, or the file changed while it was read; then the next call tries again.
      return
    }
    (windowStart, next) = (following.next == nil ? nil : start, following.next)
  }

  /// Requests the pages from a key on; nil if they could not be determined.
  private func request(
    from key: [UInt8], _ environment: LMDBEnvironment, _ transaction: borrowing ReadTransaction
  ) -> PageExtents? {
    var extents = PageExtents(
      start: key, end: end, pageCount: windowPageCount, includesLargeValues: includesLargeValues)
    // Reading ahead only saves time.
    guard let descriptor = try? environment.dataDescriptor() else { return nil }
    do throws(UnexpectedPage) {
      try extents.find(in: TreeWalk(descriptor: descriptor, commit: transaction.id), table: table)
    } catch {
      return nil
    }
    for run in extents.runs {
      let byteCount = Int(run.count) * environment.pageByteCount
      posix_fadvise(
        descriptor, off_t(Int(run.lowerBound) * environment.pageByteCount), off_t(byteCount), POSIX_FADV_WILLNEED)
    }
    return extents
  }
}

/// The pages of a table from a key on.
struct PageExtents {
  /// The key to start at.
  let start: [UInt8]
  /// Pages whose keys are all at or after this key are left out; nil for no limit.
  let end: [UInt8]?
  let includesLargeValues: Bool
  /// The first key after the pages found; nil at the end.
  var next: [UInt8]?
  private var remainingPageCount: Int
  private var pages: [Range<UInt64>] = []

  init(start: [UInt8], end: [UInt8]? = nil, pageCount: Int, includesLargeValues: Bool) {
    self.start = start
    self.end = end
    self.includesLargeValues = includesLargeValues
    remainingPageCount = pageCount
  }

  private mutating func append(_ range: Range<UInt64>) {
    pages.append(range)
    remainingPageCount -= range.count
  }

  /// Finds the pages of a table in key order. Reads leaves only to find the pages of large values.
  mutating func find(in walk: TreeWalk, table: [UInt8]) throws(UnexpectedPage) {
    guard let tree = try walk.table(table), tree.root != .max else { return }
    try collect(walk, page: tree.root, level: tree.depth, first: nil)
  }

  /// - Parameter first: The lowest key that the page may contain; nil for no bound.
  private mutating func collect(
    _ walk: TreeWalk, page number: UInt64, level: Int, first: [UInt8]?
  ) throws(UnexpectedPage) {
    if level <= 1 {
      append(number..<(number + 1))
      guard includesLargeValues else { return }
    }
    let (page, nodes) = try walk.readNodes(of: number, level: level)
    for (index, node) in nodes.enumerated() {
      guard level > 1 else {
        if let pages = try walk.overflowPages(of: page, node) { append(pages) }
        continue
      }
      // Skip children whose keys are all before the start.
      if index + 1 < nodes.count, !start.lexicographicallyPrecedes(page.key(nodes[index + 1])) { continue }
      let first = index > 0 ? page.key(node) : first
      if let end, let first, !first.lexicographicallyPrecedes(end) { return }
      if remainingPageCount <= 0 {
        next = first
        return
      }
      try collect(walk, page: try page.child(node), level: level - 1, first: first)
      if next != nil { return }
    }
  }

  /// The pages in file order, with adjacent pages joined.
  var runs: [Range<UInt64>] {
    var runs: [Range<UInt64>] = []
    for extent in pages.sorted(by: { $0.lowerBound < $1.lowerBound }) {
      if let last = runs.last, last.upperBound >= extent.lowerBound {
        runs[runs.count - 1] = last.lowerBound..<max(last.upperBound, extent.upperBound)
      } else {
        runs.append(extent)
      }
    }
    return runs
  }
}

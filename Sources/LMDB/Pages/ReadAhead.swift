internal import Glibc

/// Asks the operating system to read the pages of a table before a walk in key order reaches them.
///
/// Leaves that follow each other in a table are scattered over the file, so the kernel's own read-ahead would read mostly other
/// pages. The branch pages of the table say where the leaves are. They are read two windows ahead of the walk, and the pages of a
/// window are requested together, in the order of the file.
///
/// Everything here is a hint: what cannot be read is left to the walk, which reports it.
public struct ReadAhead: Sendable {
  private let table: [UInt8]
  private let windowPageCount: Int
  private let includesLargeValues: Bool
  /// Where the last requested window begins: when the walk gets there, the next one is requested.
  private var windowStart: [UInt8]?
  /// Where the next window begins; nil at the table's end.
  private var next: [UInt8]?
  private var hasBegun = false

  /// - Parameters:
  ///   - table: The table's name.
  ///   - windowPageCount: The pages that are requested at a time, about; 2048 by default, which are 8 MiB. Twice as many may be
  ///     in memory before the walk needs them.
  ///   - includesLargeValues: Whether values on pages of their own are requested, too. That reads the leaves that lead to them,
  ///     so it is for tables of which most values are large. False by default.
  public init(table: String, windowPageCount: Int = 2048, includesLargeValues: Bool = false) {
    self.table = Array(table.utf8)
    self.windowPageCount = windowPageCount
    self.includesLargeValues = includesLargeValues
  }

  /// Tells how far the walk has come. Keys must ascend; one beyond all windows begins again there.
  ///
  /// - Complexity: Mostly a comparison of keys. Once per window it reads the branch pages of the window and requests its pages,
  ///   which waits only while the disk's queue is full.
  public mutating func advance(
    to key: [UInt8], in environment: Environment, _ transaction: borrowing ReadTransaction
  ) {
    if !hasBegun || next.map({ $0.lexicographicallyPrecedes(key) }) == true {
      guard let following = request(from: key, environment, transaction) else { return }
      hasBegun = true
      (windowStart, next) = (following.next, following.next)
    } else if windowStart.map({ key.lexicographicallyPrecedes($0) }) ?? true {
      return
    }
    guard let start = next, let following = request(from: start, environment, transaction) else {
      // The last window is under way, or the file changed while it was read: the next call tries again.
      return
    }
    (windowStart, next) = (following.next == nil ? nil : start, following.next)
  }

  /// Nil if the pages could not be found out.
  private func request(
    from key: [UInt8], _ environment: Environment, _ transaction: borrowing ReadTransaction
  ) -> PageExtents? {
    var extents = PageExtents(start: key, pageCount: windowPageCount, includesLargeValues: includesLargeValues)
    let snapshot = transaction.id
    do throws(LMDBError) {
      let descriptor = try environment.dataDescriptor()
      let finding = DataFile.withWalk(descriptor: descriptor) {
        (walk: inout StructureWalk) throws(BrokenStructure) -> DataFile.StructureFinding in
        guard let meta = try walk.meta(ofCommit: snapshot) else { return .unfinished(.start) }
        try walk.find(&extents, table: table, meta: meta)
        return .sound
      }
      guard finding == .sound else { return nil }
      for run in extents.runs {
        let byteCount = Int(run.count) * environment.pageByteCount
        posix_fadvise(
          descriptor, off_t(Int(run.lowerBound) * environment.pageByteCount), off_t(byteCount), POSIX_FADV_WILLNEED)
      }
    } catch {
      return nil
    }
    return extents
  }
}

/// Pages of a table from a key on.
struct PageExtents {
  /// The key to begin at.
  let start: [UInt8]
  let includesLargeValues: Bool
  /// The first key behind the pages that were found; nil if they reach to the table's end.
  var next: [UInt8]?
  private var remainingPageCount: Int
  private var pages: [Range<UInt64>] = []

  init(start: [UInt8], pageCount: Int, includesLargeValues: Bool) {
    self.start = start
    self.includesLargeValues = includesLargeValues
    remainingPageCount = pageCount
  }

  var isComplete: Bool { remainingPageCount <= 0 }

  mutating func append(_ page: UInt64, count: UInt64) {
    pages.append(page..<(page + count))
    remainingPageCount -= Int(count)
  }

  /// In the order of the file; neighbors are joined.
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

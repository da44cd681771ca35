import LMDB
import Synchronization

/// Where removed records left room in the leaves of `heads`.
///
/// Rows are numbered in the order of storing, so new records go to the table's end, and the leaves in front of it would only get
/// emptier: LMDB joins two when both are less than a quarter full, which left them at a third. So a new record is given a number
/// in a leaf that has room; the numbers are far enough apart for that.
///
/// What is known here is a hint: the transaction that removed the record may have failed, and the leaf may have filled. Before
/// a number is used, the table is asked.
final class FreedRows: Sendable {
  /// A leaf, with row ids that are not in use and would lie in it.
  private struct Leaf {
    var freeByteCount: Int
    var rowIDs: [UInt64] = []
  }

  private struct State {
    /// Row ids near which there may be room, in ascending order, so that neighbours are found together.
    var rowIDs: [UInt64] = []
    /// Where the next survey begins.
    var position: UInt64 = 0
    /// What the last survey found; the fullest first.
    var leaves: [Leaf] = []

    /// The next row ids to be surveyed.
    mutating func takeCandidates() -> [UInt64] {
      // Of each leaf with room left, some are enough to find it again.
      let left = leaves.flatMap { $0.rowIDs.prefix(2) }
      leaves = []
      if !left.isEmpty { rowIDs = (rowIDs + left).sorted() }
      let start = rowIDs.count <= FreedRows.surveyCount ? 0 : FreedRows.index(of: position, in: rowIDs)
      let range = start..<min(start + FreedRows.surveyCount, rowIDs.count)
      position = range.upperBound == rowIDs.count ? 0 : rowIDs[range.upperBound]
      defer { rowIDs.removeSubrange(range) }
      return Array(rowIDs[range])
    }
  }

  /// How many are known at most.
  static let mostRows = 4096
  /// How many are looked at in a survey; each costs a search.
  private static let surveyCount = 256
  /// How many row ids between two others are considered.
  private static let mostRowsBetweenTwo = 4 * StorageFormat.rowIDStep
  /// Hardly a record is smaller.
  private static let leastRoom = 256

  private let state = Mutex(State())

  /// Notes that a record is gone.
  func note(_ rowID: UInt64) {
    state.withLock { state in
      guard state.rowIDs.count < Self.mostRows else { return }
      state.rowIDs.insert(rowID, at: Self.index(of: rowID, in: state.rowIDs))
    }
  }

  /// Forgets what the last survey found.
  func forgetLeaves() {
    state.withLock { $0.leaves = [] }
  }

  /// Looks for leaves with room, for the next records.
  func survey(_ file: StoreFile) throws(LMDBError) {
    let rowIDs = state.withLock { $0.takeCandidates() }
    guard !rowIDs.isEmpty else { return }
    let rooms = try file.environment.read { (transaction) throws(LMDBError) in
      try file.heads.leafRooms(for: rowIDs, in: transaction)
    }
    var leaves: [Int: Leaf] = [:]
    var lastEnd: UInt64 = 0
    for room in rooms where room.freeByteCount >= Self.leastRoom {
      let first = (room.below ?? 0) + 1
      // At the table's end new records are appended. Neighbours may lie between the same two rows.
      guard let end = room.above, first < end, end != lastEnd else { continue }
      lastEnd = end
      // Those that are given in order may belong to a body that another process is still writing.
      let free = (first..<min(end, first + Self.mostRowsBetweenTwo)).filter { !StorageFormat.isInOrder(rowID: $0) }
      leaves[room.pageNumber, default: Leaf(freeByteCount: room.freeByteCount)].rowIDs += free
    }
    let found = leaves.values.filter { !$0.rowIDs.isEmpty }.sorted { $0.freeByteCount < $1.freeByteCount }
    state.withLock { $0.leaves = found }
  }

  /// A row id in the fullest leaf that has room for so large a record; it is not given out again.
  func take(byteCount: Int) -> UInt64? {
    let needed = Table<BigEndianUInt64, BytesCodec>.leafByteCount(keyByteCount: 8, valueByteCount: byteCount)
    return state.withLock { state in
      guard let index = state.leaves.firstIndex(where: { $0.freeByteCount >= needed }) else { return nil }
      var leaf = state.leaves.remove(at: index)
      let rowID = leaf.rowIDs.removeLast()
      leaf.freeByteCount -= needed
      if leaf.freeByteCount >= Self.leastRoom, !leaf.rowIDs.isEmpty {
        let place = state.leaves.firstIndex { $0.freeByteCount >= leaf.freeByteCount } ?? state.leaves.count
        state.leaves.insert(leaf, at: place)
      }
      return rowID
    }
  }

  private static func index(of rowID: UInt64, in rowIDs: [UInt64]) -> Int {
    var range = 0..<rowIDs.count
    while !range.isEmpty {
      let middle = (range.lowerBound + range.upperBound) / 2
      range = rowIDs[middle] < rowID ? middle + 1..<range.upperBound : range.lowerBound..<middle
    }
    return range.lowerBound
  }
}

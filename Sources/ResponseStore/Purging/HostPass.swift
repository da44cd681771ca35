/// The rows that a pass over the index found for removals by host, prefix or group, in ascending order.
///
/// A pass examines every cell and finds the records of the removals' hosts. It may also find records of other hosts
/// with the same host tag, so the caller compares the complete keys. It finds every record that was committed before
/// the pass began and is not deleted during it, unless the index is corrupt; see ``confirm()``.
struct HostPass: Sendable {
  /// The maximum number of cells for a pass within a write transaction, which then takes about 0.1 ms.
  static let directCellCount = 1 << 16
  /// The maximum number of rows that one pass keeps. Another pass finds the rest.
  static let maximumRowCount = 1 << 20

  private var rows: ArraySlice<UInt64> = []
  private let hostTags: Set<UInt64>?
  private let limit: Int
  /// Whether another pass must find rows above ``lastRow``.
  private var isCut = false
  private var lastRow: UInt64 = 0
  /// The blocks that were corrupt or being changed. Usually there are none.
  private var suspects: [Int] = []
  private let file: IndexFile
  private let index: RecordIndex

  /// Passes over the index; nil if the index is incomplete, or was replaced during the pass.
  ///
  /// - Parameters:
  ///   - hostTags: The host tags of the records to find; nil for all records.
  ///   - first: The lowest row to find.
  ///   - limit: The number of rows to keep; the pass keeps less than twice as many.
  init?(
    over file: IndexFile, hostTags: Set<UInt64>?, from first: UInt64 = 0, limit: Int = HostPass.maximumRowCount
  ) {
    self.hostTags = hostTags
    self.limit = limit
    guard let index = file.current, index.isComplete else { return nil }
    (self.file, self.index) = (file, index)
    // One element per host tag, because an array is faster than a set.
    var isWanted = [Bool](repeating: hostTags == nil, count: 1 << 12)
    for tag in hostTags ?? [] { isWanted[Int(tag)] = true }
    var found: [UInt64] = []
    var last = UInt64.max
    suspects = index.forEachCheckedEntry { entry in
      guard isWanted[Int(entry.hostTag)], entry.rowID >= first, entry.rowID <= last else { return }
      found.append(entry.rowID)
      guard found.count >= 2 * limit else { return }
      found.sort()
      found.removeSubrange(limit...)
      last = found[limit - 1]
      isCut = true
    }
    // If another index has replaced this one, the cells may have been released and seem free.
    guard file.current === index, index.isComplete else { return nil }
    found.sort()
    lastRow = last
    rows = found[...]
  }

  /// Checks with the write lock that the pass lacks no record. Call this before its tombstones are deleted.
  ///
  /// Returns false if the index was corrupt, or is no longer in use.
  mutating func confirm() -> Bool {
    guard file.isIntact(index, blocks: suspects) else { return false }
    suspects = []
    return true
  }

  /// Whether all rows were processed and no other pass must follow.
  var isDone: Bool { rows.isEmpty && !isCut }

  /// Whether all rows were processed and another pass must follow.
  var isExhausted: Bool { rows.isEmpty && isCut }

  /// Returns the next rows.
  func upcoming(_ limit: Int) -> ArraySlice<UInt64> { rows.prefix(limit) }

  /// Skips the next rows.
  mutating func advance(by count: Int) { rows = rows.dropFirst(count) }

  /// Skips the rows below a row.
  mutating func advance(to rowID: UInt64) { rows = rows.drop { $0 < rowID } }

  /// Runs another pass for the rows above those of this pass.
  func next() -> HostPass? { HostPass(over: file, hostTags: hostTags, from: lastRow + 1, limit: limit) }
}

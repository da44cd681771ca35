/// The rows that a pass over the index has found for purges by host, prefix or group, in the order of the rows.
///
/// A pass looks at every slot and takes the records of the purges' hosts, and some of others, whose host tags are
/// equal: so the full keys are to be compared. It finds every record that was committed before it began and stays.
struct HostPass: Sendable, Equatable {
  /// The most slots of an index over which a write transaction passes itself, which takes a tenth of a millisecond.
  static let directSlotCount = 1 << 16
  /// The most rows that one pass keeps; for more, another one follows.
  static let maximumRowCount = 1 << 20

  private var rows: ArraySlice<UInt64> = []
  private let hostTags: Set<UInt64>?
  private let limit: Int
  /// Whether rows above ``lastRow`` were left to another pass.
  private var isCut = false
  private var lastRow: UInt64 = 0

  /// Passes over the index; nil if it was replaced meanwhile, or does not have every record.
  ///
  /// - Parameters:
  ///   - hostTags: Of the records to find; nil for all.
  ///   - first: The lowest row to find.
  ///   - limit: How many rows to keep; up to twice as many.
  init?(
    over file: IndexFile, hostTags: Set<UInt64>?, from first: UInt64 = 0, limit: Int = HostPass.maximumRowCount
  ) {
    self.hostTags = hostTags
    self.limit = limit
    guard let index = file.current, index.isComplete else { return nil }
    // A bit for each host tag is looked up faster than a set.
    var isWanted = [Bool](repeating: hostTags == nil, count: 1 << 12)
    for tag in hostTags ?? [] { isWanted[Int(tag)] = true }
    var found: [UInt64] = []
    var last = UInt64.max
    index.forEachEntry(in: 0..<index.allSlotCount) { entry in
      guard isWanted[Int(entry.hostTag)], entry.rowID >= first, entry.rowID <= last else { return }
      found.append(entry.rowID)
      guard found.count >= 2 * limit else { return }
      found.sort()
      found.removeSubrange(limit...)
      last = found[limit - 1]
      isCut = true
    }
    // A larger index may have taken its place, and then its slots read as free.
    guard file.current === index, index.isComplete else { return nil }
    found.sort()
    lastRow = last
    rows = found[...]
  }

  /// Whether all rows have been taken, and none was left out.
  var isDone: Bool { rows.isEmpty && !isCut }

  /// Whether another pass must follow.
  var isExhausted: Bool { rows.isEmpty && isCut }

  /// The next rows.
  func upcoming(_ limit: Int) -> ArraySlice<UInt64> { rows.prefix(limit) }

  /// Goes on behind the next rows.
  mutating func advance(by count: Int) { rows = rows.dropFirst(count) }

  /// Goes on with a row.
  mutating func advance(to rowID: UInt64) { rows = rows.drop { $0 < rowID } }

  /// Another pass for the rows that were left out.
  func next(over file: IndexFile) -> HostPass? {
    HostPass(over: file, hostTags: hostTags, from: lastRow + 1, limit: limit)
  }
}

/// Selects the rows of `dates` whose records tombstones may cover, without reading the records.
///
/// The value of such a row has a tag of the host. Hosts can have the same tag, so the caller compares the complete
/// keys.
struct RemovalSelection {
  /// The first row that can be selected.
  let start: DateKey
  /// Whether the tombstones cover all records from ``start`` on. The selected rows are then adjacent.
  let isRun: Bool
  private let lastRowID: UInt64
  /// All rows from this one on are selected.
  private let firstOfAll: DateKey
  /// Whether the rows of the hosts with a tag are selected.
  private let hosts: [Bool]

  private static let firstRow = DateKey(time: 0, rowID: 0)
  private static let lastRow = DateKey(time: .max, rowID: .max)

  /// - Parameter hostTag: Returns the host tag of keys that begin with some bytes; nil if they may belong to several
  ///   hosts.
  init(_ tombstones: [Tombstone], hostTag: ([UInt8]) -> UInt64?) {
    var firstOfAll = Self.lastRow
    var coversAllSelected = true
    var hosts = [Bool](repeating: false, count: 1 << 12)
    for tombstone in tombstones {
      if case .since(let date) = tombstone.removal.scope {
        // Strictly newer: the first row after all rows of the date itself.
        firstOfAll = min(firstOfAll, DateKey(time: SortableTimestamp.encode(date), rowID: .max))
      } else if let tag = tombstone.removal.scope.beginning.flatMap(hostTag) {
        hosts[Int(tag)] = true
        coversAllSelected = false
      } else {
        firstOfAll = Self.firstRow
        if tombstone.removal.scope != .everything { coversAllSelected = false }
      }
    }
    self.firstOfAll = firstOfAll
    self.hosts = hosts
    isRun = coversAllSelected
    start = hosts.contains(true) ? Self.firstRow : firstOfAll
    lastRowID = tombstones.map(\.lastRowID).max() ?? 0
  }

  func contains(_ row: DateKey, tagWord: UInt64) -> Bool {
    row.rowID <= lastRowID
      && (row >= firstOfAll || hosts[Int(IndexEntry(tagWord: tagWord, rowWord: 0).hostTag)])
  }
}

/// The result of a rebuild step.
enum RebuildProgress {
  case done
  /// There are more records to add.
  case unfinished
  /// A record found no free cell. Grow the index or evict records before the next step.
  case full
  /// The cells of a record do not match their sums, so a newer one may be missing there. Rebuild another index.
  case corrupt
}

/// The progress of a rebuild: the last record added, and the order of records.
enum RebuildPosition: Equatable {
  /// Rows from newest to oldest. Rows from this row ID on were added.
  case rows(below: UInt64)
  /// Records from the latest to the earliest time of storing. Records from this time and row ID on were added.
  case dates(time: UInt64, rowID: UInt64)

  /// The position before the latest record.
  static let newestDate = RebuildPosition.dates(time: .max, rowID: .max)
}

/// Rebuilds the index in bounded steps, each in a write transaction, while lookups and stores continue.
///
/// The file records the progress, so any process can continue. During a rebuild, a response may be stored whose older
/// record is not in the index; then two rows have one key and variant. The newer row must be added first, and the older
/// one is deleted when the rebuild finds it. Rows that were stored while the index was incomplete are therefore added
/// from newest to oldest. All other rows can be added in any order, and are added by time of storing, which takes much
/// less reading.
///
/// In this order no lookup finds the older row, even if a process dies or a rebuild starts again. Until the rebuild
/// ends, a newer row must not be deleted without its older rows. Tombstones therefore stay, and eviction takes the
/// lowest row IDs first.
extension RecordIndex {
  /// The position at which the rebuild continues; nil when the index is complete.
  ///
  /// If the words of the position are corrupt, the rebuild begins again.
  var rebuildPosition: RebuildPosition? {
    let (row, time) = (self[IndexLayout.Word.rebuildRow], self[IndexLayout.Word.rebuildTime])
    let rowID = row >> 20 == IndexEntry.maximumRowID ? .max : row >> 20
    switch self[IndexLayout.Word.rebuildStage] {
    case IndexLayout.RebuildStage.complete:
      return nil
    case IndexLayout.RebuildStage.rows where row == Self.rowWord(of: .rows(below: rowID)):
      return .rows(below: rowID)
    case IndexLayout.RebuildStage.dates where row == Self.rowWord(of: .dates(time: time, rowID: rowID)):
      return .dates(time: time, rowID: rowID)
    default:
      return .rows(below: .max)
    }
  }

  /// Stores the progress of a rebuild. A process that dies between two words leaves an earlier position.
  func setRebuildPosition(_ position: RebuildPosition?) {
    switch position {
    case nil:
      self[IndexLayout.Word.rebuildStage] = IndexLayout.RebuildStage.complete
    case .rows?:
      if self[IndexLayout.Word.rebuildStage] != IndexLayout.RebuildStage.rows {
        self[IndexLayout.Word.rebuildRow] = Self.rowWord(of: .rows(below: .max))
        self[IndexLayout.Word.rebuildStage] = IndexLayout.RebuildStage.rows
      }
      self[IndexLayout.Word.rebuildRow] = Self.rowWord(of: position)
    case .dates(let time, _)?:
      self[IndexLayout.Word.rebuildRow] = Self.rowWord(of: .newestDate)
      if self[IndexLayout.Word.rebuildStage] != IndexLayout.RebuildStage.dates {
        self[IndexLayout.Word.rebuildTime] = .max
        self[IndexLayout.Word.rebuildStage] = IndexLayout.RebuildStage.dates
      }
      self[IndexLayout.Word.rebuildTime] = time
      self[IndexLayout.Word.rebuildRow] = Self.rowWord(of: position)
    }
  }

  /// The word for the row ID of a position: 44 bits, and 20 bits by which corruption is detected.
  ///
  /// They cover the time as well, unless the position is before all rows of that time.
  private static func rowWord(of position: RebuildPosition?) -> UInt64 {
    let (rowID, time): (UInt64, UInt64) =
      switch position {
      case nil: (0, 0)
      case .rows(let rowID): (rowID, 0)
      case .dates(let time, let rowID): (rowID, rowID == .max ? 0 : time)
      }
    let row = min(rowID, IndexEntry.maximumRowID)
    let mixed = (time &+ row &+ 1) &* 0x9E37_79B9_7F4A_7C15
    return row << 20 | ((mixed ^ mixed >> 29) &* 0xD6E8_FEB8_6659_FD93) >> 44
  }

  /// Adds records of the database to the index.
  ///
  /// - Parameters:
  ///   - recordBehind: Returns the record after a position and the position after that record; nil at the end.
  ///   - areSameResponse: Whether two rows have the same key and variant.
  /// - Returns: ``RebuildProgress/done`` at the end, when the caller clears the position if nothing is left. Also
  ///   returns older rows of keys and variants that are in the index; the caller deletes them.
  func rebuild<Failure: Error>(
    limit: Int, recordBehind: (RebuildPosition) throws(Failure) -> (entry: IndexEntry, next: RebuildPosition)?,
    areSameResponse: (UInt64, UInt64) throws(Failure) -> Bool
  ) throws(Failure) -> (progress: RebuildProgress, olderRows: [UInt64]) {
    guard var position = rebuildPosition else { return (.done, []) }
    var olderRows: [UInt64] = []
    // Do not advance past a row that is to be deleted: its deletion is not committed yet.
    var committed: RebuildPosition?
    // Store the progress once, at the end of the step. A repeated step skips records that were added.
    defer { if committed ?? position != rebuildPosition { setRebuildPosition(committed ?? position) } }
    for _ in 0..<limit {
      guard let (entry, next) = try recordBehind(position) else {
        return (committed == nil ? .done : .unfinished, olderRows)
      }
      guard isIntact(aroundHomeOf: entry.tag) else { return (.corrupt, olderRows) }
      if try newerRow(than: entry, areSameResponse) != nil {
        olderRows.append(entry.rowID)
        committed = committed ?? position
        if olderRows.count == Self.maximumOlderRowCount { break }
      } else if !insert(entry) {
        return (.full, olderRows)
      }
      position = next
    }
    return (.unfinished, olderRows)
  }

  /// The maximum number of older rows that one transaction deletes. Each may copy leaves of its own.
  private static let maximumOlderRowCount = 64

  private func newerRow<Failure: Error>(
    than entry: IndexEntry, _ areSameResponse: (UInt64, UInt64) throws(Failure) -> Bool
  ) throws(Failure) -> UInt64? {
    let home = home(of: entry.tag)
    for cell in home..<firstFreeCell(from: home) where IndexEntry.tag(inTagWord: tagWord(cell)) == entry.tag {
      let other = IndexEntry.rowID(inRowWord: rowWord(cell))
      if other > entry.rowID, try areSameResponse(entry.rowID, other) { return other }
    }
    return nil
  }
}

/// Changes of cells, by the holder of the database's write lock.
///
/// A process may be killed between any two words. Two words of the header therefore describe the change in progress:
/// - ``IndexLayout/Word/occupancy`` holds the record count and the cell whose content is invalid: before a free cell is
///   filled, and while a cell is freed.
/// - ``IndexLayout/Word/changingHome`` tells which blocks may not match their sums.
///
/// The next process with the lock frees that cell and computes those sums. It then continues the journal with the
/// interrupted change, which may be complete.
extension RecordIndex {
  /// The number of cells in use, and the cell whose content is invalid.
  private var occupancy: (count: Int, invalidCell: Int?) {
    get {
      let word = self[IndexLayout.Word.occupancy]
      let cell = Int(word & 0xffff_ffff) - 1
      return (Int(word >> 32), cell < 0 ? nil : cell)
    }
    set { self[IndexLayout.Word.occupancy] = UInt64(newValue.count) << 32 | UInt64((newValue.invalidCell ?? -1) + 1) }
  }

  /// Sets the home of the record whose change is in progress.
  private func setChangingHome(_ home: Int?) {
    self[IndexLayout.Word.changingHome] = home.map { IndexLayout.CheckedNumber.word(UInt64($0)) } ?? 0
  }

  /// Returns the cell of a record.
  func cell(of tag: UInt64, rowID: UInt64) -> Int? {
    let home = home(of: tag)
    return (home..<firstFreeCell(from: home)).first {
      IndexEntry.tag(inTagWord: tagWord($0)) == tag && IndexEntry.rowID(inRowWord: rowWord($0)) == rowID
    }
  }

  /// Inserts a record unless it exists. Returns false if there is no free cell.
  func insert(_ entry: IndexEntry) -> Bool {
    guard cell(of: entry.tag, rowID: entry.rowID) == nil else { return true }
    let home = home(of: entry.tag)
    let cell = firstFreeCell(from: home)
    guard cell < home + IndexLayout.maximumProbeLength else { return false }
    let count = occupancy.count
    setChangingHome(home)
    occupancy = (count + 1, cell)
    setCell(cell, tagWord: entry.tagWord, rowWord: entry.rowWord)
    occupancy = (count + 1, nil)
    setChangingHome(nil)
    return true
  }

  /// Replaces a record under the same key with its successor. Returns false if the record does not exist.
  func replace(rowID: UInt64, with entry: IndexEntry) -> Bool {
    guard cell(of: entry.tag, rowID: entry.rowID) == nil else { return true }
    guard let cell = cell(of: entry.tag, rowID: rowID) else { return false }
    setChangingHome(home(of: entry.tag))
    setCell(cell, tagWord: entry.tagWord, rowWord: entry.rowWord)
    setChangingHome(nil)
    return true
  }

  /// Removes a record if it exists. With `remembering`, keeps its use count as a ghost.
  func remove(tag: UInt64, rowID: UInt64, remembering: Bool = false) {
    guard let cell = cell(of: tag, rowID: rowID) else { return }
    if remembering { putGhost(tag: tag, useCount: entry(in: cell).useCount) }
    setChangingHome(home(of: tag))
    occupancy.invalidCell = cell
    freeInvalidCell()
    setChangingHome(nil)
  }

  /// Completes or reverts the change of a cell during which a process was killed. Returns false if the word that tells
  /// about it is corrupt.
  func recoverChange() -> Bool {
    let word = self[IndexLayout.Word.changingHome]
    guard word != 0 else { return true }
    guard let home = IndexLayout.CheckedNumber.number(in: word), home < UInt64(cellCount) else { return false }
    freeInvalidCell()
    computeSums(fromHome: Int(home))
    setChangingHome(nil)
    return true
  }

  /// Frees the cell whose content is invalid, if there is one.
  ///
  /// Records after it move forward, so that no record has a free cell between itself and its home.
  private func freeInvalidCell() {
    guard var cell = occupancy.invalidCell, cell < allCellCount else { return }
    var next = cell + 1
    while next < allCellCount {
      let tagWord = tagWord(next)
      if tagWord == 0 { break }
      if home(of: IndexEntry.tag(inTagWord: tagWord)) <= cell {
        setCell(cell, tagWord: tagWord, rowWord: rowWord(next))
        occupancy.invalidCell = next
        cell = next
      }
      next += 1
    }
    setCell(cell, tagWord: 0, rowWord: rowWord(cell))
    occupancy = (max(occupancy.count - 1, 0), nil)
  }

  /// The result of copying records to another index.
  enum CopyResult {
    case done
    /// A record found no free cell in the other index.
    case full
    /// The cells do not match the sums of their blocks.
    case corrupt
  }

  /// Copies the records of these home cells into another index, which does not have them yet.
  func copyRecords(ofHomes homes: Range<Int>, into other: RecordIndex) -> CopyResult {
    guard !homes.isEmpty else { return .done }
    // A record is before the first free cell after its home.
    let end = min(homes.upperBound + IndexLayout.maximumProbeLength, allCellCount)
    var count = other.occupancy.count
    var cell = homes.lowerBound
    while cell < end {
      if cell == homes.lowerBound || cell % IndexLayout.cellsPerBlock == 0 {
        guard isIntact(block: cell / IndexLayout.cellsPerBlock) else { return .corrupt }
      }
      let tagWord = tagWord(cell)
      let tag = IndexEntry.tag(inTagWord: tagWord)
      if tagWord == 0 {
        if cell >= homes.upperBound { break }
      } else if homes.contains(home(of: tag)) {
        let otherHome = other.home(of: tag)
        let copy = other.firstFreeCell(from: otherHome)
        guard copy < otherHome + IndexLayout.maximumProbeLength else { return .full }
        other.setCell(copy, tagWord: tagWord, rowWord: rowWord(cell))
        count += 1
      }
      cell += 1
    }
    other.occupancy = (count, nil)
    return .done
  }

  /// Copies the journal and the header, except for sizes and counts, into an index that has the same records.
  ///
  /// Returns false if the journal does not fit. Ghost entries are not copied: evicted records that are stored again then
  /// start with a use count of 1.
  func copyHeader(into other: RecordIndex) -> Bool {
    let changeCount = min(self[IndexLayout.Word.changeCount], UInt64(journalCapacity))
    guard changeCount <= other.journalCapacity else { return false }
    for word in [
      IndexLayout.Word.owner, IndexLayout.Word.boot, IndexLayout.Word.boot + 1, IndexLayout.Word.inflation,
      IndexLayout.Word.lastTombstone, IndexLayout.Word.lastTombstoneComplement, IndexLayout.Word.transaction,
      IndexLayout.Word.changeCount, IndexLayout.Word.appliedCount, IndexLayout.Word.rebuildStage,
      IndexLayout.Word.rebuildRow, IndexLayout.Word.rebuildTime, IndexLayout.Word.journalSum,
    ] {
      other[word] = self[word]
    }
    for word in 0..<Int(changeCount) * IndexLayout.wordsPerChange {
      other.journal[word].store(journal[word].load(ordering: .relaxed), ordering: .relaxed)
    }
    return true
  }
}

/// Changes of cells, by the holder of the database's write lock.
///
/// A process may be killed between any two words. One word (``IndexLayout/Word/occupancy``) therefore holds the record
/// count and the cell whose content is invalid: before a free cell is filled, and while a cell is freed. The next
/// process with the lock frees that cell. It then continues the journal with the interrupted change, which may be
/// complete.
///
/// The sum of the cells changes last. If a process is killed just before, the sum does not match, and the index is
/// rebuilt although its cells are valid.
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
    occupancy = (count + 1, cell)
    setRowWord(cell, entry.rowWord)
    setTagWord(cell, entry.tagWord)
    occupancy = (count + 1, nil)
    self[IndexLayout.Word.identitySum] &+= entry.identity
    return true
  }

  /// Replaces a record under the same key with its successor. Returns false if the record does not exist.
  func replace(rowID: UInt64, with entry: IndexEntry) -> Bool {
    guard cell(of: entry.tag, rowID: entry.rowID) == nil else { return true }
    guard let cell = cell(of: entry.tag, rowID: rowID) else { return false }
    let old = self.entry(in: cell)
    setRowWord(cell, entry.rowWord)
    setTagWord(cell, entry.tagWord)
    self[IndexLayout.Word.identitySum] &+= entry.identity &- old.identity
    return true
  }

  /// Removes a record if it exists. With `remembering`, keeps its use count as a ghost.
  func remove(tag: UInt64, rowID: UInt64, remembering: Bool = false) {
    guard let cell = cell(of: tag, rowID: rowID) else { return }
    let entry = entry(in: cell)
    if remembering { putGhost(tag: tag, useCount: entry.useCount) }
    occupancy.invalidCell = cell
    freeInvalidCell()
    self[IndexLayout.Word.identitySum] &-= entry.identity
  }

  /// Frees the cell whose content is invalid, if there is one.
  ///
  /// Records after it move forward, so that no record has a free cell between itself and its home.
  func freeInvalidCell() {
    guard var cell = occupancy.invalidCell, cell < allCellCount else { return }
    var next = cell + 1
    while next < allCellCount {
      let tagWord = tagWord(next)
      if tagWord == 0 { break }
      if home(of: IndexEntry.tag(inTagWord: tagWord)) <= cell {
        setRowWord(cell, rowWord(next))
        setTagWord(cell, tagWord)
        occupancy.invalidCell = next
        cell = next
      }
      next += 1
    }
    setTagWord(cell, 0)
    occupancy = (max(occupancy.count - 1, 0), nil)
  }

  /// Copies the records of these home cells into another index, which does not have them yet.
  ///
  /// Returns false if one of them finds no free cell there.
  func copyRecords(ofHomes homes: Range<Int>, into other: RecordIndex) -> Bool {
    // A record is before the first free cell after its home.
    let end = min(homes.upperBound + IndexLayout.maximumProbeLength, allCellCount)
    var count = other.occupancy.count
    var sum = other[IndexLayout.Word.identitySum]
    for cell in homes.lowerBound..<end {
      let tagWord = tagWord(cell)
      let tag = IndexEntry.tag(inTagWord: tagWord)
      if tagWord == 0 {
        if cell >= homes.upperBound { break }
      } else if homes.contains(home(of: tag)) {
        let otherHome = other.home(of: tag)
        let copy = other.firstFreeCell(from: otherHome)
        guard copy < otherHome + IndexLayout.maximumProbeLength else { return false }
        other.setRowWord(copy, rowWord(cell))
        other.setTagWord(copy, tagWord)
        count += 1
        sum &+= entry(in: cell).identity
      }
    }
    other.occupancy = (count, nil)
    other[IndexLayout.Word.identitySum] = sum
    return true
  }

  /// Copies the journal and the header, except for sizes and counts, into an index that has the same records.
  ///
  /// If the sum of this index is wrong, that of the other one is, too. Returns false if the journal does not fit. Ghost
  /// entries are not copied: evicted records that are stored again then start with a use count of 1.
  func copyHeader(into other: RecordIndex) -> Bool {
    let changeCount = min(self[IndexLayout.Word.changeCount], UInt64(journalCapacity))
    guard changeCount <= other.journalCapacity else { return false }
    for word in [
      IndexLayout.Word.owner, IndexLayout.Word.boot, IndexLayout.Word.boot + 1, IndexLayout.Word.inflation,
      IndexLayout.Word.lastTombstone, IndexLayout.Word.transaction, IndexLayout.Word.changeCount,
      IndexLayout.Word.appliedCount, IndexLayout.Word.rebuildStage, IndexLayout.Word.rebuildRow,
      IndexLayout.Word.rebuildTime, IndexLayout.Word.identitySum,
    ] {
      other[word] = self[word]
    }
    for word in 0..<Int(changeCount) * IndexLayout.wordsPerChange {
      other.journal[word].store(journal[word].load(ordering: .relaxed), ordering: .relaxed)
    }
    return true
  }
}

/// Changes of cells, by the holder of the database's write lock.
///
/// A process may be killed between any two words. ``IndexLayout/Word/occupancy`` therefore holds the cell whose content
/// is invalid: before a free cell is filled, and while a cell is freed. The next process with the lock frees that cell.
/// It then continues the journal with the interrupted change, which may be complete.
extension RecordIndex {
  /// The number of cells in use, and the cell whose content is invalid.
  var occupancy: (count: Int, invalidCell: Int?) {
    get {
      let word = self[IndexLayout.Word.occupancy]
      let cell = Int(word & 0xffff_ffff) - 1
      return (Int(word >> 32), cell < 0 ? nil : cell)
    }
    set { self[IndexLayout.Word.occupancy] = UInt64(newValue.count) << 32 | UInt64((newValue.invalidCell ?? -1) + 1) }
  }

  func cell(of tag: UInt64, rowID: UInt64) -> Int? {
    let home = home(of: tag)
    return (home..<firstFreeCell(from: home)).first {
      IndexEntry.tag(inTagWord: tagWord($0)) == tag && IndexEntry.rowID(inRowWord: rowWord($0)) == rowID
    }
  }

  /// Inserts a record unless it exists. Returns false if there is no free cell.
  func insert(_ entry: IndexEntry) -> Bool {
    guard cell(of: entry.tag, rowID: entry.rowID) == nil else { return true }
    let cell = firstFreeCell(from: home(of: entry.tag))
    guard cell < allCellCount else { return false }
    let count = occupancy.count
    occupancy = (count + 1, cell)
    setCell(cell, tagWord: entry.tagWord, rowWord: entry.rowWord)
    occupancy = (count + 1, nil)
    return true
  }

  /// Replaces a record under the same key with its successor. Returns false if the record does not exist.
  func replace(rowID: UInt64, with entry: IndexEntry) -> Bool {
    guard cell(of: entry.tag, rowID: entry.rowID) == nil else { return true }
    guard let cell = cell(of: entry.tag, rowID: rowID) else { return false }
    setCell(cell, tagWord: entry.tagWord, rowWord: entry.rowWord)
    return true
  }

  /// Removes a record if it exists. With `remembering`, keeps its use count as a ghost.
  func remove(tag: UInt64, rowID: UInt64, remembering: Bool = false) {
    guard let cell = cell(of: tag, rowID: rowID) else { return }
    if remembering { putGhost(tag: tag, useCount: entry(in: cell).useCount) }
    occupancy.invalidCell = cell
    freeInvalidCell()
  }

  /// Frees the cell whose content is invalid, if there is one.
  ///
  /// Records after it move forward, so that no record has a free cell between itself and its home.
  func freeInvalidCell() {
    guard var cell = occupancy.invalidCell else { return }
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

  // MARK: New files

  /// The words of a record's cell.
  typealias CellWords = (tagWord: UInt64, rowWord: UInt64)

  /// Adds records to a file that no other thread uses yet. Returns false if there is no free cell.
  ///
  /// The caller sets ``occupancy`` at the end.
  func add(_ records: [CellWords]) -> Bool {
    let sorted = Self.sortedByRegion(records)
    for start in stride(from: 0, to: sorted.count, by: Self.loadedTogetherCount) {
      let records = sorted[start..<min(start + Self.loadedTogetherCount, sorted.count)]
      loadCells(of: records.lazy.map { IndexEntry.tag(inTagWord: $0.tagWord) })
      for record in records { guard add(tagWord: record.tagWord, rowWord: record.rowWord) else { return false } }
    }
    return true
  }

  private static let loadedTogetherCount = 64
  private static let regionBitCount: UInt64 = 10

  /// Sorts records by the regions of the table that their homes are in. Otherwise each record would be in another page,
  /// whose address the processor would have to look up.
  private static func sortedByRegion(_ records: [CellWords]) -> [CellWords] {
    func region(_ record: CellWords) -> Int { Int(record.tagWord >> (64 - regionBitCount)) }
    var places = [Int](repeating: 0, count: 1 << regionBitCount)
    for record in records { places[region(record)] += 1 }
    var place = 0
    for region in places.indices { (places[region], place) = (place, place + places[region]) }
    return Array(unsafeUninitializedCapacity: records.count) { sorted, count in
      for record in records {
        sorted.initializeElement(at: places[region(record)], to: record)
        places[region(record)] += 1
      }
      count = records.count
    }
  }

  @inline(__always)
  private func add(tagWord: UInt64, rowWord: UInt64) -> Bool {
    let cell = firstFreeCell(from: home(of: IndexEntry.tag(inTagWord: tagWord)))
    guard cell < allCellCount else { return false }
    setCell(cell, tagWord: tagWord, rowWord: rowWord)
    return true
  }

  /// Adds all records, with their uses, to another file that no other thread uses yet. Returns false if there is no
  /// free cell.
  ///
  /// Homes ascend with the tags, so both files are passed once from the beginning to the end. Ghosts are not copied: an
  /// evicted record that is stored again then starts with a use count of 1.
  func copyRecords(into other: RecordIndex) -> Bool {
    for cell in 0..<allCellCount {
      let tagWord = tagWord(cell)
      guard tagWord == 0 || other.add(tagWord: tagWord, rowWord: rowWord(cell)) else { return false }
    }
    other.occupancy = (recordCount, nil)
    other.inflation = inflation
    return true
  }
}

import Glibc

/// The sums of the blocks, which detect cells that another program or the disk has changed.
///
/// Without them no one would notice that corruption removed a record from the index. A newer response would not replace
/// the record, a removal would miss it, and a rebuild would bring it back. So every operation that relies on the absence
/// of a record checks the blocks that it has searched.
///
/// The sum of a block covers the identities of its records, which lookups never change. It differs from 0 also if the
/// block is empty, so zeros in place of cells and sums are detected, too.
extension RecordIndex {
  /// Initializes the header and the sums of a complete index without records.
  func initialize(transactionID: UInt64) {
    clearJournal(for: transactionID)
    setRebuildPosition(nil)
    for block in 0..<blockCount { blockSums[block].store(Self.sumOfEmptyBlock(block), ordering: .relaxed) }
  }

  private static func sumOfEmptyBlock(_ block: Int) -> UInt32 { UInt32(truncatingIfNeeded: block + 1) &* 0x9E37_79B1 }

  private func cells(of block: Int) -> Range<Int> {
    let first = block * IndexLayout.cellsPerBlock
    return first..<min(first + IndexLayout.cellsPerBlock, allCellCount)
  }

  // MARK: Changing

  /// Changes a cell, and the sum of its block. The first word is written last; see ``RecordIndex``.
  func setCell(_ cell: Int, tagWord: UInt64, rowWord: UInt64) {
    let old = identity(in: cell)
    setRowWord(cell, rowWord)
    setTagWord(cell, tagWord)
    let sum = blockSums + cell / IndexLayout.cellsPerBlock
    reachedIndexStep()
    sum.pointee.store(
      sum.pointee.load(ordering: .relaxed) &+ identity(in: cell) &- old, ordering: .releasing)
  }

  /// The identity of the record in a cell; 0 for a free cell.
  private func identity(in cell: Int) -> UInt32 {
    let tagWord = tagWord(cell)
    return tagWord == 0 ? 0 : IndexEntry.identity(tagWord: tagWord, rowWord: rowWord(cell))
  }

  /// Computes the sums of the blocks from a home to the first free cell after it.
  ///
  /// A killed process may have changed their cells without their sums.
  func computeSums(fromHome home: Int) {
    for block in home / IndexLayout.cellsPerBlock..<blockCount {
      let contents = contents(of: block)
      reachedIndexStep()
      blockSums[block].store(contents.sum, ordering: .releasing)
      if contents.lastFreeCell.map({ $0 >= home }) ?? false { return }
    }
  }

  // MARK: Checking

  /// The sum that a block should have, and its last free cell.
  private func contents(of block: Int) -> (sum: UInt32, lastFreeCell: Int?) {
    var sum = Self.sumOfEmptyBlock(block)
    var lastFreeCell: Int?
    for cell in cells(of: block) {
      let tagWord = tagWord(cell)
      if tagWord == 0 {
        lastFreeCell = cell
      } else {
        sum &+= IndexEntry.identity(tagWord: tagWord, rowWord: rowWord(cell))
      }
    }
    return (sum, lastFreeCell)
  }

  /// Whether a block matches its sum. Without the write lock, a change in progress can make it false.
  func isIntact(block: Int) -> Bool { contents(of: block).sum == blockSums[block].load(ordering: .acquiring) }

  /// Whether the blocks match their sums in which a record with this tag can be. Call this with the write lock.
  ///
  /// If they do, a record that is not found there is not in the index.
  func isIntact(aroundHomeOf tag: UInt64) -> Bool {
    let home = home(of: tag)
    for block in home / IndexLayout.cellsPerBlock..<blockCount {
      let contents = contents(of: block)
      guard contents.sum == blockSums[block].load(ordering: .acquiring) else { return false }
      if contents.lastFreeCell.map({ $0 >= home }) ?? false { return true }
    }
    return true
  }

  /// Calls `body` with each record, from the last cell to the first, as ``forEachEntry(in:_:)`` does.
  ///
  /// - Parameter releasesResidentPages: Whether to keep the index out of the resident memory of a process that only
  ///   inspects it.
  /// - Returns: The blocks that did not match their sums. Without the write lock, they are corrupt or were being changed.
  func forEachCheckedEntry(releasesResidentPages: Bool = false, _ body: (IndexEntry) -> Void) -> [Int] {
    var suspects: [Int] = []
    for block in (0..<blockCount).reversed() {
      let before = blockSums[block].load(ordering: .acquiring)
      var sum = Self.sumOfEmptyBlock(block)
      forEachEntry(in: cells(of: block)) { entry in
        sum &+= entry.identity
        body(entry)
      }
      if sum != before || blockSums[block].load(ordering: .acquiring) != before { suspects.append(block) }
      // 4 MiB of cells at a time.
      if releasesResidentPages, block % (1 << 14) == 0 { releaseResidentPages() }
    }
    return suspects.filter { !isIntact(block: $0) }
  }

  /// Returns the blocks that do not match their sums. Without the write lock, they are corrupt or are being changed.
  func mismatchedBlocks() -> [Int] {
    advise(MADV_SEQUENTIAL)
    defer { advise(MADV_RANDOM) }
    return forEachCheckedEntry { _ in }
  }

  /// Whether all blocks match their sums; nil if they changed during the check.
  ///
  /// - Parameter releasesResidentPages: Whether to keep the index out of the resident memory of a process that only
  ///   checks it.
  func isIntact(releasesResidentPages: Bool = false) -> Bool? {
    let start = (self[IndexLayout.Word.transaction], self[IndexLayout.Word.changeCount])
    var count = 0
    advise(MADV_SEQUENTIAL)
    let suspects = forEachCheckedEntry(releasesResidentPages: releasesResidentPages) { _ in count += 1 }
    advise(MADV_RANDOM)
    let isIntact = suspects.isEmpty && count == recordCount
    let end = (self[IndexLayout.Word.transaction], self[IndexLayout.Word.changeCount])
    return start == end && (start.1 == 0 || isIntact) ? isIntact : nil
  }

  /// A sum over all records. Call this with the write lock.
  ///
  /// It does not depend on the number of cells, so an index and its copy have the same one. Costs 1 ms for 25,000,000
  /// cells.
  var identitySum: UInt32 {
    (0..<blockCount).reduce(into: 0) { sum, block in
      sum &+= blockSums[block].load(ordering: .relaxed) &- Self.sumOfEmptyBlock(block)
    }
  }
}

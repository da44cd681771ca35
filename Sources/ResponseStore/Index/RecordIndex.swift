import Glibc
import Synchronization
import SystemFiles

/// An index of the stored records in a file that all processes map.
///
/// It maps the digest of a cache key to row IDs, with the use count and the size of each record. It has exactly the
/// records of the last commit that was published. A lookup takes the row IDs of a digest, reads each record in its own
/// snapshot, and compares the whole key. A row that does not exist or has another key is a miss.
///
/// The cells are a hash table with linear probing. A record is in its home cell or after it, with no free cell between.
/// A probe therefore ends at the first free cell. Homes ascend with the tags, so a larger table is filled in the order
/// of the smaller one.
///
/// Lookups take no lock while the holder of the database's write lock changes cells:
/// - The first of a cell's two words identifies the record, and is written last. If a lookup reads words of two
///   records, the row has another key.
/// - When a record is removed, later records move toward their homes, and each is copied before its old cell is
///   overwritten. A lookup reads from the first free cell back to the home, so it meets every record that stays.
///
/// `@unchecked Sendable`: the mapping exists until `deinit`, and its words are accessed atomically.
final class RecordIndex: @unchecked Sendable {
  typealias Word = Atomic<UInt64>

  let cellCount: Int
  let byteCount: Int
  /// The number of cells, including those after the last home.
  let allCellCount: Int
  private let memory: UnsafeMutableRawPointer
  private let header: UnsafeMutablePointer<Word>
  let journal: UnsafeMutablePointer<Word>
  private let cells: UnsafeMutablePointer<Word>
  private let ghosts: UnsafeMutablePointer<Atomic<UInt32>>
  private let ghostCount: Int

  /// Takes ownership of a mapping of ``IndexLayout/byteCount(cellCount:)`` bytes.
  init(mapped memory: UnsafeMutableRawPointer, cellCount: Int) {
    self.memory = memory
    self.cellCount = cellCount
    byteCount = IndexLayout.byteCount(cellCount: cellCount)
    allCellCount = cellCount + IndexLayout.tailCellCount
    header = memory.bindMemory(to: Word.self, capacity: byteCount / 8)
    journal = header + IndexLayout.pageByteCount / 8
    cells = journal + IndexLayout.journalByteCount(cellCount: cellCount) / 8
    ghostCount = IndexLayout.ghostCount(cellCount: cellCount)
    ghosts = UnsafeMutableRawPointer(cells + allCellCount * IndexLayout.wordsPerCell)
      .bindMemory(to: Atomic<UInt32>.self, capacity: ghostCount)
  }

  /// Maps an index file; nil if `mmap` fails.
  convenience init?(descriptor: CInt, cellCount: Int) {
    let byteCount = IndexLayout.byteCount(cellCount: cellCount)
    guard let memory = MappedFile.map(descriptor, byteCount: byteCount) else { return nil }
    self.init(mapped: memory, cellCount: cellCount)
    // Advise before the first fault, so that a fault reads one page and the page cache holds no larger folios. The
    // kernel would write a whole folio for each changed word.
    advise(MADV_RANDOM)
  }

  /// Creates an index in this process's private memory; nil without memory.
  convenience init?(cellCount: Int) {
    let byteCount = IndexLayout.byteCount(cellCount: cellCount)
    let memory = mmap(nil, byteCount, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    guard let memory, memory != MAP_FAILED else { return nil }
    self.init(mapped: memory, cellCount: cellCount)
  }

  deinit {
    munmap(memory, byteCount)
  }

  // MARK: Words

  /// A word of the header, at an offset from ``IndexLayout/Word``.
  subscript(word: Int) -> UInt64 {
    get { header[word].load(ordering: .acquiring) }
    set {
      reachedIndexStep()
      header[word].store(newValue, ordering: .releasing)
    }
  }

  func tagWord(_ cell: Int) -> UInt64 { cells[cell * IndexLayout.wordsPerCell].load(ordering: .acquiring) }
  func rowWord(_ cell: Int) -> UInt64 { cells[cell * IndexLayout.wordsPerCell + 1].load(ordering: .acquiring) }

  func entry(in cell: Int) -> IndexEntry { IndexEntry(tagWord: tagWord(cell), rowWord: rowWord(cell)) }

  /// Changes a cell. The first word is written last; see ``RecordIndex``.
  func setCell(_ cell: Int, tagWord: UInt64, rowWord: UInt64) {
    reachedIndexStep()
    cells[cell * IndexLayout.wordsPerCell + 1].store(rowWord, ordering: .releasing)
    reachedIndexStep()
    cells[cell * IndexLayout.wordsPerCell].store(tagWord, ordering: .releasing)
  }

  /// The present inflation of eviction, which each used record receives.
  var inflation: Double {
    get { Double(bitPattern: self[IndexLayout.Word.inflation]) }
    set { self[IndexLayout.Word.inflation] = newValue.bitPattern }
  }

  var recordCount: Int { occupancy.count }

  /// Whether there are cells for `count` more records.
  func hasSpace(for count: Int) -> Bool {
    (recordCount + count) * 100 <= cellCount * IndexLayout.fullPercent
  }

  // MARK: Looking up

  /// A cell that may belong to a record.
  struct Match {
    let rowID: UInt64
    let cell: Int
    let tagWord: UInt64
  }

  /// The cells that may belong to the records of a digest. Do not use them after the index is deallocated.
  struct Matches: IteratorProtocol {
    /// A pointer instead of the index: counting references would make all threads write to one cache line.
    fileprivate let cells: UnsafeMutablePointer<Word>
    fileprivate let tag: UInt64
    fileprivate let home: Int
    fileprivate var cell: Int

    @inline(__always)
    mutating func next() -> Match? {
      while cell > home {
        cell -= 1
        let words = cells + cell * IndexLayout.wordsPerCell
        let tagWord = words[0].load(ordering: .acquiring)
        if IndexEntry.tag(inTagWord: tagWord) == tag {
          let rowWord = words[1].load(ordering: .acquiring)
          return Match(rowID: IndexEntry.rowID(inRowWord: rowWord), cell: cell, tagWord: tagWord)
        }
      }
      return nil
    }
  }

  /// Returns the cells that may belong to the records of a digest. Any thread of any process can call this.
  @inline(__always)
  func matches(of digest: UInt64) -> Matches { matches(ofTag: IndexEntry.tag(of: digest)) }

  @inline(__always)
  private func matches(ofTag tag: UInt64) -> Matches {
    let home = home(of: tag)
    return Matches(cells: cells, tag: tag, home: home, cell: firstFreeCell(from: home))
  }

  /// Returns the rows that the cells name for a tag. Any thread of any process can call this.
  func rowIDs(ofTag tag: UInt64) -> [UInt64] {
    var rowIDs: [UInt64] = []
    var matches = matches(ofTag: tag)
    while let match = matches.next() { rowIDs.append(match.rowID) }
    return rowIDs
  }

  /// Whether a cell still names the row that was found in it. A record whose cell has moved counts as changed.
  func hasRow(of match: Match) -> Bool { IndexEntry.rowID(inRowWord: rowWord(match.cell)) == match.rowID }

  /// Records a use of a record. Any thread of any process can call this.
  ///
  /// If another process changes the cell at the same time, the use is not counted.
  func recordUse(of match: Match) {
    let rowWord = rowWord(match.cell)
    guard IndexEntry.rowID(inRowWord: rowWord) == match.rowID else { return }
    var entry = IndexEntry(tagWord: match.tagWord, rowWord: rowWord)
    let cell = cells + match.cell * IndexLayout.wordsPerCell
    if entry.useCount < IndexEntry.maximumUseCount {
      entry.useCount += 1
      _ = cell[0].compareExchange(expected: match.tagWord, desired: entry.tagWord, ordering: .relaxed)
    }
    entry.inflation = inflation
    if entry.rowWord != rowWord {
      _ = cell[1].compareExchange(expected: rowWord, desired: entry.rowWord, ordering: .relaxed)
    }
  }

  @inline(__always)
  func home(of tag: UInt64) -> Int {
    Int(truncatingIfNeeded: (tag << 24).multipliedFullWidth(by: UInt64(cellCount)).high)
  }

  /// Returns the end of the cells that can contain a record with this home.
  @inline(__always)
  func firstFreeCell(from home: Int) -> Int {
    var cell = home
    while cell < allCellCount, tagWord(cell) != 0 { cell += 1 }
    return cell
  }

  /// Loads the cells and ghost entries of several records into the processor's cache.
  ///
  /// Each probe of a large index waits for memory. The reads of this loop do not depend on each other, so the processor
  /// waits for many of them at once.
  func loadCells(of tags: some Sequence<UInt64>) {
    for tag in tags {
      let home = home(of: tag)
      // A line of 64 bytes holds four cells.
      for cell in stride(from: home, to: min(home + 9, allCellCount), by: 4) {
        _ = cells[cell * IndexLayout.wordsPerCell].load(ordering: .relaxed)
      }
      _ = ghosts[ghostPlace(of: tag)].load(ordering: .relaxed)
    }
  }

  /// Calls `body` with each record in these cells, from the last cell to the first.
  ///
  /// Records only move to lower cells. A pass over all cells therefore meets each record that stays, even while another
  /// process changes the index. It may meet a moved record twice.
  func forEachEntry(in range: Range<Int>, _ body: (IndexEntry) -> Void) {
    for cell in range.reversed() {
      let tagWord = tagWord(cell)
      if tagWord != 0 { body(IndexEntry(tagWord: tagWord, rowWord: rowWord(cell))) }
    }
  }

  // MARK: Ghosts

  /// Stores the use count of an evicted record as a ghost entry.
  func putGhost(tag: UInt64, useCount: UInt64) {
    let word = UInt32(truncatingIfNeeded: (tag << 4) | min(useCount, IndexEntry.maximumUseCount))
    ghosts[ghostPlace(of: tag)].store(word, ordering: .relaxed)
  }

  /// Returns the use count of an evicted record; 0 without a ghost entry.
  func ghost(tag: UInt64) -> UInt64 {
    let word = ghosts[ghostPlace(of: tag)].load(ordering: .relaxed)
    return word >> 4 == UInt32(truncatingIfNeeded: tag << 4) >> 4 ? UInt64(word & 15) : 0
  }

  /// Returns the use count of an evicted record that is stored again, and deletes its ghost entry; 0 without one.
  func takeGhost(tag: UInt64) -> UInt64 {
    let useCount = ghost(tag: tag)
    if useCount != 0 { ghosts[ghostPlace(of: tag)].store(0, ordering: .relaxed) }
    return useCount
  }

  private func ghostPlace(of tag: UInt64) -> Int {
    Int(truncatingIfNeeded: (tag << 24).multipliedFullWidth(by: UInt64(ghostCount)).high)
  }

  // MARK: Memory

  /// Writes to each page, so that later changes meet no page fault. Call this before the first record is added.
  func touch() {
    for offset in stride(from: 0, to: byteCount, by: IndexLayout.pageByteCount) {
      header[offset / 8].store(0, ordering: .relaxed)
    }
  }

  /// Replaces the mapping with zeros, which releases its hold on the file. Later and concurrent lookups find no record.
  func retire() {
    mmap(memory, byteCount, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
  }

  /// Removes the pages from this process's resident memory; they stay in the page cache.
  ///
  /// An index in private memory stays, because this would clear it.
  func releaseResidentPages() {
    if self[IndexLayout.Word.inode] != 0 { advise(MADV_DONTNEED) }
  }

  /// Keeps used pages in the page cache while the records of a full store pass through it.
  ///
  /// With `MADV_RANDOM`, Linux 6.3 and later ignore the use of a page when they need memory. They then drop the pages
  /// of the index together with the records, and each change waits for the disk.
  func preferInPageCache() { advise(MADV_NORMAL) }

  /// Tells the kernel how the memory will be read.
  func advise(_ advice: CInt) { madvise(memory, byteCount, advice) }
}

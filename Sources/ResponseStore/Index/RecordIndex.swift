import Glibc
import Synchronization

/// An index of the stored records in a file that all processes map.
///
/// It maps the digest of a cache key to row IDs, with the use count and the size of each record. The index is a hint;
/// the database is the truth. A lookup takes the row IDs of a digest, reads each record in its own snapshot, and
/// compares the whole key. A row that does not exist or has another key is a miss.
///
/// The slots are a hash table with linear probing. A record is in its home slot or after it, with no free slot between.
/// A probe therefore ends at the first free slot. Homes ascend with the tags, so a larger table is filled in the order
/// of the smaller one.
///
/// Lookups take no lock while the holder of the database's write lock changes slots:
/// - The first of a slot's two words identifies the record, and is written last. If a lookup reads words of two
///   records, the row has another key.
/// - When a record is removed, later records move toward their homes, and each is copied before its old slot is
///   overwritten. A lookup reads from the first free slot back to the home, so it meets every record that stays.
///
/// `@unchecked Sendable`: the mapping exists until `deinit`, and its words are accessed atomically.
final class RecordIndex: @unchecked Sendable {
  typealias Word = Atomic<UInt64>

  let slotCount: Int
  let byteCount: Int
  /// The number of slots, including those after the last home.
  let allSlotCount: Int
  private let memory: UnsafeMutableRawPointer
  private let header: UnsafeMutablePointer<Word>
  let journal: UnsafeMutablePointer<Word>
  private let slots: UnsafeMutablePointer<Word>
  private let ghosts: UnsafeMutablePointer<Atomic<UInt32>>
  private let ghostCount: Int

  /// Takes ownership of a mapping of ``IndexLayout/byteCount(slotCount:)`` bytes.
  init(mapped memory: UnsafeMutableRawPointer, slotCount: Int) {
    self.memory = memory
    self.slotCount = slotCount
    byteCount = IndexLayout.byteCount(slotCount: slotCount)
    allSlotCount = slotCount + IndexLayout.maximumProbeLength
    header = memory.bindMemory(to: Word.self, capacity: byteCount / 8)
    journal = header + IndexLayout.pageByteCount / 8
    slots = journal + IndexLayout.journalByteCount(slotCount: slotCount) / 8
    ghostCount = IndexLayout.ghostCount(slotCount: slotCount)
    ghosts = UnsafeMutableRawPointer(slots + allSlotCount * IndexLayout.wordsPerSlot)
      .bindMemory(to: Atomic<UInt32>.self, capacity: ghostCount)
  }

  /// Creates an index in this process's private memory.
  convenience init(slotCount: Int) {
    let byteCount = IndexLayout.byteCount(slotCount: slotCount)
    let memory = mmap(nil, byteCount, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    guard let memory, memory != MAP_FAILED else { fatalError("No memory for an index of \(slotCount) slots") }
    self.init(mapped: memory, slotCount: slotCount)
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

  func tagWord(_ slot: Int) -> UInt64 { slots[slot * IndexLayout.wordsPerSlot].load(ordering: .acquiring) }
  func rowWord(_ slot: Int) -> UInt64 { slots[slot * IndexLayout.wordsPerSlot + 1].load(ordering: .acquiring) }

  func entry(in slot: Int) -> IndexEntry { IndexEntry(tagWord: tagWord(slot), rowWord: rowWord(slot)) }

  func setTagWord(_ slot: Int, _ tagWord: UInt64) {
    reachedIndexStep()
    slots[slot * IndexLayout.wordsPerSlot].store(tagWord, ordering: .releasing)
  }

  func setRowWord(_ slot: Int, _ rowWord: UInt64) {
    reachedIndexStep()
    slots[slot * IndexLayout.wordsPerSlot + 1].store(rowWord, ordering: .releasing)
  }

  /// The present inflation of eviction, which each used record receives.
  var inflation: Double {
    get {
      let value = Double(bitPattern: self[IndexLayout.Word.inflation])
      // A corrupt file can contain any value.
      return value.isFinite ? max(value, 0) : 0
    }
    set { self[IndexLayout.Word.inflation] = newValue.bitPattern }
  }

  var isSuperseded: Bool { header[IndexLayout.Word.isSuperseded].load(ordering: .relaxed) != 0 }

  /// The number of records in the index.
  var recordCount: Int { min(Int(self[IndexLayout.Word.occupancy] >> 32), allSlotCount) }

  /// Whether the index contains every record of the database; false during a check or rebuild.
  var isComplete: Bool { self[IndexLayout.Word.rebuildStage] == 0 }

  // MARK: Looking up

  /// A slot that may belong to a record.
  struct Match {
    let rowID: UInt64
    let slot: Int
    let tagWord: UInt64
  }

  /// The slots that may belong to the records of a digest. Do not use them after the index is deallocated.
  struct Matches: IteratorProtocol {
    /// A pointer instead of the index: counting references would make all threads write to one cache line.
    fileprivate let slots: UnsafeMutablePointer<Word>
    fileprivate let tag: UInt64
    fileprivate let home: Int
    fileprivate var slot: Int

    @inline(__always)
    mutating func next() -> Match? {
      while slot > home {
        slot -= 1
        let words = slots + slot * IndexLayout.wordsPerSlot
        let tagWord = words[0].load(ordering: .acquiring)
        if IndexEntry.tag(inTagWord: tagWord) == tag {
          let rowWord = words[1].load(ordering: .acquiring)
          return Match(rowID: IndexEntry.rowID(inRowWord: rowWord), slot: slot, tagWord: tagWord)
        }
      }
      return nil
    }
  }

  /// Returns the slots that may belong to the records of a digest. Any thread of any process can call this.
  @inline(__always)
  func matches(of digest: UInt64) -> Matches {
    let tag = IndexEntry.tag(of: digest)
    let home = home(of: tag)
    return Matches(slots: slots, tag: tag, home: home, slot: firstFreeSlot(from: home))
  }

  /// Whether a slot still names the row that was found in it. A record whose slot has moved counts as changed.
  func hasRow(of match: Match) -> Bool { IndexEntry.rowID(inRowWord: rowWord(match.slot)) == match.rowID }

  /// Records a use of a record. Any thread of any process can call this.
  ///
  /// If another process changes the slot at the same time, the use is not counted.
  func recordUse(of match: Match) {
    let rowWord = rowWord(match.slot)
    guard IndexEntry.rowID(inRowWord: rowWord) == match.rowID else { return }
    var entry = IndexEntry(tagWord: match.tagWord, rowWord: rowWord)
    let slot = slots + match.slot * IndexLayout.wordsPerSlot
    if entry.useCount < IndexEntry.maximumUseCount {
      entry.useCount += 1
      _ = slot[0].compareExchange(expected: match.tagWord, desired: entry.tagWord, ordering: .relaxed)
    }
    entry.inflation = inflation
    if entry.rowWord != rowWord {
      _ = slot[1].compareExchange(expected: rowWord, desired: entry.rowWord, ordering: .relaxed)
    }
  }

  @inline(__always)
  func home(of tag: UInt64) -> Int {
    Int(truncatingIfNeeded: (tag << 24).multipliedFullWidth(by: UInt64(slotCount)).high)
  }

  /// Returns the end of the slots that can contain a record with this home.
  @inline(__always)
  func firstFreeSlot(from home: Int) -> Int {
    var slot = home
    let end = home + IndexLayout.maximumProbeLength
    while slot < end, tagWord(slot) != 0 { slot += 1 }
    return slot
  }

  /// Loads the slots and ghost entries of several records into the processor's cache.
  ///
  /// Each probe of a large index waits for memory. The reads of this loop do not depend on each other, so the processor
  /// waits for many of them at once.
  func loadSlots(of tags: some Sequence<UInt64>) {
    for tag in tags {
      _ = slots[home(of: tag) * IndexLayout.wordsPerSlot].load(ordering: .relaxed)
      _ = ghosts[ghostPlace(of: tag)].load(ordering: .relaxed)
    }
  }

  /// Calls `body` with each record in these slots, from the last slot to the first.
  ///
  /// Records only move to lower slots. A pass over all slots therefore meets each record that stays, even while another
  /// process changes the index. It may meet a moved record twice.
  func forEachEntry(in range: Range<Int>, _ body: (IndexEntry) -> Void) {
    for slot in range.reversed() {
      let tagWord = tagWord(slot)
      if tagWord != 0 { body(IndexEntry(tagWord: tagWord, rowWord: rowWord(slot))) }
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

  /// Returns the use count of an evicted record that is stored again, and deletes its ghost entry.
  ///
  /// 0 without a ghost entry.
  func takeGhost(tag: UInt64) -> UInt64 {
    let useCount = ghost(tag: tag)
    if useCount != 0 { ghosts[ghostPlace(of: tag)].store(0, ordering: .relaxed) }
    return useCount
  }

  private func ghostPlace(of tag: UInt64) -> Int {
    Int(truncatingIfNeeded: (tag << 24).multipliedFullWidth(by: UInt64(ghostCount)).high)
  }

  // MARK: Memory

  /// Releases the disk space of the slots, even if other processes still have the file mapped.
  ///
  /// Those processes find no record in it, and see that it is superseded and incomplete.
  func releaseSlots() {
    // Do this first: a process that finds no record must not consider the index complete.
    setRebuildPosition(.rows(below: .max))
    // If the file system does not support this, the space is freed when the last process unmaps the file.
    madvise(memory + IndexLayout.pageByteCount, byteCount - IndexLayout.pageByteCount, MADV_REMOVE)
  }

  /// Replaces the mapping with zeros, which releases its hold on the file. Later and concurrent lookups find no record.
  func retire() {
    mmap(memory, byteCount, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
  }

  /// Syncs the first `byteCount` bytes to disk.
  func synchronize(byteCount: Int) -> Bool { msync(memory, byteCount, MS_SYNC) == 0 }

  /// Removes the pages from this process's resident memory; they stay in the page cache.
  ///
  /// Only for a mapped file: this would clear an index in private memory.
  func releaseResidentPages() { advise(MADV_DONTNEED) }

  /// Tells the kernel how the memory will be read.
  func advise(_ advice: CInt) { madvise(memory, byteCount, advice) }
}

import Glibc
import Synchronization

/// An index of the stored records in a file that all processes map: from the digest of a key to row IDs, with the use count
/// and the size of each record.
///
/// It is a hint, and the database is the truth. A lookup takes the row IDs that stand here for a digest, reads each record in
/// its own snapshot, and compares the whole key. A row that is not there, or has another key, is a miss.
///
/// The slots are a hash table with linear probing. A record stands in the first slots behind its home, with no free slot
/// between, so that a probe ends at the first free one. Homes ascend with the tags, so that a larger table is filled in the
/// order of the smaller one.
///
/// Lookups take no lock, while the holder of the database's write lock changes slots:
/// - Of a slot's two words the first says whose it is, and is written last. Words of two records may be read together; then
///   the row has another key.
/// - When a record goes, later ones move towards their homes, each copied before its old slot is overwritten. A lookup goes
///   in the other direction, from the first free slot back to the home, so it meets every record that stays.
///
/// `@unchecked Sendable`: the mapping stays until `deinit`, and its words are accessed atomically.
final class RecordIndex: @unchecked Sendable {
  typealias Word = Atomic<UInt64>

  let slotCount: Int
  let byteCount: Int
  /// With those behind the last home.
  let allSlotCount: Int
  private let memory: UnsafeMutableRawPointer
  private let header: UnsafeMutablePointer<Word>
  let journal: UnsafeMutablePointer<Word>
  private let slots: UnsafeMutablePointer<Word>
  private let ghosts: UnsafeMutablePointer<Atomic<UInt32>>
  private let ghostCount: Int

  /// Takes over a mapping of ``IndexLayout/byteCount(slotCount:)`` bytes.
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

  /// An index in memory of this process alone.
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

  /// A word of the header, as ``IndexLayout/Word`` names them.
  subscript(word: Int) -> UInt64 {
    get { header[word].load(ordering: .acquiring) }
    set {
      reachedIndexStep()
      header[word].store(newValue, ordering: .releasing)
    }
  }

  func facts(_ slot: Int) -> UInt64 { slots[slot * IndexLayout.wordsPerSlot].load(ordering: .acquiring) }
  func place(_ slot: Int) -> UInt64 { slots[slot * IndexLayout.wordsPerSlot + 1].load(ordering: .acquiring) }

  func entry(in slot: Int) -> IndexEntry { IndexEntry(facts: facts(slot), place: place(slot)) }

  func setFacts(_ slot: Int, _ facts: UInt64) {
    reachedIndexStep()
    slots[slot * IndexLayout.wordsPerSlot].store(facts, ordering: .releasing)
  }

  func setPlace(_ slot: Int, _ place: UInt64) {
    reachedIndexStep()
    slots[slot * IndexLayout.wordsPerSlot + 1].store(place, ordering: .releasing)
  }

  /// The inflation of eviction: a record that is used gets the present one.
  var inflation: Double {
    get {
      let value = Double(bitPattern: self[IndexLayout.Word.inflation])
      // Damage may make it anything.
      return value.isFinite ? max(value, 0) : 0
    }
    set { self[IndexLayout.Word.inflation] = newValue.bitPattern }
  }

  var isSuperseded: Bool { header[IndexLayout.Word.isSuperseded].load(ordering: .relaxed) != 0 }

  /// How many records are in the index.
  var recordCount: Int { min(Int(self[IndexLayout.Word.occupancy] >> 32), allSlotCount) }

  /// Whether every record of the database is in the index; not while it is rebuilt.
  var isComplete: Bool { self[IndexLayout.Word.rebuildStage] == 0 }

  // MARK: Looking up

  /// A slot that may be of a record.
  struct Match {
    let rowID: UInt64
    let slot: Int
    let facts: UInt64
  }

  /// The slots that may be of a digest's records. Not to be used after the index is gone.
  struct Matches: IteratorProtocol {
    /// Not the index: to count references to it would have all threads write to one place.
    fileprivate let slots: UnsafeMutablePointer<Word>
    fileprivate let tag: UInt64
    fileprivate let home: Int
    fileprivate var slot: Int

    @inline(__always)
    mutating func next() -> Match? {
      while slot > home {
        slot -= 1
        let words = slots + slot * IndexLayout.wordsPerSlot
        let facts = words[0].load(ordering: .acquiring)
        if IndexEntry.tag(inFacts: facts) == tag {
          let place = words[1].load(ordering: .acquiring)
          return Match(rowID: IndexEntry.rowID(inPlace: place), slot: slot, facts: facts)
        }
      }
      return nil
    }
  }

  /// The slots that may be of the records with this digest. From any thread of any process.
  @inline(__always)
  func matches(of digest: UInt64) -> Matches {
    let tag = IndexEntry.tag(of: digest)
    let home = home(of: tag)
    return Matches(slots: slots, tag: tag, home: home, slot: firstFreeSlot(from: home))
  }

  /// Whether a slot still names the row that was found in it. A record whose slot has moved counts as changed.
  func hasRow(of match: Match) -> Bool { IndexEntry.rowID(inPlace: place(match.slot)) == match.rowID }

  /// Notes that a record was used. From any thread of any process.
  ///
  /// When another process changes the slot meanwhile, the use is not counted.
  func noteUse(of match: Match) {
    let place = place(match.slot)
    guard IndexEntry.rowID(inPlace: place) == match.rowID else { return }
    var entry = IndexEntry(facts: match.facts, place: place)
    let slot = slots + match.slot * IndexLayout.wordsPerSlot
    if entry.useCount < IndexEntry.maximumUseCount {
      entry.useCount += 1
      _ = slot[0].compareExchange(expected: match.facts, desired: entry.facts, ordering: .relaxed)
    }
    entry.inflation = inflation
    if entry.place != place {
      _ = slot[1].compareExchange(expected: place, desired: entry.place, ordering: .relaxed)
    }
  }

  @inline(__always)
  func home(of tag: UInt64) -> Int {
    Int(truncatingIfNeeded: (tag << 24).multipliedFullWidth(by: UInt64(slotCount)).high)
  }

  /// Behind the slots in which a record with this home can be.
  @inline(__always)
  func firstFreeSlot(from home: Int) -> Int {
    var slot = home
    let end = home + IndexLayout.maximumProbeLength
    while slot < end, facts(slot) != 0 { slot += 1 }
    return slot
  }

  /// Calls `body` with each record in these slots, from the last slot to the first.
  ///
  /// Records only ever move to slots in front. So a pass over all slots meets each record that stays, also while another
  /// process changes the index; it may meet a record that moves twice.
  func forEachEntry(in range: Range<Int>, _ body: (IndexEntry) -> Void) {
    for slot in range.reversed() {
      let facts = facts(slot)
      if facts != 0 { body(IndexEntry(facts: facts, place: place(slot))) }
    }
  }

  // MARK: Ghosts

  /// Remembers the use count of an evicted record.
  func putGhost(tag: UInt64, useCount: UInt64) {
    let word = UInt32(truncatingIfNeeded: (tag << 4) | min(useCount, IndexEntry.maximumUseCount))
    ghosts[ghostPlace(of: tag)].store(word, ordering: .relaxed)
  }

  /// The use count of an evicted record; 0 if it is not known.
  func ghost(tag: UInt64) -> UInt64 {
    let word = ghosts[ghostPlace(of: tag)].load(ordering: .relaxed)
    return word >> 4 == UInt32(truncatingIfNeeded: tag << 4) >> 4 ? UInt64(word & 15) : 0
  }

  /// The use count of an evicted record that comes back; it is forgotten then. 0 if it is not known.
  func takeGhost(tag: UInt64) -> UInt64 {
    let useCount = ghost(tag: tag)
    if useCount != 0 { ghosts[ghostPlace(of: tag)].store(0, ordering: .relaxed) }
    return useCount
  }

  private func ghostPlace(of tag: UInt64) -> Int {
    Int(truncatingIfNeeded: (tag << 24).multipliedFullWidth(by: UInt64(ghostCount)).high)
  }

  // MARK: Memory

  /// Gives the space of the slots back to the file system, whichever processes still have the file mapped: they find nothing in
  /// it, and see that it is superseded, and not complete.
  func releaseSlots() {
    // First this: who finds nothing must not take it for the whole truth.
    setRebuildPosition(.rows(below: .max))
    // Where the file system cannot, the space comes free when the last process unmaps the file.
    madvise(memory + IndexLayout.pageByteCount, byteCount - IndexLayout.pageByteCount, MADV_REMOVE)
  }

  /// Has the memory read as zeros, and gives the file's space back as far as this mapping holds it. Nothing is found from
  /// then on, also by lookups that are under way.
  func retire() {
    mmap(memory, byteCount, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
  }

  /// Writes a range of bytes to the disk, and waits for it.
  func synchronize(byteCount: Int) -> Bool { msync(memory, byteCount, MS_SYNC) == 0 }

  /// Tells the kernel how the memory is read.
  func advise(_ advice: CInt) { madvise(memory, byteCount, advice) }
}

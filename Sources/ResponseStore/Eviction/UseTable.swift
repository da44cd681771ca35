import Glibc
import Synchronization

/// What is known of the use of each record: a table in shared memory, and the choice of what to evict.
///
/// A hit is one or two plain stores here: no lock, no write to LMDB, seen by every process, and still there after a restart.
/// The policy is GDSF with squared use counts and a memory of what was evicted: a record's worth is `base + uses² / bytes`,
/// where `base` is the table's clock at its last use; the clock moves up to the worth of each victim, so that what is not
/// used ages. The least of a sample goes: 32 records drawn at random and the best 16 candidates of earlier draws. One step
/// costs the same at any number of records.
///
/// The content is advice. A table that is damaged, lost or out of date makes choices worse, never an answer wrong: whoever
/// evicts looks the record up first. Values are words that are read and written atomically; two writers may lose each
/// other's update, which costs as much as one hit uncounted.
///
/// Records are added and removed by whoever holds LMDB's write transaction, one at a time over all processes. Uses are
/// noted by anyone.
///
/// `@unchecked Sendable`: the mapping is made in `init` and unmapped in `deinit`, its words are accessed atomically, and
/// `candidates` is under a lock.
public final class UseTable: @unchecked Sendable {
  typealias Word = Atomic<UInt64>

  /// The words of the header, one page.
  enum HeaderWord {
    static let magic = 0
    static let owner = 1
    static let slotCount = 2
    static let clock = 3
    /// Not 0 once a larger table has taken this one's place.
    static let isSuperseded = 4
    /// Apart from the others, which every lookup reads: it changes with each store, and a reader on another processor would wait
    /// for it.
    static let recordCount = 16
  }

  static let magic: UInt64 = 0x3145_5355_4342_4d4c
  static let headerByteCount = 4096
  static let wordsPerSlot = 2
  /// A record stands in one of so many places behind the one that its digest names.
  static let windowLength = 16
  static let sampleCount = 32
  static let candidateCount = 16
  static let mostUses: UInt64 = 15
  /// What a table begins with.
  public static let smallestSlotCount = 512

  private let base: UnsafeMutableRawPointer
  let byteCount: Int
  /// A power of two.
  public let slotCount: Int
  private let words: UnsafeMutablePointer<Word>
  private let slots: UnsafeMutablePointer<Word>
  private let ghosts: UnsafeMutablePointer<Word>
  let candidates = Mutex<[UInt64]>([])
  let random: Mutex<SampleGenerator>

  /// The bytes of a table with so many slots: header, slots, and half as many ghosts. 20 bytes a slot.
  static func byteCount(slotCount: Int) -> Int {
    headerByteCount + slotCount * wordsPerSlot * 8 + slotCount / 2 * 8
  }

  /// A table in memory of this process alone.
  ///
  /// - Parameters:
  ///   - slotCount: A power of two; more than 1.5 times the records that are expected.
  ///   - seed: For the draws, so that a run can be repeated.
  public convenience init(slotCount: Int, seed: UInt64 = 1) {
    let count = Self.byteCount(slotCount: slotCount)
    let memory = mmap(nil, count, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    precondition(memory != nil && memory != MAP_FAILED, "No memory for a table of \(slotCount) records")
    self.init(mapped: memory!, slotCount: slotCount, seed: seed)
  }

  /// Takes over a mapping of ``byteCount(slotCount:)`` bytes.
  init(mapped: UnsafeMutableRawPointer, slotCount: Int, seed: UInt64) {
    precondition(slotCount >= 64 && slotCount & (slotCount - 1) == 0, "A table's slot count is a power of two")
    base = mapped
    byteCount = Self.byteCount(slotCount: slotCount)
    self.slotCount = slotCount
    words = mapped.bindMemory(to: Word.self, capacity: byteCount / 8)
    slots = words + Self.headerByteCount / 8
    ghosts = slots + slotCount * Self.wordsPerSlot
    random = Mutex(SampleGenerator(state: seed))
  }

  deinit {
    munmap(base, byteCount)
  }

  // MARK: Header

  func header(_ word: Int) -> UInt64 { words[word].load(ordering: .relaxed) }
  func setHeader(_ word: Int, _ value: UInt64) { words[word].store(value, ordering: .relaxed) }

  /// How many records the table knows.
  public var recordCount: Int { Int(header(HeaderWord.recordCount)) }

  /// Whether a larger table has taken its place, so that it must be opened anew.
  var isSuperseded: Bool { header(HeaderWord.isSuperseded) != 0 }

  var clock: Double {
    get { Double(bitPattern: header(HeaderWord.clock)) }
    set { setHeader(HeaderWord.clock, newValue.bitPattern) }
  }

  // MARK: Records

  /// A slot's first word: who, how often used, how large. The size is kept as a logarithm, in steps of 0.07 %.
  struct Facts {
    /// The upper 44 bits of the digest; never 0, which marks a free slot.
    var tag: UInt64
    var uses: UInt64
    private var size: UInt64

    init(tag: UInt64, uses: UInt64, byteCount: Int) {
      self.tag = tag
      self.uses = min(uses, UseTable.mostUses)
      size = UInt64(log2(Double(max(byteCount, 64))) * 1024)
    }

    init(word: UInt64) {
      tag = word >> 20
      uses = word >> 16 & 15
      size = word & 0xffff
    }

    var word: UInt64 { tag << 20 | uses << 16 | size }

    var byteCount: Double { exp2(Double(size) * (1.0 / 1024)) }

    func worth(base: Double) -> Double {
      base + Double(uses * uses) * exp2(Double(size) * (-1.0 / 1024))
    }
  }

  /// A slot's second word: which row, and the clock at its last use as a float without its last four bits.
  struct Place {
    var rowID: UInt64
    var base: Double

    static let rowIDBits: UInt64 = 36

    init(rowID: UInt64, base: Double) {
      self.rowID = rowID & (1 << Self.rowIDBits - 1)
      self.base = base
    }

    init(word: UInt64) {
      rowID = word & (1 << Self.rowIDBits - 1)
      base = Double(Float(bitPattern: UInt32(truncatingIfNeeded: word >> Self.rowIDBits) << 4))
    }

    var word: UInt64 { rowID | UInt64(Float(base).bitPattern >> 4) << Self.rowIDBits }
  }

  /// The bits of a row id that the table keeps.
  static func keptBits(of rowID: UInt64) -> UInt64 { rowID & (1 << Place.rowIDBits - 1) }

  func slot(_ index: Int) -> UnsafeMutablePointer<Word> { slots + index * Self.wordsPerSlot }

  /// What is kept of a digest, with the bits that choose the place in it.
  private func tag(_ digest: UInt64) -> UInt64 { max(digest >> 20, 1) }

  private func index(of tag: UInt64, _ step: Int) -> Int {
    (Int(truncatingIfNeeded: tag) &+ step) & (slotCount - 1)
  }

  func find(_ tag: UInt64) -> Int? {
    for step in 0..<Self.windowLength {
      let index = index(of: tag, step)
      if slot(index)[0].load(ordering: .relaxed) >> 20 == tag { return index }
    }
    return nil
  }

  /// Notes that a record was used. From any thread of any process.
  public func noteUse(of digest: UInt64) {
    guard let index = find(tag(digest)) else { return }
    let slot = slot(index)
    // When another changes a word meanwhile, this use goes uncounted.
    let word = slot[0].load(ordering: .relaxed)
    var facts = Facts(word: word)
    if facts.tag == tag(digest), facts.uses < Self.mostUses {
      facts.uses += 1
      _ = slot[0].compareExchange(expected: word, desired: facts.word, ordering: .relaxed)
    }
    let placeWord = slot[1].load(ordering: .relaxed)
    let place = Place(rowID: Place(word: placeWord).rowID, base: clock)
    if place.word != placeWord {
      _ = slot[1].compareExchange(expected: placeWord, desired: place.word, ordering: .relaxed)
    }
  }

  /// Enters a record, with the uses that it had when it was last there. False if there is no place for it.
  ///
  /// - Parameters:
  ///   - digest: What stands for key and variant.
  ///   - rowID: Its row.
  ///   - byteCount: What it takes on disk.
  @discardableResult
  public func insert(_ digest: UInt64, rowID: UInt64, byteCount: Int) -> Bool {
    let tag = tag(digest)
    let place = Place(rowID: rowID, base: clock)
    if let index = find(tag) {
      // A newer response for the same key: its uses go on.
      let slot = slot(index)
      let uses = Facts(word: slot[0].load(ordering: .relaxed)).uses + 1
      slot[1].store(place.word, ordering: .relaxed)
      slot[0].store(Facts(tag: tag, uses: uses, byteCount: byteCount).word, ordering: .relaxed)
      return true
    }
    for step in 0..<Self.windowLength {
      let slot = slot(index(of: tag, step))
      guard slot[0].load(ordering: .relaxed) == 0 else { continue }
      let facts = Facts(tag: tag, uses: takeGhost(tag) + 1, byteCount: byteCount)
      slot[1].store(place.word, ordering: .relaxed)
      slot[0].store(facts.word, ordering: .releasing)
      words[HeaderWord.recordCount].add(1, ordering: .relaxed)
      return true
    }
    return false
  }

  /// Takes a record out; with `remembering` its uses are kept for its return.
  public func remove(_ digest: UInt64, remembering: Bool) {
    remove(tag: tag(digest), remembering: remembering)
  }

  func remove(tag: UInt64, remembering: Bool) {
    guard let index = find(tag) else { return }
    let slot = slot(index)
    if remembering { putGhost(tag, uses: Facts(word: slot[0].load(ordering: .relaxed)).uses) }
    slot[0].store(0, ordering: .releasing)
    words[HeaderWord.recordCount].subtract(1, ordering: .relaxed)
  }

  /// The row that a digest stands for, or nil if the table does not know it.
  public func rowID(of digest: UInt64) -> UInt64? {
    find(tag(digest)).map { Place(word: slot($0)[1].load(ordering: .relaxed)).rowID }
  }

  // MARK: Ghosts

  /// A ghost is one word, a tag and the uses. Newer ones overwrite older ones.
  private func ghost(_ tag: UInt64) -> UnsafeMutablePointer<Word> {
    ghosts + Int(truncatingIfNeeded: tag >> 8) & (slotCount / 2 - 1)
  }

  private func putGhost(_ tag: UInt64, uses: UInt64) {
    ghost(tag).pointee.store(tag << 4 | uses, ordering: .relaxed)
  }

  private func takeGhost(_ tag: UInt64) -> UInt64 {
    let ghost = ghost(tag)
    let word = ghost.pointee.load(ordering: .relaxed)
    guard word >> 4 == tag else { return 0 }
    ghost.pointee.store(0, ordering: .relaxed)
    return word & 15
  }

  // MARK: Growing and shrinking

  /// Gives back the disk's room for all records, whoever still has the table mapped: nothing is found in it then, and so nothing
  /// is noted. For a table that another has taken the place of.
  func giveRoomBack() {
    // Where the file system cannot, the room comes back when the last process unmaps the file.
    madvise(base + Self.headerByteCount, byteCount - Self.headerByteCount, MADV_REMOVE)
  }

  /// Whether it is time for a larger table: where more than three in five slots are in use, some records find no place.
  public var isCrowded: Bool { recordCount * 5 > slotCount * 3 }

  /// Enters everything that this table knows into an empty one; what finds no place there is left out.
  public func copy(into other: UseTable) {
    other.clock = clock
    var count: UInt64 = 0
    for index in 0..<slotCount {
      let slot = slot(index)
      let word = slot[0].load(ordering: .relaxed)
      guard word != 0 else { continue }
      for step in 0..<Self.windowLength {
        let place = other.slot(other.index(of: word >> 20, step))
        guard place[0].load(ordering: .relaxed) == 0 else { continue }
        place[1].store(slot[1].load(ordering: .relaxed), ordering: .relaxed)
        place[0].store(word, ordering: .relaxed)
        count += 1
        break
      }
    }
    for index in 0..<(slotCount / 2) {
      let word = ghosts[index].load(ordering: .relaxed)
      if word != 0 { other.putGhost(word >> 4, uses: word & 15) }
    }
    other.setHeader(HeaderWord.recordCount, count)
  }
}

import Glibc

/// The layout of the index file in the machine's byte order: a header page, the journal, the cells, the ghosts, and the
/// sums of the blocks.
///
/// Every word is read and written atomically. The page cache keeps the words when a process dies. Nothing syncs them
/// while the store is open, so the file is not used after a power failure.
enum IndexLayout {
  static let fileName = "LMDBURLCache.index"
  /// `LMBCIDX4` on a little-endian machine. The last digit is the version of this layout.
  static let magic: UInt64 = 0x3458_4449_4342_4d4c
  static let pageByteCount = 4096

  /// The words of the header.
  ///
  /// Words in a line of 64 bytes change together, so that lookups do not contend for the writer's line.
  enum Word {
    static let magic = 0
    /// The identity of the data file that the index belongs to.
    static let owner = 1
    static let cellCount = 2
    /// A random number that identifies the file; never 0.
    static let fileNumber = 3
    /// Two words: the boot of the machine in which the file was last opened.
    static let boot = 4
    /// The last transaction plus 1 if the file was synced and did not change since; otherwise 0.
    static let clean = 6
    /// The inflation of GDSF eviction, an f64.
    static let inflation = 8
    /// The transaction that created the file, or a later one that hid a key with a tombstone of its own.
    ///
    /// The next word is its complement, which shows whether it is corrupt.
    static let lastTombstone = 9
    static let lastTombstoneComplement = 10
    /// Upper half: the number of cells in use. Lower half: the cell with invalid content plus 1, or 0.
    static let occupancy = 16
    /// The write transaction that the journal belongs to.
    static let transaction = 17
    /// The number of changes in the journal.
    static let changeCount = 18
    /// The number of changes that were applied to the cells, as a ``CheckedNumber``.
    static let appliedCount = 19
    /// The sum of the changes in the journal and of the number of its transaction.
    static let journalSum = 20
    /// The home of the record whose change is in progress, as a ``CheckedNumber``; or 0.
    static let changingHome = 21
    /// The ``RebuildStage``. The next two words are the position of a rebuild.
    static let rebuildStage = 22
    static let rebuildRow = 23
    static let rebuildTime = 24
  }

  /// A number below 2³² with its complement, which shows corruption.
  enum CheckedNumber {
    static func word(_ number: UInt64) -> UInt64 { number | ~number << 32 }

    /// Returns the number in a word; nil if the word is corrupt.
    static func number(in word: UInt64) -> UInt64? {
      let number = word & 0xffff_ffff
      return word == Self.word(number) ? number : nil
    }
  }

  /// The progress of a rebuild. Corruption hardly turns one of these numbers into another.
  ///
  /// Any other number means that a rebuild begins.
  enum RebuildStage {
    static let complete: UInt64 = 0x6a09_e667_f3bc_c908
    static let rows: UInt64 = 0xbb67_ae85_84ca_a73b
    static let dates: UInt64 = 0x3c6e_f372_fe94_f82b
  }

  /// A cell has two words: ``IndexEntry/tagWord``, which is 0 for a free cell, and ``IndexEntry/rowWord``.
  static let wordsPerCell = 2
  /// A change has three words: the tag word of its record, the new row ID or 0, and the old row ID or 0.
  static let wordsPerChange = 3
  static let moveFlag: UInt64 = 1 << 63
  static let rememberFlag: UInt64 = 1 << 62

  /// The maximum number of cells between a record and its home. The same number of cells follows the last home.
  static let maximumProbeLength = 512
  static let minimumCellCount = 512
  static let maximumCellCount = 1 << 31

  /// Returns the number of cells for a number of records; about half of the cells are then in use.
  static func cellCount(forRecordCount count: Int) -> Int {
    min(max(count * 2, minimumCellCount), maximumCellCount)
  }

  /// Above `growthPercent` of its cells in use the index grows. If it cannot grow, it is filled to `fullPercent`.
  static let growthPercent = 65
  static let fullPercent = 75
  /// The number of home cells whose records each new record copies to a larger index.
  ///
  /// All are copied when 71% to 72% of the cells are in use, if not sooner.
  static let homeCountPerNewRecord = 16
  /// The bytes of a replaced index whose disk space each transaction releases.
  static let releasedByteCount = 4 << 20

  /// Returns the maximum number of changes of one write transaction.
  static func journalCapacity(cellCount: Int) -> Int { min(max(cellCount / 4, minimumJournalCapacity), 32_768) }
  static let minimumJournalCapacity = 1024

  static func journalByteCount(cellCount: Int) -> Int {
    let byteCount = journalCapacity(cellCount: cellCount) * wordsPerChange * 8
    return (byteCount + pageByteCount - 1) / pageByteCount * pageByteCount
  }

  /// Returns the number of ghosts.
  ///
  /// A ghost is a u32: the lower 28 bits of an evicted record's tag, and its use count. New ghosts overwrite old ones.
  static func ghostCount(cellCount: Int) -> Int { cellCount / 4 * 2 }

  /// The number of no transaction. An index with it is discarded.
  static let noTransaction = UInt64.max

  /// The number of neighboring cells that form a block. A sum, a u32, shows whether corruption changed one of them.
  static let cellsPerBlock = 16

  static func blockCount(cellCount: Int) -> Int {
    (cellCount + maximumProbeLength + cellsPerBlock - 1) / cellsPerBlock
  }

  static func byteCount(cellCount: Int) -> Int {
    pageByteCount + journalByteCount(cellCount: cellCount) + (cellCount + maximumProbeLength) * wordsPerCell * 8
      + (ghostCount(cellCount: cellCount) + blockCount(cellCount: cellCount)) * 4
  }

  /// Returns the maximum number of cells of a file of this size, and at least ``minimumCellCount``.
  static func cellCount(forByteCount byteCount: Int) -> Int {
    var range = minimumCellCount...maximumCellCount
    while range.count > 1 {
      let middle = (range.lowerBound + range.upperBound + 1) / 2
      range =
        self.byteCount(cellCount: middle) <= byteCount ? middle...range.upperBound : range.lowerBound...(middle - 1)
    }
    return range.lowerBound
  }
}

/// A record in the index, decoded from its cell.
struct IndexEntry: Hashable {
  /// The upper 40 bits of the keyed digest of the cache key; never 0.
  var tag: UInt64
  /// 12 bits of the keyed digest of the host.
  var hostTag: UInt64
  /// The use count of the record, at most ``maximumUseCount``.
  var useCount: UInt64
  /// The logarithm of the bytes on disk, in steps of an eighth of an octave.
  private var sizeCode: UInt64
  /// The row ID, 44 bits.
  var rowID: UInt64
  /// The inflation at the last use, with 14 significant bits.
  var inflation: Double

  static let maximumUseCount: UInt64 = 15
  static let maximumRowID: UInt64 = 1 << 44 - 1

  init(digest: UInt64, hostDigest: UInt64, rowID: UInt64, byteCount: Int, useCount: UInt64 = 1, inflation: Double = 0) {
    tag = Self.tag(of: digest)
    hostTag = Self.hostTag(of: hostDigest)
    self.useCount = min(useCount, Self.maximumUseCount)
    sizeCode = UInt64(min(log2(Double(max(byteCount, 64)) / 64) * 8, 255))
    self.rowID = rowID
    self.inflation = inflation
  }

  init(tagWord: UInt64, rowWord: UInt64) {
    tag = Self.tag(inTagWord: tagWord)
    hostTag = tagWord >> 12 & 0xfff
    useCount = tagWord >> 8 & 15
    sizeCode = tagWord & 0xff
    rowID = Self.rowID(inRowWord: rowWord)
    let code = UInt32(truncatingIfNeeded: rowWord >> 44)
    inflation = code == 0 ? 0 : Double(Float(bitPattern: (code + Self.inflationBias) << 9))
  }

  /// The first word of a cell.
  var tagWord: UInt64 { tag << 24 | hostTag << 12 | useCount << 8 | sizeCode }

  /// The second word of a cell. It is one word, so that a record's row ID changes atomically.
  var rowWord: UInt64 {
    let code = Float(inflation).bitPattern >> 9
    return rowID | UInt64(code > Self.inflationBias ? min(code - Self.inflationBias, 0xf_ffff) : 0) << 44
  }

  /// A digest of the record's key, host and row ID, which lookups never change.
  var identity: UInt32 { Self.identity(tagWord: tagWord, rowWord: rowID) }

  /// The ``identity`` of the record in a cell with these words.
  static func identity(tagWord: UInt64, rowWord: UInt64) -> UInt32 {
    let (high, low) = (tagWord >> 12).multipliedFullWidth(by: 0x9E37_79B9_7F4A_7C15)
    return UInt32(truncatingIfNeeded: ((high ^ low ^ rowID(inRowWord: rowWord)) &* 0xD6E8_FEB8_6659_FD93) >> 32)
  }

  var byteCount: Double { 64 * exp2(Double(sizeCode) / 8) }

  /// The bytes on disk as eviction counts them, raised to ``sizeExponent``.
  var weightedByteCount: Double { exp2(Self.sizeExponent * (6 + Double(sizeCode) / 8)) }

  /// The exponent of the size in eviction's priority.
  ///
  /// With 1, eviction keeps the largest number of records. A lower exponent keeps more large ones, so that more bytes and
  /// fewer requests are answered from the store. `Benchmarks/EVICTION-RESULTS.md` compares exponents.
  static let sizeExponent = 0.85

  /// The float 2⁻⁴⁰ without its lower 9 bits. A lower inflation counts as 0.
  private static let inflationBias: UInt32 = 87 << 14

  static func tag(of digest: UInt64) -> UInt64 { max(digest >> 24, 1) }
  static func hostTag(of digest: UInt64) -> UInt64 { digest >> 52 }
  static func tag(inTagWord tagWord: UInt64) -> UInt64 { tagWord >> 24 }
  static func rowID(inRowWord rowWord: UInt64) -> UInt64 { rowWord & maximumRowID }
}

#if DEBUG
  /// Called before each change of a word and at each step of a replacement, so that a test can end the process there.
  nonisolated(unsafe) var onIndexStep: (() -> Void)?
#endif

/// Marks a point where a test may end the process. Does nothing in a release build.
@inline(__always)
func reachedIndexStep() {
  #if DEBUG
    onIndexStep?()
  #endif
}

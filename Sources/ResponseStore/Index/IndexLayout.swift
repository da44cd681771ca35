import Glibc

/// The layout of the index file in the machine's byte order: a header page, the journal, the cells, and the ghosts.
///
/// Every word is read and written atomically. The page cache keeps the words when a process dies. Nothing syncs them,
/// so the file is used only during one boot of the machine.
enum IndexLayout {
  static let fileName = "LMDBURLCache.index"
  /// `LMBCIDX5` on a little-endian machine. The last digit is the version of this layout.
  static let magic: UInt64 = 0x3558_4449_4342_4d4c
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
    /// The inode and the device of the file, which a copy does not have.
    static let inode = 4
    static let device = 5
    /// The inflation of GDSF eviction, an f64.
    static let inflation = 8
    /// Upper half: the number of cells in use. Lower half: the cell with invalid content plus 1, or 0.
    static let occupancy = 16
    /// The write transaction that the journal belongs to.
    static let transaction = 17
    /// The number of changes in the journal.
    static let changeCount = 18
    /// The number of changes that were applied to the cells.
    static let appliedCount = 19
  }

  /// A cell has two words: ``IndexEntry/tagWord``, which is 0 for a free cell, and ``IndexEntry/rowWord``.
  static let wordsPerCell = 2
  /// A change has three words: the tag word of its record, the new row ID or 0, and the old row ID or 0.
  static let wordsPerChange = 3
  static let moveFlag: UInt64 = 1 << 63
  static let rememberFlag: UInt64 = 1 << 62

  /// The number of cells after the last home, for records that find their homes in use.
  static let tailCellCount = 512
  static let minimumCellCount = 512
  static let maximumCellCount = 1 << 31

  /// Returns the number of cells for a number of records; about half of the cells are then in use.
  static func cellCount(forRecordCount count: Int) -> Int {
    min(max(count * 2, minimumCellCount), maximumCellCount)
  }

  /// Above `growthPercent` of its cells in use the index grows. If it cannot grow, it is filled to `fullPercent`.
  static let growthPercent = 65
  static let fullPercent = 75

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

  static func byteCount(cellCount: Int) -> Int {
    pageByteCount + journalByteCount(cellCount: cellCount) + (cellCount + tailCellCount) * wordsPerCell * 8
      + ghostCount(cellCount: cellCount) * 4
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
  /// The logarithm of the bytes on disk, in steps of an eighth of an octave, or ``keySpaceCode``.
  private var sizeCode: UInt64
  /// The row ID, 44 bits.
  var rowID: UInt64
  /// The inflation at the last use, with 14 significant bits.
  var inflation: Double

  static let maximumUseCount: UInt64 = 15
  static let maximumRowID: UInt64 = 1 << 44 - 1
  /// The size code of the record of a key space.
  ///
  /// It is in the row of `dates`, so that the record is known as one when its own bytes are corrupt.
  private static let keySpaceCode: UInt64 = 255
  /// The size code that a record of a key space has for eviction: 256 bytes.
  private static let sizeCodeOfKeySpaces: UInt64 = 16

  /// Creates an entry.
  ///
  /// - Parameter isKeySpace: Whether it is the record of a key space. Its size is then taken as 256 bytes.
  init(
    digest: UInt64, hostDigest: UInt64, rowID: UInt64, byteCount: Int, isKeySpace: Bool = false, useCount: UInt64 = 1,
    inflation: Double = 0
  ) {
    tag = Self.tag(of: digest)
    hostTag = Self.hostTag(of: hostDigest)
    self.useCount = min(useCount, Self.maximumUseCount)
    sizeCode =
      isKeySpace
      ? Self.keySpaceCode : UInt64(min(log2(Double(max(byteCount, 64)) / 64) * 8, Double(Self.keySpaceCode - 1)))
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

  /// Whether it is the record of a key space, and not a response.
  var isKeySpace: Bool { sizeCode == Self.keySpaceCode }

  /// The logarithm of the bytes on disk, to the base 2.
  private var sizeInOctaves: Double { 6 + Double(isKeySpace ? Self.sizeCodeOfKeySpaces : sizeCode) / 8 }

  var byteCount: Double { exp2(sizeInOctaves) }

  /// The bytes on disk as eviction counts them, raised to ``sizeExponent``.
  var weightedByteCount: Double { exp2(Self.sizeExponent * sizeInOctaves) }

  /// The exponent of the size in eviction's priority.
  ///
  /// With 1, eviction keeps the largest number of records. A lower exponent keeps more large ones, so that more bytes
  /// and fewer requests are answered from the store. `Benchmarks/EVICTION-RESULTS.md` compares exponents.
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

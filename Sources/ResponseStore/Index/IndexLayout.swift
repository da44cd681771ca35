import Glibc

/// The bytes of the index file, in the machine's byte order: a page of header, the journal, the slots, and the ghosts.
///
/// Every word is read and written atomically. The page cache keeps them when a process dies, and nothing syncs them while
/// the store is open: after a power failure the file is not used.
enum IndexLayout {
  static let fileName = "LMDBURLCache.index"
  /// `LMBCIDX2` on a little-endian machine. The last digit is the version of this layout.
  static let magic: UInt64 = 0x3258_4449_4342_4d4c
  static let pageByteCount = 4096

  /// The words of the header. Each line of 64 bytes has words that change together, so that lookups do not wait for the
  /// writer's line.
  enum Word {
    static let magic = 0
    /// The store that the index belongs to.
    static let owner = 1
    static let slotCount = 2
    /// Not 0 when another file takes, or has taken, this one's place.
    static let isSuperseded = 3
    /// Two words: the boot of the machine in which the file was last opened.
    static let boot = 4
    /// Not 0 when the file was synced and not changed since: the last transaction, plus one.
    static let clean = 6
    /// The inflation of eviction, an f64.
    static let inflation = 8
    /// The transaction that made the file, or a later one that hid a key by a mark which no other process was told of.
    static let lastMark = 9
    /// The number of slots in use in the upper half; in the lower one the slot whose content is void, plus one, or 0.
    static let occupancy = 16
    /// The write transaction that the journal belongs to.
    static let transaction = 17
    /// The number of changes in the journal, and of those that are carried out.
    static let changeCount = 18
    static let carriedOutCount = 20
    /// How far a rebuild has come: 0 when every record is in the index, else a ``RebuildPosition``, of which the other two
    /// words are the row ID and the time.
    static let rebuildStage = 19
    static let rebuildRow = 21
    static let rebuildTime = 22
  }

  /// A slot is the words ``IndexEntry/facts``, which is 0 for a free slot, and ``IndexEntry/place``.
  static let wordsPerSlot = 2
  /// A change is the facts of its record, the new row ID or 0, and the old row ID or 0.
  static let wordsPerChange = 3
  static let moveFlag: UInt64 = 1 << 63
  static let rememberFlag: UInt64 = 1 << 62

  /// A record stands at most this many slots behind its home. So many slots follow the last home.
  static let maximumProbeLength = 512
  static let minimumSlotCount = 512
  static let maximumSlotCount = 1 << 31

  /// The number of slots for so many records: about half of them are in use at first.
  static func slotCount(forRecordCount count: Int) -> Int {
    min(max(count * 2, minimumSlotCount), maximumSlotCount)
  }

  /// The share of slots, in percent, above which the index grows, and up to which it is filled where it cannot.
  static let growthPercent = 65
  static let fullPercent = 75

  /// The number of changes that one write transaction can make.
  static func journalCapacity(slotCount: Int) -> Int { min(max(slotCount / 4, minimumJournalCapacity), 8192) }
  static let minimumJournalCapacity = 1024

  static func journalByteCount(slotCount: Int) -> Int {
    let byteCount = journalCapacity(slotCount: slotCount) * wordsPerChange * 8
    return (byteCount + pageByteCount - 1) / pageByteCount * pageByteCount
  }

  /// A ghost is a u32: the lower 28 bits of an evicted record's tag, and its use count. Newer ones overwrite older ones.
  static func ghostCount(slotCount: Int) -> Int { slotCount / 4 * 2 }

  static func byteCount(slotCount: Int) -> Int {
    pageByteCount + journalByteCount(slotCount: slotCount) + (slotCount + maximumProbeLength) * wordsPerSlot * 8
      + ghostCount(slotCount: slotCount) * 4
  }

  /// The most slots of a file with so many bytes; at least ``minimumSlotCount``.
  static func slotCount(forByteCount byteCount: Int) -> Int {
    var range = minimumSlotCount...maximumSlotCount
    while range.count > 1 {
      let middle = (range.lowerBound + range.upperBound + 1) / 2
      range =
        self.byteCount(slotCount: middle) <= byteCount ? middle...range.upperBound : range.lowerBound...(middle - 1)
    }
    return range.lowerBound
  }
}

/// One record in the index, as its slot holds it.
struct IndexEntry: Hashable {
  /// The upper 40 bits of the keyed digest of the request key; never 0.
  var tag: UInt64
  /// 12 bits of the keyed digest of the host.
  var hostTag: UInt64
  /// How often the record was used, at most ``maximumUseCount``.
  var useCount: UInt64
  /// The bytes on disk as a logarithm, in steps of an eighth of an octave.
  private var sizeCode: UInt64
  /// 44 bits.
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

  init(facts: UInt64, place: UInt64) {
    tag = Self.tag(inFacts: facts)
    hostTag = facts >> 12 & 0xfff
    useCount = facts >> 8 & 15
    sizeCode = facts & 0xff
    rowID = Self.rowID(inPlace: place)
    let code = UInt32(truncatingIfNeeded: place >> 44)
    inflation = code == 0 ? 0 : Double(Float(bitPattern: (code + Self.inflationBias) << 9))
  }

  /// The first word of a slot.
  var facts: UInt64 { tag << 24 | hostTag << 12 | useCount << 8 | sizeCode }

  /// The second word of a slot. One word, so that a record's row changes at once.
  var place: UInt64 {
    let code = Float(inflation).bitPattern >> 9
    return rowID | UInt64(code > Self.inflationBias ? min(code - Self.inflationBias, 0xf_ffff) : 0) << 44
  }

  var byteCount: Double { 64 * exp2(Double(sizeCode) / 8) }

  /// The bits of a float of 2⁻⁴⁰, below which an inflation counts as 0, without its lower 9.
  private static let inflationBias: UInt32 = 87 << 14

  static func tag(of digest: UInt64) -> UInt64 { max(digest >> 24, 1) }
  static func hostTag(of digest: UInt64) -> UInt64 { digest >> 52 }
  static func tag(inFacts facts: UInt64) -> UInt64 { facts >> 24 }
  static func rowID(inPlace place: UInt64) -> UInt64 { place & maximumRowID }
}

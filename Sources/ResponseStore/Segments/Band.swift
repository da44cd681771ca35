import Glibc

/// One of six ranges of expected lifetime. Each band has a log, to which its records are appended.
///
/// Records of a band are evicted at about the same time and share segments, so few records of a freed segment have to
/// be written again. The expected lifetime follows from a record's size and use count: eviction reaches a record when
/// the inflation has risen by `useCount² / weightedByteCount`. The records of band 0 live longest.
struct Band: Hashable, Sendable {
  let number: Int

  static let count = 6
  static let all = (0..<count).map { Band(number: $0) }

  /// The distance between the row IDs of successive records.
  ///
  /// The lower three bits of a row ID are the number of the band, so the row IDs of all bands ascend with time.
  static let rowIDStep: UInt64 = 8

  /// The weighted sizes from which records that were used once belong to bands 1 to 5.
  private static let limits = [512.0, 2048, 8192, 32768, 131_072].map { pow($0, IndexEntry.sizeExponent) }

  private init(number: Int) {
    self.number = number
  }

  /// Returns the band for a record that is about to be appended.
  ///
  /// - Parameter inflationToLive: The increase of the inflation until it reaches the record's priority.
  init(inflationToLive: Double) {
    number = Self.limits.count { $0 * inflationToLive <= 1 }
  }

  /// Returns the band of a stored record; nil if no record can have this row ID.
  init?(rowID: UInt64) {
    guard rowID % Self.rowIDStep < UInt64(Self.count) else { return nil }
    number = Int(rowID % Self.rowIDStep)
  }

  /// Returns the row ID for a new record of this band.
  ///
  /// - Parameter next: A number that all bands share, a multiple of ``rowIDStep``.
  func rowID(_ next: UInt64) -> UInt64 { next & ~(Self.rowIDStep - 1) | UInt64(number) }
}

extension IndexEntry {
  /// Returns the GDSF priority: the inflation at the last use, plus the squared use count per weighted byte.
  ///
  /// The records with the lowest priorities are evicted.
  ///
  /// - Parameter present: The present inflation. The inflation at the last use cannot be higher.
  func priority(atInflation present: Double) -> Double {
    min(inflation, present) + Double(useCount * useCount) / weightedByteCount
  }

  /// Returns the band that the record is appended to.
  func band(inflation present: Double) -> Band {
    Band(inflationToLive: priority(atInflation: present) - present)
  }

  /// Returns the inflation rounded down as in a cell of the index.
  static func rounded(inflation: Double) -> Double {
    let entry = IndexEntry(digest: 1, hostDigest: 0, rowID: 0, byteCount: 0, inflation: inflation)
    return IndexEntry(tagWord: entry.tagWord, rowWord: entry.rowWord).inflation
  }
}

extension RecordIndex {
  /// Returns the band of a new record. Predicts the use count that the index will have after the commit.
  ///
  /// - Parameter replaced: The row of the record that it replaces.
  func band(for entry: IndexEntry, replacing replaced: UInt64?) -> Band {
    var entry = entry
    entry.inflation = inflation
    let cell = replaced.flatMap { self.cell(of: entry.tag, rowID: $0) }
    let useCount = cell.map { IndexEntry(tagWord: tagWord($0), rowWord: 0).useCount } ?? ghost(tag: entry.tag)
    entry.useCount = min(useCount + 1, IndexEntry.maximumUseCount)
    return entry.band(inflation: inflation)
  }
}

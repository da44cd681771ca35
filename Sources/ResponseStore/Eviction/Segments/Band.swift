/// One of the six logs that records are appended to, by their expected life.
///
/// Records that are evicted at about the same time share segments, so few records of a victim have to be written again.
/// The expected life follows from a record's size and use count: eviction reaches a record when the inflation has risen
/// by `useCount² / byteCount`. Band 0 lives longest.
struct Band: Hashable, Sendable {
  let number: Int

  static let count = 6
  static let all = (0..<count).map { Band(number: $0) }

  /// A row ID holds the band in its lower three bits. So the row IDs of all bands together ascend with time.
  static let rowIDStep: UInt64 = 8

  private init(number: Int) {
    self.number = number
  }

  /// The band for a record that is about to be appended.
  ///
  /// - Parameter inflationToLive: By how much the inflation rises until the record's priority is reached.
  init(inflationToLive: Double) {
    // Each band holds lives four times as short as the one before.
    number = [512, 2048, 8192, 32768, 131_072].count { $0 * inflationToLive <= 1 }
  }

  /// The band of a stored record; nil if no record can have this row ID.
  init?(rowID: UInt64) {
    guard rowID % Self.rowIDStep < UInt64(Self.count) else { return nil }
    number = Int(rowID % Self.rowIDStep)
  }

  /// The row ID of this band that follows from the number which all bands share, a multiple of ``rowIDStep``.
  func rowID(_ next: UInt64) -> UInt64 { next & ~(Self.rowIDStep - 1) | UInt64(number) }
}

extension IndexEntry {
  /// The priority by greedy dual size with frequency: the inflation at the last use, and the squared use count per
  /// byte. The lowest priorities are evicted.
  ///
  /// - Parameter present: The present inflation. No record can have been used at a higher one.
  func priority(atInflation present: Double) -> Double {
    min(inflation, present) + Double(useCount * useCount) / byteCount
  }

  /// The band that the record is appended to.
  func band(inflation present: Double) -> Band {
    Band(inflationToLive: priority(atInflation: present) - present)
  }

  /// The inflation that a slot holds in place of this one. It is not higher.
  static func rounded(inflation: Double) -> Double {
    let entry = IndexEntry(digest: 1, hostDigest: 0, rowID: 0, byteCount: 0, inflation: inflation)
    return IndexEntry(tagWord: entry.tagWord, rowWord: entry.rowWord).inflation
  }
}

/// A run of consecutive records of one band. Eviction frees whole segments.
struct Segment: Hashable, Sendable {
  /// The first row ID. Its lower three bits are the band. The segment ends where the band's next segment begins.
  var firstRowID: UInt64
  /// The bytes of all records that were appended, including deleted ones, as the index rounds them.
  var byteCount = 0
  /// The number of all records that were appended, including deleted ones.
  var recordCount = 0

  /// The size from which a segment takes no more records.
  static func closingByteCount(capacityByteCount: Int) -> Int { capacityByteCount / 64 }
}

/// The segments that take new records, at most one for each band.
struct OpenSegments: Equatable, Sendable {
  /// The open segment of each band; a segment without records means that there is none.
  ///
  /// An inline array, because every transaction reads and writes this.
  private var byBand = InlineArray<6, Segment>(repeating: Segment(firstRowID: 0))

  var all: [Segment] { Band.all.map { byBand[$0.number] }.filter { $0.recordCount > 0 } }

  /// Calls `body` with each open segment.
  func forEach(_ body: (Segment) -> Void) {
    for number in byBand.indices where byBand[number].recordCount > 0 { body(byBand[number]) }
  }

  /// Replaces the open segment of a band.
  mutating func insert(_ segment: Segment) {
    if let band = Band(rowID: segment.firstRowID)?.number { byBand[band] = segment }
  }

  /// Counts a record that is appended to its band.
  ///
  /// - Returns: The segment, if it is now full. It is then no longer open.
  mutating func append(rowID: UInt64, byteCount: Int, closingByteCount: Int) -> Segment? {
    guard let band = Band(rowID: rowID)?.number else { return nil }
    var segment = byBand[band]
    if segment.recordCount == 0 { segment = Segment(firstRowID: rowID) }
    segment.byteCount += byteCount
    segment.recordCount += 1
    guard segment.byteCount >= closingByteCount else {
      byBand[band] = segment
      return nil
    }
    byBand[band] = Segment(firstRowID: 0)
    return segment
  }

  /// Closes a segment that is about to be freed. Returns nil if it is not open.
  mutating func close(_ firstRowID: UInt64) -> Segment? {
    guard let band = Band(rowID: firstRowID)?.number, byBand[band].firstRowID == firstRowID,
      byBand[band].recordCount > 0
    else { return nil }
    defer { byBand[band] = Segment(firstRowID: 0) }
    return byBand[band]
  }

  static func == (left: OpenSegments, right: OpenSegments) -> Bool { left.all == right.all }
}

/// A run of consecutive records of one band. Eviction frees whole segments.
struct Segment: Hashable, Sendable {
  /// The lower three bits name the band. The segment reaches up to the next one of its band.
  var firstRowID: UInt64
  /// The bytes of the records that were appended, as the index rounds them, deleted ones included.
  var byteCount = 0
  /// The number of records that were appended.
  var recordCount = 0

  /// The size from which a segment takes no more records.
  static func closingByteCount(capacityByteCount: Int) -> Int { capacityByteCount / 64 }
}

/// The segments that take new records, at most one for each band.
struct OpenSegments: Equatable, Sendable {
  /// One without records is none. In place, as every transaction reads and writes this.
  private var byBand = InlineArray<6, Segment>(repeating: Segment(firstRowID: 0))

  init() {}

  var all: [Segment] { Band.all.map { byBand[$0.number] }.filter { $0.recordCount > 0 } }

  /// Calls `body` with each of them.
  func forEach(_ body: (Segment) -> Void) {
    for number in byBand.indices where byBand[number].recordCount > 0 { body(byBand[number]) }
  }

  /// Puts a segment in the place of the open one of its band.
  mutating func insert(_ segment: Segment) {
    if let band = Band(rowID: segment.firstRowID)?.number { byBand[band] = segment }
  }

  /// Counts a record that is appended to its band.
  ///
  /// - Returns: The segment that is full with it, and so no longer one of these.
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

  /// Closes a segment, which is about to be freed; nil if it is not open.
  mutating func close(_ firstRowID: UInt64) -> Segment? {
    guard let band = Band(rowID: firstRowID)?.number, byBand[band].firstRowID == firstRowID,
      byBand[band].recordCount > 0
    else { return nil }
    defer { byBand[band] = Segment(firstRowID: 0) }
    return byBand[band]
  }

  static func == (left: OpenSegments, right: OpenSegments) -> Bool { left.all == right.all }
}

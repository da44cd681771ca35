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
struct OpenSegments: Hashable, Sendable {
  private var byBand: [Segment?]

  /// Takes at most one segment of each band.
  init(_ segments: [Segment] = []) {
    byBand = Array(repeating: nil, count: Band.count)
    for segment in segments {
      if let band = Band(rowID: segment.firstRowID)?.number { byBand[band] = segment }
    }
  }

  var all: [Segment] { byBand.compactMap { $0 } }

  /// Counts a record that is appended to its band.
  ///
  /// - Returns: The segment that is full with it, and so no longer one of these.
  mutating func append(rowID: UInt64, byteCount: Int, closingByteCount: Int) -> Segment? {
    guard let band = Band(rowID: rowID)?.number else { return nil }
    var segment = byBand[band] ?? Segment(firstRowID: rowID)
    segment.byteCount += byteCount
    segment.recordCount += 1
    guard segment.byteCount >= closingByteCount else {
      byBand[band] = segment
      return nil
    }
    byBand[band] = nil
    return segment
  }

  /// Closes a segment, which is about to be freed; nil if it is not open.
  mutating func close(_ firstRowID: UInt64) -> Segment? {
    guard let band = Band(rowID: firstRowID)?.number, byBand[band]?.firstRowID == firstRowID else { return nil }
    defer { byBand[band] = nil }
    return byBand[band]
  }
}

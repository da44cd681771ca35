/// The next segment to free, and which of its records are worth appending again.
struct EvictionPlan: Equatable {
  let segment: Segment
  /// The first row ID of the band's next segment; nil for the last segment.
  let end: UInt64?
  /// The inflation from the choice of this segment on.
  let inflation: Double
  /// Only records with a priority above this survive.
  private let reachedPriority: Double
  /// Records with a priority below this do not survive.
  private let quantilePriority: Double

  /// Whether a record survives.
  func keeps(_ entry: IndexEntry) -> Bool {
    let priority = entry.priority(atInflation: inflation)
    return priority > reachedPriority && priority >= quantilePriority
  }

  /// The share of a segment's bytes that determines its cut; see ``init(segments:index:random:)``.
  static let maximumKeptShare = 0.7
  /// The maximum share of a segment's bytes that survives, so that little is written again even if all records are used
  /// equally.
  static let maximumSurvivingShare = 0.3
  /// The share of all records whose priority is too low to survive, if no record of the segment was deleted.
  static let survivalQuantile = 0.4
  /// The number of index cells that a plan reads.
  ///
  /// Cells are in the order of the records' digests, so any run of cells is a random sample.
  static let sampledCellCount = 65_536
  private static let quantileSampleCount = 1024

  private struct Sample {
    var priority: Double
    var byteCount: Double
  }

  /// Chooses the segment with the lowest cut, because the least of it is worth keeping.
  ///
  /// The cut of a segment is a priority: the records with at least this priority take ``maximumKeptShare`` of the
  /// segment's bytes. The inflation rises to the cut of the chosen segment. The time does not depend on the number of
  /// records. The result is nil if there are no segments.
  ///
  /// - Parameter segments: All segments in the order of their first row IDs.
  init?(segments: [Segment], index: RecordIndex, random: UInt64) {
    guard !segments.isEmpty else { return nil }
    let present = index.inflation
    let cellCount = index.allCellCount
    let sampledCount = min(cellCount, Self.sampledCellCount)
    let start = Int(random.multipliedFullWidth(by: UInt64(cellCount)).high)
    let map = SegmentMap(segments)
    var samples = [[Sample]](repeating: [], count: segments.count)
    var quantileSample: [Double] = []
    for range in [start..<min(start + sampledCount, cellCount), 0..<max(start + sampledCount - cellCount, 0)] {
      index.forEachEntry(in: range) { entry in
        let priority = entry.priority(atInflation: present)
        if quantileSample.count < Self.quantileSampleCount { quantileSample.append(priority) }
        guard let number = map.segmentNumber(ofRow: entry.rowID) else { return }
        samples[number].append(Sample(priority: priority, byteCount: entry.byteCount))
      }
    }
    let sampledShare = Double(sampledCount) / Double(cellCount)
    // A partial sample may contain no record of a small segment. Such a segment is not chosen.
    let isComplete = sampledCount == cellCount || samples.allSatisfy(\.isEmpty)
    var victim = 0
    var cut = Double.infinity
    var survivalCut = 0.0
    var deadShare = 0.0
    for number in segments.indices where isComplete || !samples[number].isEmpty {
      samples[number].sort { $0.priority > $1.priority }
      let total = Self.byteCount(of: segments[number], samples[number], sampledShare: sampledShare)
      let other = Self.cut(of: samples[number], byteCount: total * Self.maximumKeptShare)
      guard other < cut else { continue }
      (victim, cut) = (number, other)
      survivalCut = Self.cut(of: samples[number], byteCount: total * Self.maximumSurvivingShare)
      deadShare = max(1 - samples[number].reduce(0) { $0 + $1.byteCount } / max(total, 1), 0)
    }
    segment = segments[victim]
    end = map.end(of: segment)
    inflation = IndexEntry.rounded(inflation: max(present, cut))
    reachedPriority = max(present, survivalCut)
    // If many records of the segment were deleted already, more of the others may survive.
    let share = Self.survivalQuantile * max(0, 1 - deadShare / (1 - Self.maximumKeptShare))
    quantileSample.sort()
    quantilePriority =
      share > 0 && !quantileSample.isEmpty ? quantileSample[Int(share * Double(quantileSample.count))] : 0
  }

  /// Returns the bytes of a segment's sampled records, including deleted ones.
  ///
  /// In a partial sample, deleted records are recognized only if they are more than half of many.
  private static func byteCount(of segment: Segment, _ samples: [Sample], sampledShare: Double) -> Double {
    let expectedCount = Double(segment.recordCount) * sampledShare
    let areManyDeleted = expectedCount >= 16 && Double(samples.count) < expectedCount / 2
    guard sampledShare == 1 || areManyDeleted else { return samples.reduce(0) { $0 + $1.byteCount } }
    return Double(segment.byteCount) * sampledShare
  }

  /// Returns the priority of the first record that does not fit into `byteCount`, best records first; -1 if all fit.
  private static func cut(of samples: [Sample], byteCount: Double) -> Double {
    var sum = 0.0
    for sample in samples {
      sum += sample.byteCount
      if sum > byteCount { return sample.priority }
    }
    return -1
  }
}

/// Finds the segment of a row.
private struct SegmentMap {
  /// For each band: the first row IDs of its segments in ascending order, and the numbers of these segments.
  private var byBand = [(firstRowIDs: [UInt64], numbers: [Int])](repeating: ([], []), count: Band.count)

  init(_ segments: [Segment]) {
    for (number, segment) in segments.enumerated() {
      guard let band = Band(rowID: segment.firstRowID)?.number else { continue }
      byBand[band].firstRowIDs.append(segment.firstRowID)
      byBand[band].numbers.append(number)
    }
  }

  func segmentNumber(ofRow rowID: UInt64) -> Int? {
    guard let band = Band(rowID: rowID)?.number else { return nil }
    let index = firstIndex(above: rowID, in: band)
    return index == 0 ? nil : byBand[band].numbers[index - 1]
  }

  func end(of segment: Segment) -> UInt64? {
    guard let band = Band(rowID: segment.firstRowID)?.number else { return nil }
    let index = firstIndex(above: segment.firstRowID, in: band)
    return index < byBand[band].firstRowIDs.count ? byBand[band].firstRowIDs[index] : nil
  }

  private func firstIndex(above rowID: UInt64, in band: Int) -> Int {
    let firstRowIDs = byBand[band].firstRowIDs
    var range = 0..<firstRowIDs.count
    while !range.isEmpty {
      let middle = (range.lowerBound + range.upperBound) / 2
      range = firstRowIDs[middle] <= rowID ? middle + 1..<range.upperBound : range.lowerBound..<middle
    }
    return range.lowerBound
  }
}

/// The next segment to free, and which of its records are worth appending again.
struct EvictionPlan: Equatable {
  let segment: Segment
  /// Where the next segment of the band begins; nil for the last one.
  let end: UInt64?
  /// The inflation that the eviction begins with.
  let inflation: Double
  /// Records with a priority above the first and not below the second survive.
  private let reachedPriority: Double
  private let quantilePriority: Double

  /// Whether a record survives.
  func keeps(_ entry: IndexEntry) -> Bool {
    let priority = entry.priority(atInflation: inflation)
    return priority > reachedPriority && priority >= quantilePriority
  }

  /// The segment is freed of which the best records, up to this share of its bytes, have the lowest priorities.
  static let maximumKeptShare = 0.7
  /// The share of a segment's bytes that may survive, so that little is written again even if all records are used
  /// alike.
  static let maximumSurvivingShare = 0.3
  /// The share of all records whose priority is too low to survive, in a segment without deleted records.
  static let survivalQuantile = 0.4
  /// The index slots that a plan looks at. Records are in the slots in the order of their digests, so any run of slots
  /// is a random sample.
  static let sampledSlotCount = 65_536
  private static let quantileSampleCount = 1024

  private struct Sample {
    var priority: Double
    var byteCount: Double
  }

  /// Chooses the segment of which the least is worth keeping: the one with the lowest `cut`.
  ///
  /// The cut of a segment is the priority down to which its records take ``maximumKeptShare`` of its bytes. The
  /// inflation rises to the victim's cut. Takes the same time at any number of records.
  ///
  /// - Parameters:
  ///   - segments: All segments, in the order of their first row IDs.
  ///   - index: The index of their records. A record that it lacks has no priority.
  ///   - random: A random number, which says where the sample begins.
  /// - Returns: Nil if there are no segments.
  init?(segments: [Segment], index: RecordIndex, random: UInt64) {
    guard !segments.isEmpty else { return nil }
    let present = index.inflation
    let slotCount = index.allSlotCount
    let sampledCount = min(slotCount, Self.sampledSlotCount)
    let start = Int(random.multipliedFullWidth(by: UInt64(slotCount)).high)
    let map = SegmentMap(segments)
    var samples = [[Sample]](repeating: [], count: segments.count)
    var quantileSample: [Double] = []
    for range in [start..<min(start + sampledCount, slotCount), 0..<max(start + sampledCount - slotCount, 0)] {
      index.forEachEntry(in: range) { entry in
        let priority = entry.priority(atInflation: present)
        if quantileSample.count < Self.quantileSampleCount { quantileSample.append(priority) }
        guard let number = map.segmentNumber(ofRow: entry.rowID) else { return }
        samples[number].append(Sample(priority: priority, byteCount: entry.byteCount))
      }
    }
    let sampledShare = Double(sampledCount) / Double(slotCount)
    // A segment of few records may be missed by a part of the index. That says nothing of them.
    let isComplete = sampledCount == slotCount || samples.allSatisfy(\.isEmpty)
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
    // Where much was deleted already, more records may survive.
    let share = Self.survivalQuantile * max(0, 1 - deadShare / (1 - Self.maximumKeptShare))
    quantileSample.sort()
    quantilePriority =
      share > 0 && !quantileSample.isEmpty ? quantileSample[Int(share * Double(quantileSample.count))] : 0
  }

  /// The bytes of the sampled records of a segment with those deleted since. By a part of the index these are known
  /// only where they are the better part of many.
  private static func byteCount(of segment: Segment, _ samples: [Sample], sampledShare: Double) -> Double {
    let expectedCount = Double(segment.recordCount) * sampledShare
    let areManyDeleted = expectedCount >= 16 && Double(samples.count) < expectedCount / 2
    guard sampledShare == 1 || areManyDeleted else { return samples.reduce(0) { $0 + $1.byteCount } }
    return Double(segment.byteCount) * sampledShare
  }

  /// The priority of the record with which the best records exceed so many bytes; -1 if all of them fit.
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
  /// The first row IDs of a band's segments, ascending, and the numbers of these segments.
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
    let place = firstPlace(above: rowID, in: band)
    return place == 0 ? nil : byBand[band].numbers[place - 1]
  }

  func end(of segment: Segment) -> UInt64? {
    guard let band = Band(rowID: segment.firstRowID)?.number else { return nil }
    let place = firstPlace(above: segment.firstRowID, in: band)
    return place < byBand[band].firstRowIDs.count ? byBand[band].firstRowIDs[place] : nil
  }

  private func firstPlace(above rowID: UInt64, in band: Int) -> Int {
    let firstRowIDs = byBand[band].firstRowIDs
    var range = 0..<firstRowIDs.count
    while !range.isEmpty {
      let middle = (range.lowerBound + range.upperBound) / 2
      range = firstRowIDs[middle] <= rowID ? middle + 1..<range.upperBound : range.lowerBound..<middle
    }
    return range.lowerBound
  }
}

import Glibc

/// A cache in memory that evicts whole segments through the store's own types.
struct SegmentReplay {
  private struct Row {
    var key: UInt64
    var byteCount: Int
  }

  private let capacityByteCount: Int
  private let closingByteCount: Int
  private var index = RecordIndex(cellCount: IndexLayout.minimumCellCount)
  private var ghosts = GhostTable(cellCount: IndexLayout.minimumCellCount)
  private var open = OpenSegments()
  private var closed: [Segment] = []
  /// The row IDs of each band in ascending order, including deleted rows of segments that are not freed yet.
  private var rowIDs = [[UInt64]](repeating: [], count: Band.count)
  private var rows: [UInt64: Row] = [:]
  private var rowIDOfKey: [UInt64: UInt64] = [:]
  private var nextRowID = Band.rowIDStep
  private var usedByteCount = 0
  private var random: UInt64 = 1
  private(set) var storedByteCount = 0
  private(set) var rewrittenByteCount = 0

  init(capacityByteCount: Int) {
    self.capacityByteCount = capacityByteCount
    closingByteCount = Segment.closingByteCount(capacityByteCount: capacityByteCount)
  }

  /// Records a use of an object; returns whether it was a hit.
  func use(_ key: UInt64) -> Bool {
    guard let rowID = rowIDOfKey[key] else { return false }
    var matches = index.matches(of: Replay.mix(key))
    while let match = matches.next() {
      if match.rowID == rowID { index.recordUse(of: match) }
    }
    return true
  }

  mutating func store(_ key: UInt64, byteCount: Int) {
    let digest = Replay.mix(key)
    let useCount = ghosts.takeUseCount(digest: digest) + 1
    while usedByteCount + byteCount > capacityByteCount { evict() }
    if (index.recordCount + 1) * 100 > index.cellCount * IndexLayout.growthPercent {
      let larger = RecordIndex(cellCount: index.cellCount * 2)
      precondition(
        index.copyRecords(ofHomes: 0..<index.cellCount, into: larger) == .done && index.copyHeader(into: larger))
      index = larger
      // The index grows only while the cache fills, before there are ghost entries.
      ghosts = GhostTable(cellCount: larger.cellCount)
    }
    var entry = IndexEntry(
      digest: digest, hostDigest: 0, rowID: 0, byteCount: byteCount, useCount: useCount, inflation: index.inflation)
    append(&entry, Row(key: key, byteCount: byteCount))
    precondition(index.insert(entry), "The index is full")
    usedByteCount += byteCount
    storedByteCount += byteCount
  }

  private mutating func append(_ entry: inout IndexEntry, _ row: Row) {
    let band = entry.band(inflation: index.inflation)
    entry.rowID = band.rowID(nextRowID)
    nextRowID += Band.rowIDStep
    let full = open.append(
      rowID: entry.rowID, byteCount: Int(entry.byteCount), closingByteCount: closingByteCount)
    if let full { closed.append(full) }
    rowIDs[band.number].append(entry.rowID)
    rows[entry.rowID] = row
    rowIDOfKey[row.key] = entry.rowID
  }

  private mutating func evict() {
    let segments = (closed + open.all).sorted { $0.firstRowID < $1.firstRowID }
    random = Replay.mix(random)
    guard let plan = EvictionPlan(segments: segments, index: index, random: random),
      let band = Band(rowID: plan.segment.firstRowID)
    else { fatalError("There is nothing to evict") }
    closed.removeAll { $0 == plan.segment }
    _ = open.close(plan.segment.firstRowID)
    index.inflation = plan.inflation
    let range = plan.segment.firstRowID..<(plan.end ?? .max)
    let victims = rowIDs[band.number].filter { range.contains($0) }
    rowIDs[band.number].removeAll { range.contains($0) }
    for rowID in victims {
      guard let row = rows.removeValue(forKey: rowID) else { continue }
      let tag = IndexEntry.tag(of: Replay.mix(row.key))
      guard let cell = index.cell(of: tag, rowID: rowID) else { fatalError("The index lacks a record") }
      var entry = IndexEntry(tagWord: index.tagWord(cell), rowWord: index.rowWord(cell))
      if plan.keeps(entry) {
        append(&entry, row)
        rewrittenByteCount += row.byteCount
        precondition(index.replace(rowID: rowID, with: entry))
      } else {
        ghosts.remember(entry)
        index.remove(tag: tag, rowID: rowID)
        rowIDOfKey[row.key] = nil
        usedByteCount -= row.byteCount
      }
    }
  }
}

extension Replay {
  /// Evicts whole segments, as the store does.
  static func segments(_ trace: Trace, capacityByteCount: Int) -> Outcome {
    var outcome = Outcome(trace: trace.name, policy: "segments", capacityByteCount: capacityByteCount)
    var cache = SegmentReplay(capacityByteCount: capacityByteCount)
    for request in trace.requests {
      outcome.requests += 1
      outcome.requestedByteCount += request.byteCount
      if cache.use(request.key) {
        outcome.hits += 1
        outcome.hitByteCount += request.byteCount
      } else if request.byteCount <= capacityByteCount {
        cache.store(request.key, byteCount: request.byteCount)
      }
    }
    outcome.rewrittenShare = Double(cache.rewrittenByteCount) / Double(max(cache.storedByteCount, 1))
    return outcome
  }
}

import Foundation
import Testing

@testable import ResponseStore

/// Compares each plan with a plan that is computed from all records, without sampling and without an index.
@Suite("Eviction plans")
struct EvictionPlanTests {
  /// A cache of records without bodies that evicts according to plans.
  private struct Cache {
    let index = EvictionPlanTests.index(cellCount: 2048)
    var segments: [Segment] = []
    var open = OpenSegments()
    var rows: [UInt64: IndexEntry] = [:]
    var nextRowID = Band.rowIDStep
    let closingByteCount: Int

    mutating func append(_ entry: IndexEntry) -> IndexEntry {
      var entry = entry
      entry.rowID = entry.band(inflation: index.inflation).rowID(nextRowID)
      nextRowID += Band.rowIDStep
      let full = open.append(
        rowID: entry.rowID, byteCount: Int(entry.byteCount), closingByteCount: closingByteCount)
      if let full { segments.append(full) }
      rows[entry.rowID] = entry
      return entry
    }

    mutating func store(_ digest: UInt64, byteCount: Int, useCount: UInt64) {
      let entry = append(
        IndexEntry(
          digest: digest, hostDigest: 0, rowID: 0, byteCount: byteCount, useCount: useCount,
          inflation: index.inflation))
      #expect(index.insert(entry))
    }

    mutating func use(_ entry: IndexEntry) {
      guard let cell = index.cell(of: entry.tag, rowID: entry.rowID) else { return }
      index.recordUse(of: .init(rowID: entry.rowID, cell: cell, tagWord: index.tagWord(cell)))
      rows[entry.rowID] = IndexEntry(tagWord: index.tagWord(cell), rowWord: index.rowWord(cell))
    }

    mutating func remove(_ entry: IndexEntry) {
      rows[entry.rowID] = nil
      index.remove(tag: entry.tag, rowID: entry.rowID)
    }

    var allSegments: [Segment] { (segments + open.all).sorted { $0.firstRowID < $1.firstRowID } }

    func records(of segment: Segment) -> [IndexEntry] {
      let band = segment.firstRowID % 8
      let end = allSegments.filter { $0.firstRowID % 8 == band && $0.firstRowID > segment.firstRowID }
        .map(\.firstRowID).min()
      return rows.values.filter { $0.rowID % 8 == band && $0.rowID >= segment.firstRowID && $0.rowID < end ?? .max }
    }

    /// Frees a segment and returns the evicted records.
    mutating func free(_ plan: EvictionPlan) -> [IndexEntry] {
      let victims = records(of: plan.segment).sorted { $0.rowID < $1.rowID }
      segments.removeAll { $0 == plan.segment }
      _ = open.close(plan.segment.firstRowID)
      index.inflation = plan.inflation
      for entry in victims where plan.keeps(entry) {
        rows[entry.rowID] = nil
        let moved = append(entry)
        #expect(index.replace(rowID: entry.rowID, with: moved))
      }
      let evicted = victims.filter { !plan.keeps($0) }
      for entry in evicted { remove(entry) }
      return evicted
    }

    // MARK: The definition, computed from all records

    func priority(_ entry: IndexEntry) -> Double {
      entry.inflation + Double(entry.useCount * entry.useCount) / pow(entry.byteCount, 0.85)
    }

    func cut(of segment: Segment, share: Double = 0.7) -> Double {
      var byteCount = 0.0
      for entry in records(of: segment).sorted(by: { priority($0) > priority($1) }) {
        byteCount += entry.byteCount
        if byteCount > share * Double(segment.byteCount) { return priority(entry) }
      }
      return -1
    }

    func expectedSurvivors(of segment: Segment) -> Set<UInt64> {
      let inflation = max(index.inflation, cut(of: segment, share: 0.3))
      let records = records(of: segment)
      let dead = Double(segment.byteCount) - records.reduce(0) { $0 + $1.byteCount }
      let share = 0.4 * max(0, 1 - max(dead, 0) / (0.3 * Double(segment.byteCount)))
      let priorities = rows.values.map { priority($0) }.sorted()
      let quantile = share > 0 ? priorities[Int(share * Double(priorities.count))] : 0
      return Set(records.filter { priority($0) > inflation && priority($0) >= quantile }.map(\.rowID))
    }
  }

  private static func index(cellCount: Int) -> RecordIndex {
    let byteCount = IndexLayout.byteCount(cellCount: cellCount)
    let memory = mmap(nil, byteCount, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)!
    return RecordIndex(mapped: memory, cellCount: cellCount)
  }

  @Test("Each plan is the one that a computation over all records gives", arguments: [1, 2, 3] as [UInt64])
  func agreesWithTheDefinition(seed: UInt64) throws {
    var random = SeededGenerator(seed: seed)
    var cache = Cache(closingByteCount: 20_000)
    var planCount = 0
    var survivorCount = 0
    for digest in 0..<UInt64(800) {
      let byteCount = Int.random(in: 100..<(Bool.random(using: &random) ? 2000 : 30_000), using: &random)
      cache.store(
        SeededGenerator.mixed(digest), byteCount: byteCount, useCount: UInt64.random(in: 1...3, using: &random))
      for _ in 0..<3 {
        let entry = cache.rows.values.min { $0.tag ^ digest << 20 < $1.tag ^ digest << 20 }!
        if digest % 5 == 4, Bool.random(using: &random) { cache.remove(entry) } else { cache.use(entry) }
      }
      while cache.rows.count > 120 {
        let segments = cache.allSegments
        let plan = try #require(EvictionPlan(segments: segments, index: cache.index, random: random.next()))
        let cuts = segments.map { cache.cut(of: $0) }
        let lowest = try #require(cuts.min())
        #expect(plan.segment == segments[try #require(cuts.firstIndex(of: lowest))], "seed \(seed)")
        let survivors = cache.expectedSurvivors(of: plan.segment)
        let kept = cache.records(of: plan.segment).filter { plan.keeps($0) }
        #expect(Set(kept.map(\.rowID)) == survivors, "seed \(seed)")
        #expect(plan.inflation >= cache.index.inflation)
        #expect(plan.inflation <= max(lowest, cache.index.inflation))
        let old = cache.rows.count
        let evicted = cache.free(plan)
        #expect(cache.rows.count == old - evicted.count)
        planCount += 1
        survivorCount += survivors.count
      }
    }
    #expect(planCount > 50)
    #expect(survivorCount > 10)
  }

  @Test("Used records stay, and are evicted after they are no longer used")
  func ages() throws {
    var cache = Cache(closingByteCount: 20_000)
    for digest in 0..<UInt64(20) { cache.store(SeededGenerator.mixed(digest), byteCount: 1000, useCount: 1) }
    let used = Set(cache.rows.values.map(\.tag))
    var digest: UInt64 = 100
    func storeMany(_ count: Int, usingSome: Bool) throws {
      for _ in 0..<count {
        cache.store(SeededGenerator.mixed(digest), byteCount: 1000, useCount: 1)
        digest += 1
        if usingSome, digest % 16 == 0 {
          for entry in cache.rows.values where used.contains(entry.tag) { cache.use(entry) }
        }
        while cache.rows.count > 100 {
          let plan = try #require(
            EvictionPlan(segments: cache.allSegments, index: cache.index, random: SeededGenerator.mixed(digest)))
          _ = cache.free(plan)
        }
      }
    }
    try storeMany(500, usingSome: true)
    #expect(cache.rows.values.count { used.contains($0.tag) } == used.count)
    // A squared use count of 225 protects a record from 225 generations of records that were used once.
    try storeMany(30_000, usingSome: false)
    #expect(cache.rows.values.count { used.contains($0.tag) } == 0)
  }

  @Test("Segments without live records are freed first, and records that the index lacks do not survive")
  func deletedFirst() throws {
    var cache = Cache(closingByteCount: 10_000)
    for digest in 0..<UInt64(100) { cache.store(SeededGenerator.mixed(digest), byteCount: 1000, useCount: 1) }
    let segment = cache.allSegments[4]
    for entry in cache.records(of: segment) { cache.remove(entry) }
    let plan = try #require(EvictionPlan(segments: cache.allSegments, index: cache.index, random: 0))
    #expect(plan.segment == segment)
    #expect(plan.end == cache.allSegments[5].firstRowID)
    #expect(EvictionPlan(segments: [], index: cache.index, random: 0) == nil)
  }

  @Test("Large records go to bands of shorter life, and used records to bands of longer life")
  func bands() {
    func band(_ byteCount: Int, _ useCount: UInt64 = 1, inflation: Double = 0) -> Int {
      let entry = IndexEntry(
        digest: 1, hostDigest: 0, rowID: 0, byteCount: byteCount, useCount: useCount, inflation: inflation)
      return entry.band(inflation: inflation).number
    }
    #expect([100, 1000, 4000, 16_000, 64_000, 1 << 20].map { band($0) } == [0, 1, 2, 3, 4, 5])
    #expect(band(64_000, 15) == 0)
    #expect(band(4000, inflation: IndexEntry.rounded(inflation: 0.1)) == 2)
  }

  @Test("Row IDs ascend across bands and determine the band")
  func rowIDs() {
    let rowIDs = Band.all.enumerated().map { $1.rowID(UInt64($0 + 1) * Band.rowIDStep) }
    #expect(rowIDs == rowIDs.sorted())
    #expect(rowIDs.map { Band(rowID: $0) } == Band.all)
    #expect(Band(rowID: 8 + 6) == nil)
  }

  @Test("A segment closes with the record that fills it, and the next record opens a new segment")
  func closing() {
    var open = OpenSegments()
    let records: [(rowID: UInt64, byteCount: Int)] = [(8, 900), (17, 5000), (24, 100), (32, 1)]
    let closed = records.map { open.append(rowID: $0.rowID, byteCount: $0.byteCount, closingByteCount: 1000) }
    #expect(
      closed == [
        nil, Segment(firstRowID: 17, byteCount: 5000, recordCount: 1),
        Segment(firstRowID: 8, byteCount: 1000, recordCount: 2), nil,
      ])
    #expect(open.all == [Segment(firstRowID: 32, byteCount: 1, recordCount: 1)])
    let closedAgain = [8, 32].map { open.close($0) }
    #expect(closedAgain == [nil, Segment(firstRowID: 32, byteCount: 1, recordCount: 1)])
    #expect(open == OpenSegments())
  }
}

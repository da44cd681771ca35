import Foundation
import Testing

@testable import ResponseStore

@Suite("Choosing which records to evict")
struct VictimSamplerTests {
  /// An index without a database, changed as its journal changes it.
  private final class Records {
    let index: RecordIndex
    private var transaction: UInt64 = 0

    init(slotCount: Int = 1024) {
      index = RecordIndex(slotCount: slotCount)
    }

    private func apply(_ change: IndexChange) {
      _ = index.settle(transactionID: transaction)
      #expect(index.note(change))
      transaction += 1
      #expect(index.settle(transactionID: transaction) == .done)
    }

    func insert(_ key: Int, rowID: UInt64, byteCount: Int, replacing old: UInt64? = nil) {
      apply(
        .insert(
          IndexEntry(digest: digest(key), hostDigest: 0, rowID: rowID, byteCount: byteCount), replacing: old))
    }

    func remove(_ entry: IndexEntry, remembering: Bool = false) {
      apply(.remove(tag: entry.tag, rowID: entry.rowID, remembering: remembering))
    }

    func noteUse(of key: Int) {
      var matches = index.matches(of: digest(key))
      while let match = matches.next() { index.noteUse(of: match) }
    }
  }

  @Test("A record that is used stays; of two of the same size, the unused one is evicted")
  func usedStays() {
    let records = Records()
    for number in 1...10 { records.insert(number, rowID: UInt64(number), byteCount: 10_000) }
    for number in 1...9 { records.noteUse(of: number) }
    #expect(VictimSampler(seed: 1).choose(from: records.index)?.rowID == 10)
  }

  @Test("Of two records that are used alike, the larger is evicted")
  func largerGoes() {
    let records = Records()
    records.insert(1, rowID: 1, byteCount: 1000)
    records.insert(2, rowID: 2, byteCount: 100_000)
    #expect(VictimSampler(seed: 1).choose(from: records.index)?.rowID == 2)
  }

  @Test("A record that was used much and is no longer used is evicted in the end")
  func ages() throws {
    let records = Records()
    let sampler = VictimSampler(seed: 1)
    records.insert(1, rowID: 1, byteCount: 1000)
    for _ in 0..<20 { records.noteUse(of: 1) }
    var evicted: [UInt64] = []
    for number in 2...2000 {
      records.insert(number, rowID: UInt64(number), byteCount: 1000)
      guard records.index.recordCount > 8, let victim = sampler.choose(from: records.index) else { continue }
      evicted.append(victim.rowID)
      records.remove(victim)
    }
    // Its 225 (15 squared) outlast many newcomers, whose priority is 1.
    #expect(try #require(evicted.firstIndex(of: 1)) > 100)
  }

  @Test("A record that comes back after its eviction brings its uses along")
  func ghost() {
    let records = Records()
    records.insert(1, rowID: 1, byteCount: 1000)
    for _ in 0..<5 { records.noteUse(of: 1) }
    let first = VictimSampler(seed: 1).choose(from: records.index)
    if let first { records.remove(first, remembering: true) }
    records.insert(1, rowID: 2, byteCount: 1000)
    records.insert(2, rowID: 3, byteCount: 1000)
    records.noteUse(of: 2)
    records.noteUse(of: 2)
    #expect(VictimSampler(seed: 1).choose(from: records.index)?.rowID == 3)
  }

  @Test("However often it is drawn from, every record is a victim in the end", arguments: [1, 2, 33, 100, 600])
  func drains(count: Int) {
    let records = Records()
    let sampler = VictimSampler(seed: UInt64(count))
    for number in 1...count { records.insert(number, rowID: UInt64(number), byteCount: number * 100) }
    var rows: Set<UInt64> = []
    while let victim = sampler.choose(from: records.index) {
      rows.insert(victim.rowID)
      records.remove(victim)
    }
    #expect(rows.count == count)
    #expect(records.index.recordCount == 0)
  }

  @Test("Records that were chosen before are not chosen again while they are in the index")
  func excluded() {
    let records = Records()
    for number in 1...40 { records.insert(number, rowID: UInt64(number), byteCount: number * 100) }
    let sampler = VictimSampler(seed: 1)
    var chosen: Set<UInt64> = []
    while let victim = sampler.choose(from: records.index, isExcluded: { chosen.contains($0.rowID) }) {
      #expect(chosen.insert(victim.rowID).inserted)
    }
    #expect(chosen.count == 40)
  }

  @Test("A share of all bytes is that of the records with the lowest priority, in the order of their rows")
  func share() {
    let records = Records(slotCount: 4096)
    for number in 1...1000 { records.insert(number, rowID: UInt64(number), byteCount: 1000) }
    for number in 1...500 { records.noteUse(of: number) }
    let victims = VictimSampler(seed: 1).choose(share: 0.4, from: records.index).map(\.rowID)
    #expect(victims == victims.sorted())
    #expect(Set(victims) == Set(501...1000))
  }
}

private func digest(_ number: Int) -> UInt64 {
  var generator = SplitMix64(state: UInt64(number) &* 1_000_003)
  return generator.next()
}

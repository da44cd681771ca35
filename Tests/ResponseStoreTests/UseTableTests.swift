import Foundation
import Testing

@testable import ResponseStore

@Suite("Use table: what is evicted")
struct UseTableTests {
  @Test("What is used stays; of two of the same size, the unused one goes")
  func usedStays() throws {
    let table = UseTable(slotCount: 1024)
    for number in 1...10 { table.insert(digest(number), rowID: UInt64(number), byteCount: 10_000) }
    for number in 1...9 { table.noteUse(of: digest(number)) }
    #expect(table.chooseVictim()?.rowID == 10)
  }

  @Test("Of two that are used alike, the larger goes")
  func largerGoes() throws {
    let table = UseTable(slotCount: 1024)
    table.insert(digest(1), rowID: 1, byteCount: 1000)
    table.insert(digest(2), rowID: 2, byteCount: 100_000)
    #expect(table.chooseVictim()?.rowID == 2)
  }

  @Test("An old favourite that is used no more goes in the end")
  func ages() throws {
    let table = UseTable(slotCount: 1024)
    table.insert(digest(1), rowID: 1, byteCount: 1000)
    for _ in 0..<20 { table.noteUse(of: digest(1)) }
    var evicted: [UInt64] = []
    for number in 2...2000 {
      table.insert(digest(number), rowID: UInt64(number), byteCount: 1000)
      guard table.recordCount > 8, let victim = table.chooseVictim() else { continue }
      evicted.append(victim.rowID)
      table.remove(victim, remembering: false)
    }
    #expect(evicted.contains(1))
    // Its 225 (15 squared) outlast many newcomers, whose worth is 1.
    #expect(try #require(evicted.firstIndex(of: 1)) > 100)
  }

  @Test("What comes back after its eviction brings its uses along")
  func ghost() throws {
    let table = UseTable(slotCount: 1024)
    table.insert(digest(1), rowID: 1, byteCount: 1000)
    for _ in 0..<5 { table.noteUse(of: digest(1)) }
    table.remove(digest(1), remembering: true)
    table.insert(digest(1), rowID: 2, byteCount: 1000)
    table.insert(digest(2), rowID: 3, byteCount: 1000)
    table.noteUse(of: digest(2))
    #expect(table.chooseVictim()?.rowID == 3)
  }

  @Test("A replaced record keeps its uses and gets its new row", arguments: [UInt64(1), 77])
  func replaced(seed: UInt64) throws {
    let table = UseTable(slotCount: 1024, seed: seed)
    table.insert(digest(1), rowID: 1, byteCount: 1000)
    table.insert(digest(1), rowID: 9, byteCount: 2000)
    #expect(table.recordCount == 1)
    #expect(table.rowID(of: digest(1)) == 9)
  }

  @Test("However often it is drawn from, every record is a victim in the end", arguments: [1, 2, 33, 100, 600])
  func drains(count: Int) throws {
    let table = UseTable(slotCount: 1024, seed: UInt64(count))
    for number in 1...count { #expect(table.insert(digest(number), rowID: UInt64(number), byteCount: number * 100)) }
    var rows: Set<UInt64> = []
    while let victim = table.chooseVictim() {
      rows.insert(victim.rowID)
      table.remove(victim, remembering: false)
    }
    #expect(rows.count == count)
    #expect(table.recordCount == 0)
  }

  @Test("A larger table knows what the smaller one knew")
  func grows() throws {
    let table = UseTable(slotCount: 1024)
    for number in 1...600 { table.insert(digest(number), rowID: UInt64(number), byteCount: 1000) }
    for number in 1...599 { table.noteUse(of: digest(number)) }
    #expect(!table.isCrowded)
    for number in 601...640 { table.insert(digest(number), rowID: UInt64(number), byteCount: 1) }
    #expect(table.isCrowded)
    let larger = UseTable(slotCount: 2048)
    table.copy(into: larger)
    #expect(larger.recordCount == table.recordCount)
    for number in 1...600 { #expect(larger.rowID(of: digest(number)) == UInt64(number)) }
  }

  @Test("A crowded window refuses a record instead of losing another")
  func window() throws {
    let table = UseTable(slotCount: 1024)
    // The place is named by the digest's higher bits, so these all want the same.
    let digests = (0..<20).map { UInt64($0 + 1) << 40 | UInt64(5) << 20 }
    let accepted = digests.filter { table.insert($0, rowID: $0, byteCount: 100) }
    #expect(accepted.count == UseTable.windowLength)
    for digest in accepted { #expect(table.rowID(of: digest) == digest & (1 << 36 - 1)) }
  }

  @Test("Uses noted by many threads while records come and go never break the table")
  func threads() async throws {
    let table = UseTable(slotCount: 4096)
    await withTaskGroup(of: Void.self) { group in
      for worker in 0..<4 {
        group.addTask {
          var generator = SplitMix64(state: UInt64(worker))
          for _ in 0..<20_000 { table.noteUse(of: digest(Int.random(in: 1...2000, using: &generator))) }
        }
      }
      group.addTask {
        for number in 1...2000 {
          table.insert(digest(number), rowID: UInt64(number), byteCount: number)
          if number > 1000, let victim = table.chooseVictim() { table.remove(victim, remembering: true) }
        }
      }
    }
    #expect(table.recordCount == 1000)
  }
}

private func digest(_ number: Int) -> UInt64 {
  var generator = SplitMix64(state: UInt64(number) &* 1_000_003)
  return generator.next()
}

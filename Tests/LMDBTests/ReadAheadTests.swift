import Foundation
import Glibc
import Testing

// Which leaves are read ahead. Only the time of a read depends on them.
@testable import LMDB

@Suite("Read-ahead")
struct ReadAheadTests {
  @Test("Released pages are read again when they are used")
  func release() throws {
    let fixture = try Fixture(mapByteCount: 16 << 20)
    try fixture.put(0..<2000, byteCount: 1000)
    func sum() throws -> Int {
      try fixture.environment.read { (transaction) throws(LMDBError) in
        try fixture.table.withCursor(in: transaction) { (cursor) throws(LMDBError) in
          var sum = 0
          while try cursor.next() { sum += Int(cursor.value?.first ?? 0) }
          return sum
        }
      }
    }
    let before = try sum()
    #expect(try #require(residentKilobytes(fixture)) > 1000)
    for _ in 0..<2 {
      try fixture.environment.read { (transaction) throws(LMDBError) in
        fixture.environment.releaseResidentPages(in: transaction)
      }
      #expect(try #require(residentKilobytes(fixture)) < 200)
      #expect(try sum() == before)
      #expect(try #require(residentKilobytes(fixture)) > 1000)
    }
  }

  /// The resident size of the data file's mapping in kB; nil if it is not mapped.
  private func residentKilobytes(_ fixture: Fixture) -> Int? {
    let lines = MappingReport.lines(ofFile: fixture.directory.dataFile)
    return lines.first { $0.hasPrefix("Rss:") }.flatMap { Int($0.filter(\.isNumber)) }
  }

  @Test("The pages of large values, and those near their keys, are released")
  func releaseOfLargeValues() throws {
    let fixture = try Fixture(mapByteCount: 64 << 20)
    try fixture.put(0..<4000, byteCount: 8000)
    let table = fixture.table
    try fixture.environment.read { (transaction) throws(LMDBError) in
      let environment = fixture.environment
      environment.releaseResidentPages(in: transaction)
      var (keys, values): ([UnsafeRawBufferPointer], [UnsafeRawBufferPointer]) = ([], [])
      try table.withCursor(in: transaction) { (cursor) throws(LMDBError) in
        while try cursor.next() {
          keys.append(try cursor.withKey { (key) throws(LMDBError) in key.withUnsafeBytes { $0 } })
          values.append(try cursor.withValue { (value) throws(LMDBError) in value.withUnsafeBytes { $0 } })
        }
      }
      let near = residentKilobytes(fixture)
      environment.releaseResidentPages(near: keys, in: transaction)
      let afterNear = residentKilobytes(fixture)
      for value in values { #expect(value[0] >= 0 && value[7999] >= 0) }
      let all = residentKilobytes(fixture)
      environment.releaseResidentPages(of: values, in: transaction)
      let afterAll = residentKilobytes(fixture)
      guard let near, let afterNear, let all, let afterAll else {
        Issue.record("The data file is not mapped")
        return
      }
      #expect(near > 1000)
      #expect(afterNear < 300)
      #expect(all > 30_000)
      #expect(afterAll < 1000)
    }
  }

  @Test("The leaves of a table are found from any key on, window by window")
  func leaves() throws {
    let fixture = try Fixture(mapByteCount: 64 << 20)
    // Enough for three levels.
    try fixture.put(0..<30_000, byteCount: 1000)
    func key(_ number: UInt64) throws -> [UInt8] {
      try BigEndianUInt64Codec.withEncoded(number) { (bytes) throws(LMDBError) in [UInt8](bytes) }
    }
    try fixture.environment.read { (transaction) throws(LMDBError) in
      let map = MappedPages(of: fixture.environment, transaction)
      let tree = map?.tree(ofTable: Array("table".utf8), transaction)
      let statistics = try fixture.table.statistics(in: transaction)
      guard let map, let tree, tree.depth > 2 else {
        Issue.record("The table was not found: \(statistics)")
        return
      }
      #expect(map.tree(ofTable: Array("none".utf8), transaction) == nil)
      func leaves(from start: [UInt8], to end: [UInt8]? = nil, limit: Int = .max) -> ReadAhead.Leaves {
        var leaves = ReadAhead.Leaves(map: map, start: start, end: end, limit: limit)
        leaves.collect(tree.root, level: tree.depth, first: nil)
        return leaves
      }
      let all = leaves(from: [])
      #expect(Set(all.pages).count == statistics.leafPageCount)
      #expect(all.next == nil)
      var (inWindows, start): ([Int], [UInt8]?) = ([], [])
      while let first = start {
        let window = leaves(from: first, limit: 700)
        inWindows += window.pages
        start = window.next
      }
      #expect(inWindows == all.pages)
      func pages(of numbers: [UInt64]) -> [Int] {
        var leaves = ReadAhead.LeavesOfKeys(map: map, keys: numbers[...])
        leaves.collect(tree.root, level: tree.depth, end: nil)
        return leaves.pages
      }
      #expect(pages(of: Array(0..<30_000)) == all.pages)
      #expect(pages(of: [0]) == [all.pages[0]])
      #expect(pages(of: [29_999, .max]) == [all.pages[all.pages.count - 1]])
      let scattered = pages(of: [0, 10_000, 10_001, 20_000])
      #expect((3...4).contains(scattered.count))
      #expect(scattered == all.pages.filter { scattered.contains($0) })
      do {
        let half = try leaves(from: key(10_000), to: key(20_000))
        #expect((statistics.leafPageCount / 4..<statistics.leafPageCount / 2).contains(half.pages.count))
        #expect(try leaves(from: key(.max)).pages.count == 1)
      } catch {
        Issue.record("\(error)")
      }
    }
  }
}

import Foundation
import Glibc
import Testing

@testable import LMDB

@Suite("Read-ahead")
struct ReadAheadTests {
  /// Returns a table's leaf pages and the first pages of its large values, both in key order.
  private func pages(of fixture: Fixture, from start: UInt64) throws -> (leaves: [UInt64], values: [UInt64]) {
    var leaves: [UInt64] = []
    var values: [UInt64] = []
    func number(of span: RawSpan) -> UInt64 {
      // A page begins with its number.
      span.withUnsafeBytes { bytes in
        let page = UInt(bitPattern: bytes.baseAddress) & ~UInt(getpagesize() - 1)
        return UnsafeRawPointer(bitPattern: page)?.load(as: UInt64.self) ?? 0
      }
    }
    try fixture.environment.read { (transaction) throws(LMDBError) in
      try fixture.table.withCursor(in: transaction) { (cursor) throws(LMDBError) in
        var more = try cursor.seek(atOrAfter: start)
        while more {
          let leaf = try cursor.withKey { (key) throws(LMDBError) in number(of: key) }
          if leaves.last != leaf { leaves.append(leaf) }
          let value = try cursor.withValue { (value) throws(LMDBError) in number(of: value) }
          if value != leaf { values.append(value) }
          more = try cursor.next()
        }
      }
    }
    return (leaves, values)
  }

  /// Returns consecutive windows from a key to the end of the table.
  private func windows(
    of fixture: Fixture, from start: UInt64, to end: UInt64? = nil, pageCount: Int, includesLargeValues: Bool = false
  ) throws -> [PageExtents] {
    var windows: [PageExtents] = []
    let end = end.map { end in withUnsafeBytes(of: end.bigEndian) { [UInt8]($0) } }
    var next: [UInt8]? = withUnsafeBytes(of: start.bigEndian) { [UInt8]($0) }
    while let key = next {
      var extents = PageExtents(start: key, end: end, pageCount: pageCount, includesLargeValues: includesLargeValues)
      let descriptor = try fixture.environment.dataDescriptor()
      try extents.find(in: TreeWalk(descriptor: descriptor), table: Array("table".utf8))
      windows.append(extents)
      next = extents.next
    }
    return windows
  }

  @Test("The windows list each leaf page from a key on once, within the requested size", arguments: [0, 1234])
  func leaves(start: UInt64) throws {
    let fixture = try Fixture(mapByteCount: 16 << 20)
    // Store out of order, so that neighboring keys are on distant pages.
    for part in 0..<7 as Range<UInt64> { try fixture.put(stride(from: part, to: 6000, by: 7), byteCount: 400) }
    let expected = try pages(of: fixture, from: start).leaves
    let windows = try windows(of: fixture, from: start, pageCount: 50)
    #expect(windows.count > 8)
    #expect(windows.flatMap { $0.runs.flatMap(Array.init) }.sorted() == expected.sorted())
    for window in windows {
      #expect(window.runs.reduce(0) { $0 + $1.count } <= 50)
      #expect(zip(window.runs, window.runs.dropFirst()).allSatisfy { $0.upperBound < $1.lowerBound })
    }
  }

  @Test("Released pages are read again when they are used")
  func release() throws {
    let fixture = try Fixture(mapByteCount: 16 << 20)
    try fixture.put(0..<2000, byteCount: 1000)
    func residentByteCount() throws -> Int {
      // The resident size of the data file's mapping in kB.
      let lines = MappingReport.lines(ofFile: fixture.directory.dataFile)
      let line = try #require(lines.first { $0.hasPrefix("Rss:") })
      return try #require(Int(line.filter(\.isNumber)))
    }
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
    #expect(try residentByteCount() > 1000)
    // The second round uses the address of the map that the first round has found.
    var residentPages = ResidentPages()
    for _ in 0..<2 {
      try fixture.environment.read { (transaction) throws(LMDBError) in
        residentPages.release(of: fixture.environment, transaction)
      }
      #expect(try residentByteCount() < 200)
      #expect(try sum() == before)
      #expect(try residentByteCount() > 1000)
    }
  }
}

import Foundation
import Glibc
import Testing

@testable import LMDB

@Suite("Read-ahead")
struct ReadAheadTests {
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

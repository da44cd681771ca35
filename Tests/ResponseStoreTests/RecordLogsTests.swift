import Foundation
import LMDB
import Testing

@testable import ResponseStore

@Suite("Record logs")
struct RecordLogsTests {
  private final class Fixture {
    let directory = FileManager.default.temporaryDirectory.appendingPathComponent("logs-\(UUID().uuidString)").path
    let environment: LMDBEnvironment
    let logs: RecordLogs

    init() throws {
      try FileManager.default.createDirectory(atPath: directory, withIntermediateDirectories: true)
      let environment = try LMDBEnvironment.open(
        directory: directory, options: LMDBEnvironment.Options(mapByteCount: 64 << 20))
      self.environment = environment
      let logs = try RecordLogs(TableOpener(environment: environment, creates: true))
      self.logs = try #require(logs)
    }

    func remove() {
      // A leftover directory does no harm.
      try? FileManager.default.removeItem(atPath: directory)
    }

    /// Appends records to the bands in turn, 50 in each transaction, and returns their row IDs.
    func fill(_ count: Int, byteCount: Int, bands: [Int]) throws -> [UInt64] {
      let rowIDs = (0..<count).map { UInt64($0 + 1) * Band.rowIDStep + UInt64(bands[$0 % bands.count]) }
      for start in stride(from: 0, to: count, by: 50) {
        try environment.write { (transaction) throws(LMDBError) in
          for rowID in rowIDs[start..<min(start + 50, count)] {
            try logs.put([UInt8](repeating: UInt8(rowID >> 3 & 0xff), count: byteCount), for: rowID, in: transaction)
          }
        }
      }
      return rowIDs
    }

    func livePageCount() throws -> Int {
      try environment.read { (transaction) throws(LMDBError) in
        try environment.livePageCount(in: transaction)
          - environment.freeListStatistics(in: transaction).pageCount
      }
    }
  }

  @Test("Leaf pages are full, and deleting a run of records frees its leaf pages", arguments: [300, 700, 1500])
  func runs(byteCount: Int) throws {
    let fixture = try Fixture()
    defer { fixture.remove() }
    let empty = try fixture.livePageCount()
    let rowIDs = try fixture.fill(3000, byteCount: byteCount, bands: [1, 1, 4])
    let full = try fixture.livePageCount()
    let perLeaf = 4080 / (byteCount + 18)
    #expect(Double(full - empty) < Double(3000 / perLeaf) * 1.06)
    // The middle third of one band.
    let run = rowIDs.filter { $0 % 8 == 1 }[700..<1400]
    for start in stride(from: run.startIndex, to: run.endIndex, by: 200) {
      try fixture.environment.write { (transaction) throws(LMDBError) in
        for rowID in run[start..<min(start + 200, run.endIndex)] {
          #expect(try fixture.logs.remove(rowID, in: transaction))
        }
      }
    }
    let freed = try full - fixture.livePageCount()
    #expect(Double(freed) > Double(700 / perLeaf) * 0.95)
    try fixture.environment.read { (transaction) throws(LMDBError) in
      for rowID in rowIDs {
        let byte = try fixture.logs.withValue(for: rowID, in: transaction) { (record) throws(LMDBError) in
          record.withUnsafeBytes { $0[0] }
        }
        #expect(byte == (run.contains(rowID) ? nil : UInt8(rowID >> 3 & 0xff)))
      }
      #expect(try fixture.logs.rowCount(in: transaction) == 2300)
    }
  }

  @Test("Scans return the rows of all bands in order")
  func walks() throws {
    let fixture = try Fixture()
    defer { fixture.remove() }
    let rowIDs = try fixture.fill(100, byteCount: 40, bands: [0, 5, 2, 2, 3])
    try fixture.environment.write { (transaction) throws(LMDBError) in
      #expect(try fixture.logs.lastRowID(in: transaction) == rowIDs.last)
      var ofBand: [UInt64] = []
      try fixture.logs.forEachRow(of: Band.all[2], from: rowIDs[50], in: transaction) { (rowID, record) in
        ofBand.append(rowID)
        return record.count == 40 && ofBand.count < 10
      }
      #expect(ofBand == Array(rowIDs[50...].filter { $0 % 8 == 2 }.prefix(10)))
      // Row IDs that belong to no band.
      #expect(try !fixture.logs.contains(8 + 7, in: transaction))
      #expect(try !fixture.logs.remove(8 + 6, in: transaction))
      let segments = [
        Segment(firstRowID: 8, byteCount: 1 << 40, recordCount: 1 << 33),
        Segment(firstRowID: 300, byteCount: 5, recordCount: 1),
      ]
      for segment in segments.reversed() { try fixture.logs.put(segment, in: transaction) }
      #expect(try fixture.logs.segments(in: transaction) == segments)
      try fixture.logs.remove(segments[0], in: transaction)
      #expect(try fixture.logs.segments(in: transaction) == [segments[1]])
    }
  }

  @Test("Segments without rows are deleted, a few at a time")
  func emptySegments() throws {
    let fixture = try Fixture()
    defer { fixture.remove() }
    let rowIDs = try fixture.fill(60, byteCount: 40, bands: [0, 3])
    let firstRowIDs = stride(from: 0, to: 60, by: 10).flatMap { rowIDs[$0...($0 + 1)] }
    let emptied = [firstRowIDs[2], firstRowIDs[7], firstRowIDs[11]]
    try fixture.environment.write { (transaction) throws(LMDBError) in
      for firstRowID in firstRowIDs {
        try fixture.logs.put(Segment(firstRowID: firstRowID, byteCount: 400, recordCount: 5), in: transaction)
      }
      for rowID in rowIDs {
        let first = firstRowIDs.last { $0 <= rowID && $0 % 8 == rowID % 8 }
        if let first, emptied.contains(first) { try fixture.logs.remove(rowID, in: transaction) }
      }
      var position: UInt64 = 0
      for expected in [1, 2, 3] {
        position = try fixture.logs.removeEmptySegments(from: position, in: transaction)
        let left = try fixture.logs.segments(in: transaction).map(\.firstRowID)
        #expect(left == firstRowIDs.filter { !emptied.prefix(expected).contains($0) })
      }
      // All twelve segments were examined; the next call finds no more.
      #expect(try fixture.logs.removeEmptySegments(from: position, in: transaction) == 0)
    }
  }
}

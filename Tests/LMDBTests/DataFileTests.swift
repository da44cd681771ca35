import Foundation
import Glibc
import LMDB
import Testing

@Suite("Data file")
struct DataFileTests {
  private let directory = TemporaryDirectory()
  private let mapByteCount = 1 << 20
  private let page = Int(getpagesize())

  private func inspect() -> DataFile.Condition {
    DataFile.inspect(path: directory.dataFile, mapByteCount: mapByteCount)
  }

  private func write(_ bytes: [UInt8]) throws {
    try Data(bytes).write(to: URL(fileURLWithPath: directory.dataFile))
  }

  private func truncate(_ byteCount: Int) throws {
    let handle = try FileHandle(forWritingTo: URL(fileURLWithPath: directory.dataFile))
    try handle.truncate(atOffset: UInt64(byteCount))
    try handle.close()
  }

  @Test("Missing, empty, new and used files are usable")
  func usable() throws {
    #expect(inspect() == .missing)
    try write([])
    #expect(inspect() == .empty)
    do {
      let environment = try directory.open()
      #expect(inspect() == .healthy)
      withExtendedLifetime(environment) {}
    }
    _ = try Fixture.populated(directory)
    #expect(inspect() == .healthy)
    for condition in [DataFile.Condition.missing, .empty, .healthy] { #expect(condition.isUsable) }
  }

  @Test("A truncated file is too short, regardless of its length")
  func truncated() throws {
    let byteCount = try Fixture.populated(directory)
    #expect(byteCount > 4 * page)
    for length in [byteCount - 1, byteCount - page, 2 * page, page + 152, page + 151, page, 152, 151, 1] {
      try truncate(length)
      guard case .tooShort(byteCount: length, neededByteCount: let needed) = inspect() else {
        Issue.record("\(length) bytes: \(inspect())")
        continue
      }
      #expect(needed > length)
    }
  }

  @Test("Files of other programs are not recognized as LMDB files")
  func foreign() throws {
    for bytes in [
      [UInt8](repeating: 0, count: 20_000), Array("# Notes\n".utf8) + [UInt8](repeating: 0x20, count: 100),
      Array("SQLite format 3\0".utf8) + [UInt8](repeating: 1, count: 9_000), [UInt8](repeating: 0xFF, count: 9_000),
    ] {
      try write(bytes)
      #expect(inspect() == .notLMDB)
    }
    try FileManager.default.removeItem(atPath: directory.dataFile)
    try FileManager.default.createDirectory(atPath: directory.dataFile, withIntermediateDirectories: false)
    #expect(inspect() == .notRegularFile)
  }

  @Test("Other versions, other page sizes and corrupt meta pages are detected")
  func metaPages() throws {
    func condition(_ offset: Int, _ bytes: [UInt8]) throws -> DataFile.Condition {
      let directory = TemporaryDirectory()
      _ = try Fixture.populated(directory)
      try directory.overwriteDataFile(at: offset, with: bytes)
      return DataFile.inspect(path: directory.dataFile, mapByteCount: mapByteCount)
    }
    func isImplausible(_ condition: DataFile.Condition) -> Bool {
      if case .implausible = condition { true } else { false }
    }
    #expect(try condition(20, [2, 0, 0, 0]) == .otherVersion(2))
    #expect(try condition(page + 20, [0xE7, 3, 0, 0]) == .otherVersion(999))
    #expect(try condition(40, [0, 0x40, 0, 0]) == .otherPageSize(16_384))
    #expect(try condition(40, [0, 0, 0, 0]) == .otherPageSize(0))
    #expect(try condition(10, [2, 0]) == .notLMDB)
    #expect(try isImplausible(condition(page + 16, [0, 0, 0, 0])))
    #expect(try isImplausible(condition(128, [1, 0, 0, 0, 0, 0, 0, 0])))
    #expect(try isImplausible(condition(80, [0xFF, 0xFF, 0, 0, 0, 0, 0, 0])))
    // LMDB leaves this in the older meta page when it could not write it.
    #expect(try condition(page + 128, [0xFF, 0xFF, 0, 0, 0, 0, 0, 0]) == .healthy)
    #expect(try isImplausible(condition(136, [0, 0, 0, 0, 0, 0, 0, 0])))
    #expect(try isImplausible(condition(136, [UInt8](repeating: 0xFF, count: 8))))
    // A transaction number in the wrong meta page, and numbers that do not follow the other page's.
    #expect(try isImplausible(condition(144, [5, 0, 0, 0, 0, 0, 0, 0])))
    #expect(try isImplausible(condition(144, [0, 0, 0, 0, 0, 0, 0, 0])))
    #expect(try isImplausible(condition(144, [200, 0, 0, 0, 0, 0, 0, 0])))
  }

  @Test("A file that is larger than the map is not usable")
  func largerThanMap() throws {
    let byteCount = try Fixture.populated(directory)
    #expect(DataFile.inspect(path: directory.dataFile, mapByteCount: byteCount) == .healthy)
    let condition = DataFile.inspect(path: directory.dataFile, mapByteCount: byteCount - page)
    #expect(condition == .largerThanMap(byteCount: byteCount, mapByteCount: byteCount - page))
    #expect(!condition.isUsable)
    #expect(DataFile.usedByteCount(path: directory.dataFile) == byteCount)
    try truncate(2 * byteCount)
    #expect(DataFile.usedByteCount(path: directory.dataFile) == byteCount)
    #expect(DataFile.usedByteCount(path: directory.path + "/missing") == 0)
  }

  @Test("The description of a condition states the reason")
  func descriptions() {
    #expect(
      "\(DataFile.Condition.tooShort(byteCount: 5, neededByteCount: 8192))"
        == "has 5 bytes and should have at least 8192")
    #expect("\(DataFile.Condition.otherVersion(2))" == "has LMDB's format 2 instead of 1")
    #expect("\(DataFile.Condition.unreadable(.init(code: .accessDenied, function: "open")))".contains("open failed"))
    #expect(!DataFile.Condition.otherOwner(7).isUsable)
  }

  @Test("A file is healthy while a writer changes it")
  func busyFile() throws {
    let fixture = try Fixture()
    let findings = Findings()
    let threads = Threads()
    threads.start {
      findings.check { () throws(LMDBError) in
        for round in 0..<200 as Range<UInt64> { try fixture.put([round % 7], byteCount: 3_000) }
      }
    }
    for _ in 0..<200 {
      let condition = DataFile.inspect(path: fixture.directory.dataFile, mapByteCount: 1 << 20)
      if condition != .healthy { findings.add("\(condition)") }
    }
    threads.join()
    #expect(findings.all == [])
  }
}

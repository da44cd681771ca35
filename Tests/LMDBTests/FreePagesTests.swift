import Foundation
import LMDB
import Testing

@Suite("Releasing free pages to the file system")
struct FreePagesTests {
  private func blockByteCount(_ directory: String) -> Int {
    var status = stat()
    stat(directory + "/data.mdb", &status)
    return Int(status.st_blocks) * 512
  }

  private func withEnvironment(
    _ body: (LMDBEnvironment, Table<BigEndianUInt64Codec, BytesCodec>, String) throws -> Void
  )
    throws
  {
    let directory = FileManager.default.temporaryDirectory.appendingPathComponent("pages-\(UUID().uuidString)").path
    try FileManager.default.createDirectory(atPath: directory, withIntermediateDirectories: true)
    defer { try? FileManager.default.removeItem(atPath: directory) }
    let environment = try LMDBEnvironment.open(directory: directory, options: .init(mapByteCount: 64 << 20))
    let table = try environment.table("t", key: BigEndianUInt64Codec.self, value: BytesCodec.self)
    try body(environment, table, directory)
  }

  private func value(_ number: UInt64) -> [UInt8] {
    [UInt8](repeating: UInt8(truncatingIfNeeded: number), count: 20_000)
  }

  private func fill(_ environment: LMDBEnvironment, _ table: Table<BigEndianUInt64Codec, BytesCodec>) throws {
    try environment.write { (transaction) throws(LMDBError) in
      for number: UInt64 in 0..<500 { try table.put(value(number), for: number, in: transaction) }
    }
  }

  private func remove(
    _ environment: LMDBEnvironment, _ table: Table<BigEndianUInt64Codec, BytesCodec>, where isRemoved: (UInt64) -> Bool
  ) throws {
    try environment.write { (transaction) throws(LMDBError) in
      for number: UInt64 in 0..<500 where isRemoved(number) { try table.remove(number, in: transaction) }
    }
    for _ in 0..<2 {
      try environment.write { (transaction) throws(LMDBError) in
        try table.put([1], for: 1000, in: transaction)
      }
    }
  }

  @Test("Releasing free pages shrinks disk usage, keeps the remaining values, and later writes reuse the holes")
  func release() throws {
    try withEnvironment { environment, table, directory in
      try fill(environment, table)
      let full = blockByteCount(directory)
      try remove(environment, table) { $0 % 5 != 0 }
      let released = try environment.releaseFreePages()
      #expect(released.next == nil)
      #expect(released.byteCount >= 400 * 20_000)
      #expect(blockByteCount(directory) <= full - 400 * 20_000)
      #expect(try environment.releaseFreePages().byteCount == 0)
      try environment.read { (transaction) throws(LMDBError) in
        for number: UInt64 in stride(from: 0, to: 500, by: 5) {
          let stored = try table.value(for: number, in: transaction)
          #expect(stored == value(number))
        }
      }
      let lastPage = environment.information.lastPageNumber
      try fill(environment, table)
      // The 100 replaced values need new pages until the commit.
      #expect(environment.information.lastPageNumber <= lastPage + 600)
      try environment.read { (transaction) throws(LMDBError) in
        for number: UInt64 in 0..<500 {
          let stored = try table.value(for: number, in: transaction)
          #expect(stored == value(number))
        }
      }
    }
  }

  @Test("Pages of a transaction whose process was killed before its commit are released")
  func uncommittedPages() throws {
    try withEnvironment { environment, table, directory in
      try fill(environment, table)
      try environment.releaseFreePages()
      let before = blockByteCount(directory)
      // What such a process leaves at the end of the file.
      let file = try FileHandle(forWritingTo: URL(fileURLWithPath: directory + "/data.mdb"))
      try file.seekToEnd()
      file.write(Data(repeating: 1, count: 1 << 20))
      try file.close()
      #expect(blockByteCount(directory) >= before + (1 << 20))
      #expect(try environment.releaseFreePages().byteCount >= 1 << 20)
      #expect(blockByteCount(directory) <= before)
      try fill(environment, table)
      for number: UInt64 in 0..<500 {
        #expect(
          try environment.read { (transaction) throws(LMDBError) in try table.value(for: number, in: transaction) }
            == value(number))
      }
    }
  }

  @Test("A reader in another process pins its pages")
  func otherProcess() async throws {
    let directory = FileManager.default.temporaryDirectory.appendingPathComponent("pages-\(UUID().uuidString)").path
    try FileManager.default.createDirectory(atPath: directory, withIntermediateDirectories: true)
    defer { try? FileManager.default.removeItem(atPath: directory) }
    let environment = try LMDBEnvironment.open(directory: directory, options: .init(mapByteCount: 64 << 20))
    let table = try environment.table("t", key: BigEndianUInt64Codec.self, value: BytesCodec.self)
    try fill(environment, table)
    // The child's snapshot outlives the child: its slot stays in the lock file until stale readers are cleared.
    await #expect(processExitsWith: .signal(SIGKILL)) { [directory = directory as String] in
      let environment = try LMDBEnvironment.open(directory: directory, options: .init(mapByteCount: 64 << 20))
      try environment.read { (_) throws(LMDBError) in _ = kill(getpid(), SIGKILL) }
    }
    try remove(environment, table) { _ in true }
    #expect(try environment.releaseFreePages().byteCount < 1 << 20)
    #expect(try environment.clearStaleReaders() == 1)
    #expect(try environment.releaseFreePages().byteCount >= 500 * 20_000)
  }
}

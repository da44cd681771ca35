import Foundation
import Testing

@testable import LMDB

@Suite("Free pages go back to the file system")
struct FreePagesTests {
  private func blockByteCount(_ directory: String) -> Int {
    var status = stat()
    stat(directory + "/data.mdb", &status)
    return Int(status.st_blocks) * 512
  }

  private func withEnvironment(_ body: (Environment, Table<BigEndianUInt64, BytesCodec>, String) throws -> Void) throws
  {
    let directory = FileManager.default.temporaryDirectory.appendingPathComponent("pages-\(UUID().uuidString)").path
    try FileManager.default.createDirectory(atPath: directory, withIntermediateDirectories: true)
    defer { try? FileManager.default.removeItem(atPath: directory) }
    let environment = try Environment.open(directory: directory, options: .init(mapByteCount: 64 << 20))
    let table = try environment.table("t", key: BigEndianUInt64.self, value: BytesCodec.self)
    try body(environment, table, directory)
  }

  private func value(_ number: UInt64) -> [UInt8] {
    [UInt8](repeating: UInt8(truncatingIfNeeded: number), count: 20_000)
  }

  private func fill(_ environment: Environment, _ table: Table<BigEndianUInt64, BytesCodec>) throws {
    try environment.write { (transaction) throws(LMDBError) in
      for number: UInt64 in 0..<500 { try table.put(value(number), for: number, in: transaction) }
    }
  }

  private func remove(
    _ environment: Environment, _ table: Table<BigEndianUInt64, BytesCodec>, where isRemoved: (UInt64) -> Bool
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

  @Test("The file takes less room, what is left stays whole, and the holes can be written again")
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
      // The hundred that are replaced need new pages until the commit.
      #expect(environment.information.lastPageNumber <= lastPage + 600)
      try environment.read { (transaction) throws(LMDBError) in
        for number: UInt64 in 0..<500 {
          let stored = try table.value(for: number, in: transaction)
          #expect(stored == value(number))
        }
      }
    }
  }

  @Test("It goes in steps when asked to")
  func steps() throws {
    try withEnvironment { environment, table, directory in
      try fill(environment, table)
      try remove(environment, table) { $0 % 2 == 0 }
      var steps = 0
      var position: Environment.FreePagePosition? = .start
      while let here = position {
        position = try environment.releaseFreePages(from: here, maximumPageCount: 64).next
        steps += 1
      }
      #expect(steps > 5)
      #expect(blockByteCount(directory) < 500 * 20_000 * 6 / 10)
    }
  }

  @Test("What a reader's snapshot shows is kept until it ends")
  func reader() throws {
    try withEnvironment { environment, table, directory in
      try fill(environment, table)
      try environment.read { (transaction) throws(LMDBError) in
        do {
          try remove(environment, table) { _ in true }
        } catch {
          Issue.record(error)
        }
        let released = try environment.releaseFreePages()
        #expect(released.byteCount < 1 << 20)
        for number: UInt64 in 0..<500 {
          let stored = try table.value(for: number, in: transaction)
          #expect(stored == value(number))
        }
      }
      #expect(try environment.releaseFreePages().byteCount >= 500 * 20_000)
    }
  }

  @Test("A reader in another process is seen, too")
  func otherProcess() async throws {
    let directory = FileManager.default.temporaryDirectory.appendingPathComponent("pages-\(UUID().uuidString)").path
    try FileManager.default.createDirectory(atPath: directory, withIntermediateDirectories: true)
    defer { try? FileManager.default.removeItem(atPath: directory) }
    let environment = try Environment.open(directory: directory, options: .init(mapByteCount: 64 << 20))
    let table = try environment.table("t", key: BigEndianUInt64.self, value: BytesCodec.self)
    try fill(environment, table)
    // The child's snapshot outlives it: its slot stays in the lock file until somebody clears it.
    await #expect(processExitsWith: .signal(SIGKILL)) { [directory = directory as String] in
      let environment = try Environment.open(directory: directory, options: .init(mapByteCount: 64 << 20))
      try environment.read { (_) throws(LMDBError) in _ = kill(getpid(), SIGKILL) }
    }
    try remove(environment, table) { _ in true }
    #expect(try environment.releaseFreePages().byteCount < 1 << 20)
    #expect(try environment.clearStaleReaders() == 1)
    #expect(try environment.releaseFreePages().byteCount >= 500 * 20_000)
  }

  @Test("Pages in use and free ones add up to the file's, unless the list of free pages is damaged")
  func lostPages() throws {
    try withEnvironment { environment, table, directory in
      try fill(environment, table)
      #expect(try environment.lostPageCount() == 0)
      try remove(environment, table) { $0 % 3 == 0 }
      #expect(try environment.lostPageCount() == 0)

      // A copy whose list's first entry says that it has one page only.
      let copy = directory + "-damaged"
      try FileManager.default.copyItem(atPath: directory, toPath: copy)
      defer { try? FileManager.default.removeItem(atPath: copy) }
      let path = copy + "/data.mdb"
      var bytes = try Data(contentsOf: URL(fileURLWithPath: path))
      func word(_ offset: Int) -> Int {
        bytes.withUnsafeBytes { $0.loadUnaligned(fromByteOffset: offset, as: Int.self) }
      }
      let pageByteCount = environment.pageByteCount
      // The newer of the two meta pages by its transaction, and the leaf that its free list begins and ends with: mdb.c. A value is a
      // count and the numbers of so many pages, in the leaf or on pages of its own.
      let meta = word(16 + 128) > word(pageByteCount + 16 + 128) ? 16 : pageByteCount + 16
      let leaf = word(meta + 64) * pageByteCount
      let nodeCount =
        bytes.withUnsafeBytes { Int($0.loadUnaligned(fromByteOffset: leaf + 12, as: UInt16.self)) - 16 } / 2
      var shortened = 0
      for index in 0..<nodeCount {
        let node = bytes.withUnsafeBytes {
          leaf + Int($0.loadUnaligned(fromByteOffset: leaf + 16 + 2 * index, as: UInt16.self))
        }
        let isApart = bytes[node + 4] & 1 != 0
        let count = isApart ? word(node + 16) * pageByteCount + 16 : node + 16
        guard word(count) > 100 else { continue }
        bytes.replaceSubrange(count..<(count + 8), with: withUnsafeBytes(of: 1) { Data($0) })
        shortened += 1
      }
      #expect(shortened > 0)
      try bytes.write(to: URL(fileURLWithPath: path))
      let damaged = try Environment.open(directory: copy, options: .init(mapByteCount: 64 << 20))
      _ = try damaged.table("t", key: BigEndianUInt64.self, value: BytesCodec.self)
      #expect(try damaged.lostPageCount() > 100)
    }
  }
}

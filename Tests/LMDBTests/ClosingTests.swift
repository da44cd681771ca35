import Foundation
import LMDB
import Synchronization
import Testing

@Suite("Closing an environment that still has references")
struct ClosingTests {
  @Test("Calls on a closed environment throw, and its directory can be reopened with another data file")
  func closing() throws {
    let fixture = try Fixture()
    let (environment, table) = (fixture.environment, fixture.table)
    try fixture.put(1...10)
    try environment.read { transaction throws(LMDBError) in
      #expect(try table.value(for: 3, in: transaction) != nil)
    }
    #expect(environment.isDataFile(ofDirectory: fixture.directory.path))
    #expect(environment.close())
    #expect(environment.close())
    #expect(throws: LMDBError.self) { try environment.read { _ throws(LMDBError) in } }
    #expect(throws: LMDBError.self) { try environment.write { _ throws(LMDBError) in } }
    #expect(throws: LMDBError.self) { try environment.synchronize() }
    #expect(throws: LMDBError.self) { try environment.clearStaleReaders() }
    #expect(throws: LMDBError.self) { try environment.reserveFileSpace(upToPage: 100) }
    #expect(throws: LMDBError.self) { try environment.setMapByteCount(2 << 20) }
    #expect(throws: LMDBError.self) { try environment.releaseFreePages() }
    #expect(environment.oldestReaderTransactionID() == .max)
    #expect(environment.information.mapByteCount == 0)
    try FileManager.default.moveItem(atPath: fixture.directory.dataFile, toPath: fixture.directory.path + "/aside")
    #expect(!environment.isDataFile(ofDirectory: fixture.directory.path))
    let reopened = try fixture.directory.open()
    #expect(reopened !== environment)
    let other = try reopened.table("table", key: BigEndianUInt64Codec.self, value: BytesCodec.self)
    try reopened.read { transaction throws(LMDBError) in
      #expect(try other.value(for: 3, in: transaction) == nil)
    }
    try reopened.write { transaction throws(LMDBError) in try other.put([1], for: 3, in: transaction) }
    #expect(environment.close())
    #expect(reopened.isDataFile(ofDirectory: fixture.directory.path))
  }

  @Test("Running transactions delay closing, and no other transaction can begin")
  func waiting() throws {
    let fixture = try Fixture()
    let environment = fixture.environment
    try fixture.put(1...10)
    try environment.write { transaction throws(LMDBError) in
      #expect(!closeOnThread(environment))
      try fixture.table.put([7], for: 3, in: transaction)
    }
    #expect(throws: LMDBError.self) { try environment.read { _ throws(LMDBError) in } }
    let other = try Fixture()
    try other.put(1...10)
    try other.environment.read { transaction throws(LMDBError) in
      #expect(!closeOnThread(other.environment))
      #expect(try other.table.value(for: 3, in: transaction) != nil)
    }
    #expect(throws: LMDBError.self) { try other.environment.read { _ throws(LMDBError) in } }
    #expect(other.environment.close())
    #expect(environment.close())
  }

  private final class Reads: Sendable {
    let count = Atomic<Int>(0)
    let endedThreadCount = Atomic<Int>(0)
  }

  private func closeOnThread(_ environment: LMDBEnvironment) -> Bool {
    let ended = Mutex<Bool?>(nil)
    Thread {
      let isClosed = environment.close()
      ended.withLock { $0 = isClosed }
    }.start()
    waitUntil { ended.withLock { $0 != nil } }
    return ended.withLock { $0 } ?? false
  }

  @Test("An environment that could not be closed completely is closed and opened again")
  func openedAgain() throws {
    let directory = TemporaryDirectory()
    let environment = try directory.open()
    try environment.read { (_) throws(LMDBError) in #expect(!environment.close()) }
    let reopened = try directory.open()
    #expect(reopened !== environment)
    try reopened.read { (_) throws(LMDBError) in }
  }

  @Test("Threads that read and write during closing get a correct value or an error")
  func closingDuringTransactions() throws {
    for _ in 0..<5 {
      let fixture = try Fixture(mapByteCount: 16 << 20)
      let (environment, table) = (fixture.environment, fixture.table)
      try fixture.put(1...10)
      let reads = Reads()
      let threads = (0..<4).map { number in
        Thread { [environment] in
          do throws(LMDBError) {
            while true {
              try environment.read { transaction throws(LMDBError) in
                guard try table.value(for: 3, in: transaction)?.count == 8 else { fatalError("a wrong value") }
              }
              if number == 0 {
                try environment.write { transaction throws(LMDBError) in
                  _ = try table.put([UInt8](repeating: 7, count: 8), for: 4, in: transaction)
                }
              }
              _ = environment.lastTransactionID
              reads.count.add(1, ordering: .relaxed)
            }
          } catch {
            if error.code != .panic { Issue.record("\(error)") }
          }
          reads.endedThreadCount.add(1, ordering: .releasing)
        }
      }
      for thread in threads { thread.start() }
      waitUntil { reads.count.load(ordering: .relaxed) >= 50 }
      while !environment.close() {}
      waitUntil { reads.endedThreadCount.load(ordering: .acquiring) == threads.count }
      _ = try fixture.directory.open()
    }
  }
}

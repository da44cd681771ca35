import CLMDB
import Foundation
import LMDB
import Testing

@Suite("The lock file")
struct LockFileTests {
  @Test("The positions of its parts follow from the size of a mutex")
  func layouts() {
    let positions = { (mutex: Int) -> [Int] in
      let layout = clmdb_make_lock_layout(mutex)
      return [layout.reader_count, layout.write_mutex, layout.readers]
    }
    // glibc's on x86-64 and on arm64.
    #expect(positions(40) == [56, 64, 128])
    #expect(positions(48) == [64, 128, 192])
  }

  /// The memory at which this process has mapped the file. Opening the file here would release LMDB's locks on it.
  private func mapped(_ directory: TemporaryDirectory) throws -> UnsafeRawPointer {
    let line = try #require(MappingReport.lines(ofFile: directory.path + "/lock.mdb").first)
    return try #require(UInt(line.prefix { $0 != "-" }, radix: 16).flatMap { UnsafeRawPointer(bitPattern: $0) })
  }

  @Test("Its parts are where the layout says, compared with what LMDB tells")
  func parts() throws {
    let fixture = try Fixture { $0.maximumReaders = 5 }
    let (environment, layout) = (fixture.environment, clmdb_make_lock_layout(MemoryLayout<pthread_mutex_t>.size))
    let file = try mapped(fixture.directory)
    let word = { (offset: Int) in file.load(fromByteOffset: offset, as: UInt32.self) }
    try fixture.put([1])
    try environment.read { (_) throws(LMDBError) in
      try fixture.put([2])
      try environment.read { (_) throws(LMDBError) in
        let readers = environment.readers()
        #expect(readers.count == 2 && Set(readers.map(\.transactionID)).count == 2)
        #expect(Int(word(layout.reader_count)) == environment.information.usedReaders)
        for (index, reader) in readers.enumerated() {
          let slot = layout.readers + 64 * index
          #expect(file.load(fromByteOffset: slot, as: UInt64.self) == reader.transactionID)
          #expect(Int32(bitPattern: word(slot + 8)) == reader.processID)
        }
      }
    }
    #expect(word(layout.write_mutex) == 0)
    try environment.write { (_) throws(LMDBError) in #expect(word(layout.write_mutex) != 0) }
    #expect(word(layout.write_mutex) == 0)
    var status = stat()
    #expect(stat(fixture.directory.path + "/lock.mdb", &status) == 0)
    #expect(Int(status.st_size) == layout.readers + 64 * environment.information.maximumReaders)
  }

  /// The transaction of a process when it is killed.
  enum Abandoned: String, CaseIterable, Codable, Sendable {
    case none, read, write
  }

  @Test("A transaction of a killed process is recorded until the next opening", arguments: Abandoned.allCases)
  func abandoned(_ transaction: Abandoned) async throws {
    let directory = TemporaryDirectory()
    let file = directory.path + "/lock.mdb"
    await #expect(processExitsWith: .signal(SIGKILL)) {
      [path = directory.path as String, transaction = transaction as Abandoned] in
      let environment = try LMDBEnvironment.open(directory: path, options: .init(mapByteCount: 1 << 20))
      // A slot that is in use no longer.
      try environment.read { _ throws(LMDBError) in }
      switch transaction {
      case .none: kill(getpid(), SIGKILL)
      case .read: try environment.read { _ throws(LMDBError) in kill(getpid(), SIGKILL) }
      case .write: try environment.write { _ throws(LMDBError) in kill(getpid(), SIGKILL) }
      }
    }
    #expect(AbandonedTransaction.isRecorded(inLockFile: file) == (transaction != .none))
    do { _ = try directory.open() }
    #expect(!AbandonedTransaction.isRecorded(inLockFile: file))
  }
}

import Foundation
import LMDB
import Testing

@Suite("Transactions")
struct TransactionTests {
  @Test("An error thrown in a write rolls it back and is rethrown")
  func abort() throws {
    let fixture = try Fixture()
    try fixture.put(1...3)
    let thrown = error { () throws(LMDBError) in
      try fixture.environment.write { transaction throws(LMDBError) in
        try fixture.table.removeAll(in: transaction)
        throw LMDBError(code: .problem, function: "test")
      }
    }
    #expect(thrown == LMDBError(code: .problem, function: "test"))
    #expect(try fixture.keys() == [1, 2, 3])
    // The write lock was released.
    try fixture.put([4])
    #expect(try fixture.keys() == [1, 2, 3, 4])
  }

  @Test("A read sees one snapshot, a nested read sees a newer one, and a read within a write sees the last commit")
  func snapshots() throws {
    let fixture = try Fixture()
    let (environment, table) = (fixture.environment, fixture.table)
    try fixture.put([1])
    func keys(in transaction: borrowing some Transaction & ~Copyable) throws(LMDBError) -> Int {
      try table.statistics(in: transaction).entryCount
    }
    try environment.read { outer throws(LMDBError) in
      #expect(try keys(in: outer) == 1)
      try environment.write { transaction throws(LMDBError) in
        try table.put([], for: 2, in: transaction)
        #expect(try keys(in: transaction) == 2)
        try environment.read { inner throws(LMDBError) in #expect(try keys(in: inner) == 1) }
      }
      #expect(try keys(in: outer) == 1)
      try environment.read { inner throws(LMDBError) in
        #expect(try keys(in: inner) == 2)
        #expect(inner.id == outer.id + 1)
      }
    }
  }

  @Test("A stale reader is cleared when its slot is needed, or on demand")
  func staleReaders() async throws {
    let fixture = try Fixture { $0.maximumReaders = 1 }
    let path = fixture.directory.path
    for isOnDemand in [true, false] {
      await #expect(processExitsWith: .signal(SIGKILL)) { [path = path as String] in
        let environment = try LMDBEnvironment.open(directory: path, options: .init(mapByteCount: 1 << 20))
        try environment.read { _ throws(LMDBError) in _ = kill(getpid(), SIGKILL) }
      }
      if isOnDemand {
        #expect(try fixture.environment.clearStaleReaders() == 1)
      } else {
        try fixture.environment.read { _ throws(LMDBError) in }
      }
    }
  }

  @Test("A writer that dies loses only its own transaction, and the next write succeeds")
  func deadWriter() async throws {
    let fixture = try Fixture()
    try fixture.put([1])
    let path = fixture.directory.path
    await #expect(processExitsWith: .signal(SIGKILL)) { [path = path as String] in
      let environment = try LMDBEnvironment.open(directory: path, options: .init(mapByteCount: 1 << 20))
      let table = try environment.table("table", key: BigEndianUInt64Codec.self, value: BytesCodec.self)
      try environment.write { transaction throws(LMDBError) in
        try table.put([2], for: 2, in: transaction)
        _ = kill(getpid(), SIGKILL)
      }
    }
    #expect(try fixture.keys() == [1])
    try fixture.put([3])
    #expect(try fixture.keys() == [1, 3])
  }

  @Test("MDB_MAP_FULL aborts the transaction without changes; reads and removals still work")
  func mapFull() throws {
    let fixture = try Fixture(mapByteCount: 128 << 10)
    try fixture.put(1...4, byteCount: 5_000)
    let failure = error { () throws(LMDBError) in
      try fixture.environment.write { transaction throws(LMDBError) in
        _ = try fixture.table.put(bytes(5, 200_000), for: 5, in: transaction)
      }
    }
    #expect(failure == LMDBError(code: .mapFull, function: "mdb_put"))
    #expect(try fixture.keys() == [1, 2, 3, 4])

    // The transaction fails even if the caller ignores the error.
    let atCommit = error { () throws(LMDBError) in
      try fixture.environment.write { transaction throws(LMDBError) in
        _ = error { () throws(LMDBError) in try fixture.table.put(bytes(5, 200_000), for: 5, in: transaction) }
        let next = error { () throws(LMDBError) in try fixture.table.put([], for: 6, in: transaction) }
        #expect(next == LMDBError(code: .badTransaction, function: "mdb_put"))
      }
    }
    #expect(atCommit == LMDBError(code: .badTransaction, function: "mdb_txn_commit"))

    try fixture.environment.write { transaction throws(LMDBError) in
      #expect(try fixture.table.remove(1, in: transaction))
    }
    #expect(try fixture.keys() == [2, 3, 4])
  }

  @Test("A file size limit fails the commit without a signal, and the environment stays usable")
  func fileSizeLimit() async {
    await #expect(processExitsWith: .success) {
      let fixture = try Fixture(mapByteCount: 8 << 20)
      try fixture.put([1])
      // The signal would end the process. Threads of the test library block it.
      signal(SIGXFSZ, SIG_DFL)
      var signals = sigset_t()
      sigemptyset(&signals)
      sigaddset(&signals, SIGXFSZ)
      pthread_sigmask(SIG_UNBLOCK, &signals, nil)
      let byteCount = try Data(contentsOf: URL(fileURLWithPath: fixture.directory.dataFile)).count
      // The first limit cuts a write, which liblmdb reports as EIO. At the second one, the file cannot grow at all.
      for (limitByteCount, code) in [(1 << 20, LMDBError.Code.inputOutput), (byteCount, .fileTooLarge)] {
        var limit = rlimit()
        getrlimit(__rlimit_resource_t(RLIMIT_FSIZE.rawValue), &limit)
        let before = limit
        limit.rlim_cur = rlim_t(limitByteCount)
        #expect(setrlimit(__rlimit_resource_t(RLIMIT_FSIZE.rawValue), &limit) == 0)
        let failure = error { () throws(LMDBError) in try fixture.put([2], byteCount: 4 << 20) }
        limit = before
        #expect(setrlimit(__rlimit_resource_t(RLIMIT_FSIZE.rawValue), &limit) == 0)
        #expect(failure == LMDBError(code: code, function: "mdb_txn_commit"))
        #expect(try fixture.keys() == [1])
        #expect(truncate(fixture.directory.dataFile, off_t(byteCount)) == 0)
      }
      try fixture.put([3])
      #expect(try fixture.keys() == [1, 3])
    }
  }
}

import Foundation
import LMDB
import Synchronization
import Testing

@Suite("Map size")
struct MapSizeTests {
  @Test("A larger map takes more, a smaller one never less than there is")
  func setting() throws {
    let fixture = try Fixture(mapByteCount: 64 << 10)
    #expect(error { () throws(LMDBError) in try fixture.put([1], byteCount: 100_000) }?.code == .mapFull)
    try fixture.environment.setMapByteCount((1 << 20) + 1)
    #expect(fixture.environment.information.mapByteCount == 1 << 20)
    try fixture.put([1], byteCount: 100_000)
    try fixture.environment.setMapByteCount(1)
    let used = (fixture.environment.information.lastPageNumber + 1) * fixture.environment.pageByteCount
    #expect(fixture.environment.information.mapByteCount == used)
    #expect(try fixture.keys() == [1])
  }

  @Test("A size without room in the address space is refused, and all is as before")
  func tooLarge() throws {
    let fixture = try Fixture()
    try fixture.put([1])
    let failure = error { () throws(LMDBError) in try fixture.environment.setMapByteCount(Int.max / 2) }
    #expect(failure == LMDBError(code: .outOfMemory, function: "mdb_env_set_mapsize"))
    #expect(fixture.environment.information.mapByteCount == 1 << 20)
    try fixture.put([2])
    #expect(try fixture.keys() == [1, 2])
  }

  @Test("The map moves while threads read, write, nest both and look at numbers")
  func whileReadersRun() throws {
    let fixture = try Fixture(mapByteCount: 8 << 20)
    let (environment, table) = (fixture.environment, fixture.table)
    try fixture.put(0..<50, byteCount: 3_000)
    let findings = Findings()
    let isDone = Atomic<Bool>(false)
    let rounds = Atomic<Int>(0)
    withExtendedLifetime(isDone) {
      // The atomics outlive the threads, which are joined below.
      nonisolated(unsafe) let body = { (index: Int) in
        while !isDone.load(ordering: .relaxed) {
          findings.check { () throws(LMDBError) in
            try environment.read { transaction throws(LMDBError) in
              let key = UInt64(index * 7 % 50)
              if try table.value(for: key, in: transaction) != bytes(key, 3_000) { findings.add("wrong bytes") }
              try environment.read { inner throws(LMDBError) in
                if try table.value(for: key, in: inner) != bytes(key, 3_000) { findings.add("wrong bytes within") }
              }
              if environment.lastTransactionID == 0 { findings.add("no commit") }
              if index == 0 {
                try environment.write { write throws(LMDBError) in
                  try table.put(bytes(key, 3_000), for: key, in: write)
                  try environment.read { inner throws(LMDBError) in _ = try table.contains(key, in: inner) }
                }
              }
            }
          }
          rounds.wrappingAdd(1, ordering: .relaxed)
        }
      }
      let threads = Threads()
      for index in 0..<3 { threads.start { body(index) } }
      let movers = Threads()
      for mover in 0..<2 {
        movers.start {
          for round in 0..<100 {
            findings.check { () throws(LMDBError) in
              try environment.setMapByteCount((8 + (round + mover) % 3) << 20)
            }
          }
        }
      }
      movers.join()
      isDone.store(true, ordering: .relaxed)
      threads.join()
    }
    #expect(findings.all == [])
    #expect(rounds.load(ordering: .relaxed) > 0)
    #expect(try fixture.keys().count == 50)
  }

  /// Makes another process enlarge the map of a directory, and the file beyond the map of this one.
  private func growInAnotherProcess(_ path: String) async {
    await #expect(processExitsWith: .success) { [path = path as String] in
      let environment = try Environment.open(directory: path, options: .init(mapByteCount: 8 << 20))
      let table = try environment.table("table", key: BigEndianUInt64.self, value: BytesCodec.self)
      try environment.write { transaction throws(LMDBError) in
        try table.put(bytes(9, 3 << 20), for: 9, in: transaction)
      }
    }
  }

  @Test("A map that another process made larger is taken over by the next read")
  func adoptedByRead() async throws {
    let fixture = try Fixture()
    try fixture.put([1])
    #expect(try fixture.keys() == [1])
    await growInAnotherProcess(fixture.directory.path)
    #expect(fixture.environment.information.mapByteCount == 1 << 20)
    #expect(try fixture.keys() == [1, 9])
    #expect(fixture.environment.information.mapByteCount == 8 << 20)
  }

  @Test("… by the first read of all")
  func adoptedByFirstRead() async throws {
    let fixture = try Fixture()
    await growInAnotherProcess(fixture.directory.path)
    #expect(try fixture.keys() == [9])
  }

  @Test("… and by the next write")
  func adoptedByWrite() async throws {
    let fixture = try Fixture()
    await growInAnotherProcess(fixture.directory.path)
    try fixture.put([2])
    #expect(try fixture.keys() == [2, 9])
  }

  @Test("Within a read, the map must stay: a further transaction is refused until it ends")
  func refusedWithinRead() async throws {
    let fixture = try Fixture()
    try fixture.put([1])
    let (isReading, hasGrown) = (Signal(), Signal())
    let findings = Findings()
    let threads = Threads()
    threads.start {
      findings.check { () throws(LMDBError) in
        try fixture.environment.read { _ throws(LMDBError) in
          isReading.send()
          hasGrown.wait()
          if error(of: { () throws(LMDBError) in try fixture.keys() })?.code != .mapResized { findings.add("read") }
          if error(of: { () throws(LMDBError) in try fixture.put([2]) })?.code != .mapResized { findings.add("write") }
        }
        if try fixture.keys() != [1, 9] { findings.add("keys") }
      }
    }
    isReading.wait()
    await growInAnotherProcess(fixture.directory.path)
    hasGrown.send()
    threads.join()
    #expect(findings.all == [])
  }

  //  writer                      mover                       reader
  //  ------                      -----                       ------
  //  write {
  //                              setMapByteCount: waits
  //                                                          reads, and looks at numbers
  //  }
  //                              returns
  // Issue 14, item 8.
  @Test("Reads go on while the map waits for a writer")
  func whileWriterRuns() async {
    await #expect(processExitsWith: .success) {
      // Ends the process if a read waits for the writer, which waits for the read.
      alarm(30)
      let fixture = try Fixture()
      let environment = fixture.environment
      try fixture.put([1])
      let (isWriting, isMoving, mayEnd) = (Signal(), Signal(), Signal())
      let findings = Findings()
      let threads = Threads()
      threads.start {
        findings.check { () throws(LMDBError) in
          try environment.write { _ throws(LMDBError) in
            isWriting.send()
            mayEnd.wait()
          }
        }
      }
      isWriting.wait()
      threads.start {
        isMoving.send()
        findings.check { () throws(LMDBError) in try environment.setMapByteCount(8 << 20) }
      }
      isMoving.wait()
      // Long enough for the other thread to get to where it waits, which cannot be seen.
      let end = Date() + 0.2
      while Date() < end {
        if try fixture.keys() != [1] { findings.add("keys") }
        if environment.information.mapByteCount != 1 << 20 { findings.add("moved within a write") }
      }
      mayEnd.send()
      threads.join()
      guard findings.all == [], environment.information.mapByteCount == 8 << 20 else { exit(2) }
    }
  }

  //  this process                another
  //  ------------                -------
  //                              makes map and file larger
  //                              write {
  //  write: waits for it
  //  read: MDB_MAP_RESIZED
  //                              }
  @Test("A larger map is taken over by reads that begin while another process writes")
  func adoptedWhileAnotherWrites() async throws {
    let fixture = try Fixture()
    try fixture.put([1])
    let path = fixture.directory.path
    for name in ["grown", "end"] { #expect(mkfifo(path + "/" + name, 0o600) == 0) }
    let findings = Findings()
    let threads = Threads()
    threads.start {
      close(open(path + "/grown", O_RDONLY))
      let (writer, isStarted) = (Threads(), Signal())
      writer.start {
        isStarted.send()
        findings.check { () throws(LMDBError) in try fixture.put([2]) }
      }
      isStarted.wait()
      // When the writer has got to where it waits cannot be seen. Before it has, a read takes the map over; after it has, a
      // read fails rather than wait.
      usleep(50_000)
      let end = Date() + 0.2
      while Date() < end {
        do throws(LMDBError) {
          if try fixture.keys() != [1, 9] { findings.add("keys") }
        } catch {
          if error.code != .mapResized { findings.add("\(error)") }
        }
      }
      close(open(path + "/end", O_WRONLY))
      writer.join()
    }
    await #expect(processExitsWith: .success) { [path = path as String] in
      alarm(30)
      let environment = try Environment.open(directory: path, options: .init(mapByteCount: 8 << 20))
      let table = try environment.table("table", key: BigEndianUInt64.self, value: BytesCodec.self)
      try environment.write { transaction throws(LMDBError) in
        try table.put(bytes(9, 3 << 20), for: 9, in: transaction)
      }
      try environment.write { _ throws(LMDBError) in
        close(open(path + "/grown", O_WRONLY))
        close(open(path + "/end", O_RDONLY))
      }
    }
    threads.join()
    #expect(findings.all == [])
    #expect(try fixture.keys() == [1, 2, 9])
  }
}

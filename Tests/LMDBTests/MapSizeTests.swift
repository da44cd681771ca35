import Foundation
import LMDB
import Synchronization
import Testing

@Suite("Map size")
struct MapSizeTests {
  @Test("A larger map holds more, and a smaller map never holds less than is in use")
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

  @Test("A size that does not fit in the address space fails and changes nothing")
  func tooLarge() throws {
    let fixture = try Fixture()
    try fixture.put([1])
    let failure = error { () throws(LMDBError) in try fixture.environment.setMapByteCount(Int.max / 2) }
    #expect(failure == LMDBError(code: .outOfMemory, function: "mdb_env_set_mapsize"))
    #expect(fixture.environment.information.mapByteCount == 1 << 20)
    try fixture.put([2])
    #expect(try fixture.keys() == [1, 2])
  }

  @Test("The map can move while threads read and write, nest both and query the environment")
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
          // Otherwise the writer takes the lock again before a mover wakes up.
          sched_yield()
        }
      }
      let threads = Threads()
      for index in 0..<3 { threads.start { body(index) } }
      let movers = Threads()
      for mover in 0..<2 {
        movers.start {
          for round in 0..<1000 {
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

  /// Makes another process enlarge the map of a directory and grow the file beyond this process's map.
  private func growInAnotherProcess(_ path: String) async {
    await #expect(processExitsWith: .success) { [path = path as String] in
      let environment = try LMDBEnvironment.open(directory: path, options: .init(mapByteCount: 8 << 20))
      let table = try environment.table("table", key: BigEndianUInt64Codec.self, value: BytesCodec.self)
      try environment.write { transaction throws(LMDBError) in
        try table.put(bytes(9, 3 << 20), for: 9, in: transaction)
      }
    }
  }

  @Test("The next read adopts the map size that another process set")
  func sizeAdoptedByRead() async throws {
    let fixture = try Fixture()
    try fixture.put([1])
    #expect(try fixture.keys() == [1])
    await growInAnotherProcess(fixture.directory.path)
    #expect(fixture.environment.information.mapByteCount == 1 << 20)
    #expect(try fixture.keys() == [1, 9])
    #expect(fixture.environment.information.mapByteCount == 8 << 20)
  }

  @Test("The first read of a process adopts the map size that another process set")
  func sizeAdoptedByFirstRead() async throws {
    let fixture = try Fixture()
    await growInAnotherProcess(fixture.directory.path)
    #expect(try fixture.keys() == [9])
  }

  @Test("The next write adopts the map size that another process set")
  func sizeAdoptedByWrite() async throws {
    let fixture = try Fixture()
    await growInAnotherProcess(fixture.directory.path)
    try fixture.put([2])
    #expect(try fixture.keys() == [2, 9])
  }

  @Test("Nested transactions fail with MDB_MAP_RESIZED while a read keeps the map from moving")
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
  //                                                          reads and queries the map size
  //  }
  //                              returns
  @Test("Reads succeed while a change of the map size waits for a writer")
  func whileWriterRuns() async {
    await #expect(processExitsWith: .success) {
      // End the process if a read and the writer wait for each other.
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
      // Read for long enough that the other thread starts waiting, which cannot be observed.
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
  //                              enlarges map and file
  //                              write {
  //  write: waits for it
  //  read: MDB_MAP_RESIZED
  //                              }
  @Test("Reads adopt the new map size while another process writes")
  func sizeAdoptedDuringWriteOfAnotherProcess() async throws {
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
      // Whether the writer waits yet cannot be observed. Until it waits, a read adopts the map size.
      // Afterwards, a read fails instead of waiting.
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
      let environment = try LMDBEnvironment.open(directory: path, options: .init(mapByteCount: 8 << 20))
      let table = try environment.table("table", key: BigEndianUInt64Codec.self, value: BytesCodec.self)
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

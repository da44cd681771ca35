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
          for round in 0..<200 {
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

  @Test("The next write adopts the map size that another process set")
  func sizeAdoptedByWrite() async throws {
    let fixture = try Fixture()
    await growInAnotherProcess(fixture.directory.path)
    try fixture.put([2])
    #expect(try fixture.keys() == [2, 9])
  }

  //  writer                      mover                       reader
  //  ------                      -----                       ------
  //  write {
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
      for _ in 0..<300 {
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

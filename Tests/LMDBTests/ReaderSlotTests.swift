import Foundation
import LMDB
import Testing

/// Tests of the lock file's reader slots, which are limited and shared by all processes.
@Suite("Reader slots")
struct ReaderSlotTests {
  @Test("A thread that finds no free slot waits until another thread ends its read")
  func waiting() throws {
    let fixture = try Fixture { $0.maximumReaders = 2 }
    let environment = fixture.environment
    let (areReading, isAsking) = (DispatchGroup(), Signal())
    let mayEnd = Signal()
    let findings = Findings()
    let holders = Threads()
    for _ in 0..<2 {
      areReading.enter()
      holders.start {
        findings.check { () throws(LMDBError) in
          try environment.read { _ throws(LMDBError) in
            areReading.leave()
            mayEnd.wait()
          }
        }
      }
    }
    areReading.wait()
    let third = Threads()
    third.start {
      isAsking.send()
      findings.check { () throws(LMDBError) in try environment.read { _ throws(LMDBError) in } }
    }
    isAsking.wait()
    mayEnd.send()
    third.join()
    mayEnd.send()
    holders.join()
    #expect(findings.all == [])
  }

  //  this process                another
  //  ------------                -------
  //  read {                      open
  //                              read: waits for the only slot
  //  }
  //  ends idle reads
  //                              read resumes
  @Test("A process that stops reading releases its slots to a process that waits for one")
  func releaseOfIdleSlots() async throws {
    let fixture = try Fixture { $0.maximumReaders = 1 }
    let environment = fixture.environment
    try fixture.put([1])
    #expect(try fixture.keys() == [1])
    let path = fixture.directory.path
    let asking = path + "/asking"
    #expect(mkfifo(asking, 0o600) == 0)
    let threads = Threads()
    threads.start {
      close(open(asking, O_RDONLY))
      // The first call marks free slots as idle. The second call ends those that are still idle.
      for _ in 0..<2 { environment.endIdleReads() }
    }
    await #expect(processExitsWith: .success) { [path = path as String, asking = asking as String] in
      let environment = try LMDBEnvironment.open(directory: path, options: .init(mapByteCount: 1 << 20))
      close(open(asking, O_WRONLY))
      try environment.read { _ throws(LMDBError) in }
    }
    threads.join()
    // This process gets a slot again after the other process has exited.
    #expect(try fixture.keys() == [1])
  }

  @Test("A process that has the directory for itself can change the number of slots")
  func number() throws {
    let directory = TemporaryDirectory()
    for count in [100, 5_000, 7] {
      let environment = try directory.open { $0.maximumReaders = count }
      #expect(environment.information.maximumReaders == count)
      try environment.read { _ throws(LMDBError) in }
    }
    #expect(try directory.open { $0.maximumReaders = nil }.information.maximumReaders == 7)
    var status = stat()
    #expect(stat(directory.path + "/lock.mdb", &status) == 0)
    #expect(status.st_blocks * 512 >= status.st_size)
  }
}

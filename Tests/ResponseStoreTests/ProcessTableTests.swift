import CacheActivity
import Foundation
import Glibc
import ResponseStore
import Synchronization
import Testing

@Suite("The processes of a directory", .endsFixtures)
struct ProcessTableTests {
  private func own(_ fixture: StoreFixture) -> ProcessStatistics? {
    fixture.store.processes.first { $0.processID == getpid() }
  }

  @Test("A process is in the table while it has the directory open, with its requests since then")
  func requests() throws {
    let fixture = try StoreFixture()
    let activity = fixture.store.activity
    for _ in 0..<3 { activity.countHit(activity.begin(isTimed: false), isStale: false, byteCount: 1) }
    activity.countRequest(.misses)
    let process = try #require(own(fixture))
    #expect(process.requestCount == 4 && process.hitCount == 3)
    #expect(!process.isSuspended)
    #expect(abs(try #require(process.openTime).timeIntervalSinceNow) < 600)
    // An inspection is not in the table, and sees those that are.
    fixture.close()
    let existing = try ResponseStore.open(directory: fixture.directory, options: .existing)
    #expect(existing.processes.isEmpty)
    existing.close()
    try fixture.open()
    // The directory's counts go on, and those of the process begin again.
    #expect(own(fixture)?.requestCount == 0)
    #expect(fixture.store.directoryStatistics?.requestCount == 4)
  }

  @Test("A thread with a snapshot is shown with its reader slot, and how far it is behind")
  func snapshots() throws {
    let fixture = try StoreFixture()
    fixture.store.store(fixture.response("http://a.example/"))
    fixture.drain()
    _ = fixture.store.withResponse(fixture.key("http://a.example/")) { _ in
      let process = own(fixture)
      #expect(process?.snapshotCount == 1 && process?.readerSlotCount == 1)
      #expect(process?.snapshotAge == 0)
    }
    #expect(own(fixture)?.snapshotCount == 0)
  }

  @Test("A killed process leaves the table, and the next process of its row counts from zero, and nothing is lost")
  func kill() async throws {
    let fixture = try StoreFixture()
    for _ in 0..<3 {
      await #expect(processExitsWith: .signal(SIGKILL)) { [directory = fixture.directory as String] in
        let store = try ResponseStore.open(directory: directory, options: quietOptions(capacity: 16 << 20))
        let activity = store.activity
        for _ in 0..<2 { activity.countHit(activity.begin(isTimed: false), isStale: false, byteCount: 1) }
        activity.countRequest(.misses)
        guard store.processes.count == 2, let own = store.processes.first(where: { $0.processID == getpid() }),
          own.hitCount == 2, own.requestCount == 3
        else { exit(1) }
        Glibc.kill(getpid(), SIGKILL)
      }
    }
    #expect(fixture.store.processes.map(\.processID) == [getpid()])
    #expect(own(fixture)?.requestCount == 0)
    let counts = try #require(fixture.store.directoryStatistics)
    #expect(counts.requests[.miss] == 3 && counts.hitCount == 6 && counts.hitByteCount == 6)
  }

  @Test("A suspended process is told from a running one")
  func suspension() throws {
    let process = Process()
    process.executableURL = URL(fileURLWithPath: "/bin/sleep")
    process.arguments = ["60"]
    try process.run()
    defer {
      Glibc.kill(process.processIdentifier, SIGKILL)
      process.waitUntilExit()
    }
    #expect(ProcessStatistics(processID: process.processIdentifier)?.isSuspended == false)
    Glibc.kill(process.processIdentifier, SIGSTOP)
    let deadline = ContinuousClock.now + .seconds(30)
    // The signal arrives soon.
    while ProcessStatistics(processID: process.processIdentifier)?.isSuspended != true, ContinuousClock.now < deadline {
      sched_yield()
    }
    #expect(ProcessStatistics(processID: process.processIdentifier)?.isSuspended == true)
    #expect(ProcessStatistics(processID: 0) == nil)
  }
}

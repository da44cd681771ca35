import Foundation
import Glibc
import LMDB
import ResponseStore
import Testing

/// A process that is suspended while it holds LMDB's write lock.
///
/// Create it before the process that calls ``suspend(_:)``.
struct SuspendedWriter: Codable, Sendable {
  let directory: String
  private var notePath: String { directory + ".suspended" }

  init(directory: String) {
    self.directory = directory
    mkfifo(notePath, 0o600)
  }

  func remove() { unlink(notePath) }

  /// Suspends the calling process in a write transaction; returns after the process is resumed.
  func suspend(_ environment: LMDBEnvironment) throws(LMDBError) {
    try environment.write { (_) throws(LMDBError) in
      var processID = getpid()
      let descriptor = open(notePath, O_WRONLY)
      write(descriptor, &processID, MemoryLayout.size(ofValue: processID))
      close(descriptor)
      raise(SIGSTOP)
    }
  }

  /// Waits until the process is suspended, runs `body`, and resumes the process.
  ///
  /// Resumes it after 30 seconds in any case, so that `body` ends if it waits for the process. Returns false then.
  func whileSuspended(_ body: () -> Void) -> Bool {
    var processID: pid_t = 0
    let descriptor = open(notePath, O_RDONLY)
    read(descriptor, &processID, MemoryLayout.size(ofValue: processID))
    close(descriptor)
    guard processID > 0 else { return false }
    let end = DispatchSemaphore(value: 0)
    let wasInTime = DispatchSemaphore(value: 0)
    Thread { [processID] in
      let isInTime = end.wait(timeout: .now() + 30) == .success
      kill(processID, SIGCONT)
      if isInTime { wasInTime.signal() }
    }.start()
    waitUntil { isSuspended(processID) || kill(processID, 0) != 0 }
    body()
    end.signal()
    return wasInTime.wait(timeout: .now() + 5) == .success
  }

  private func isSuspended(_ processID: pid_t) -> Bool {
    // A process that has ended is not suspended.
    guard let status = try? String(contentsOfFile: "/proc/\(processID)/stat", encoding: .utf8) else { return false }
    return status.split(separator: ")").last?.split(separator: " ").first == "T"
  }
}

@Suite("While another process is suspended with the write lock", .endsFixtures)
struct SuspendedWriterTests {
  private static let url = "http://a.example/"

  @Test("A raised capacity is pending: lookups continue, and calls that wait for the writer return in time")
  func raisedCapacity() async throws {
    let fixture = try StoreFixture(background: true) { $0.stallTimeout = .milliseconds(100) }
    fixture.store.store(fixture.response(Self.url))
    try fixture.flush()
    let writer = SuspendedWriter(directory: fixture.directory)
    defer { writer.remove() }
    let (store, key) = (fixture.store, fixture.key(Self.url))
    let findings = LogLines()
    async let parent: Void = onThread {
      let isInTime = writer.whileSuspended {
        store.store(childResponse("http://a.example/2"))
        waitUntil { store.isWriting }
        store.capacityByteCount = 64 << 20
        for _ in 0..<1000 where store.lookup(key) == nil { findings.append("a miss") }
        do throws(StoreError) {
          try store.flush()
          findings.append("flushed")
        } catch {
          if error.code != .busy { findings.append("\(error)") }
        }
        if store.statistics.entryCount != 1 { findings.append("entries") }
      }
      if !isInTime { findings.append("waited for the other process") }
    }
    await #expect(processExitsWith: .success) { [writer = writer as SuspendedWriter] in
      let environment = try LMDBEnvironment.open(
        directory: writer.directory + "/data-1", options: .init(mapByteCount: 16 << 20))
      try writer.suspend(environment)
    }
    await parent
    #expect(findings.all == [])
    try fixture.flush()
    fixture.setCapacity(64 << 20)
    #expect(fixture.store.capacityByteCount == 64 << 20)
    #expect(fixture.body("http://a.example/2") != nil)
  }

  @Test("Inspection waits for no other process, nor does a removal, which takes effect")
  func look() async throws {
    let fixture = try StoreFixture()
    for number in 0..<5 { fixture.store.store(fixture.response("http://a.example/\(number)")) }
    fixture.drain()
    fixture.close()
    let writer = SuspendedWriter(directory: fixture.directory)
    defer { writer.remove() }
    let findings = LogLines()
    async let parent: Void = onThread {
      let isInTime = writer.whileSuspended {
        do throws(StoreError) {
          let store = try ResponseStore.open(directory: writer.directory, options: .existing)
          var urls = store.entries().map(\.key.urlString)
          if urls.count != 5 || store.capacityByteCount != 16 << 20 { findings.append("\(urls)") }
          store.remove(.urlPrefix(URL(string: "http://a.example/3")!)!)
          urls = store.entries().map(\.key.urlString)
          if urls.count != 4 { findings.append("after the removal: \(urls)") }
          findings.append(contentsOf: store.checkInvariants())
          store.applyRemovals()
          store.close()
        } catch {
          findings.append("\(error)")
        }
      }
      if !isInTime { findings.append("waited for the other process") }
    }
    await #expect(processExitsWith: .success) { [writer = writer as SuspendedWriter] in
      let store = try ResponseStore.open(directory: writer.directory, options: quietOptions(capacity: 16 << 20))
      try writer.suspend(store.environment)
      store.close()
    }
    await parent
    #expect(findings.all == [])
    try fixture.open()
    #expect(fixture.body("http://a.example/3") == nil)
    #expect(fixture.body("http://a.example/4") != nil)
    fixture.drain()
    #expect(fixture.store.entryCount == 4)
  }
}

extension LogLines {
  func append(contentsOf lines: [String]) {
    for line in lines { append(line) }
  }
}

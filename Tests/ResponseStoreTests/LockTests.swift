import Foundation
import Glibc
import ResponseStore
import Testing

@Suite("Locks of a store directory", .endsFixtures)
struct LockTests {
  /// Locks a file while `body` runs, like a process that was suspended at that moment.
  private func withLocked<R>(_ path: String, _ body: () async throws -> R) async throws -> R {
    let descriptor = open(path, O_RDONLY | O_CLOEXEC)
    defer { close(descriptor) }
    #expect(flock(descriptor, LOCK_EX | LOCK_NB) == 0)
    return try await body()
  }

  enum Held: String, CaseIterable {
    /// By a process that is opening the store.
    case openLock = ""
    /// By a process in `mdb_env_open` or `mdb_env_close`.
    case directory = "/data-1"
  }

  @Test(
    "A directory that another process keeps locked does not block opening other directories", arguments: Held.allCases)
  func others(_ held: Held) async throws {
    let locked = try StoreFixture()
    locked.close()
    let fixture = try StoreFixture()
    fixture.store.store(fixture.response("http://a.example/"))
    fixture.drain()
    fixture.close()
    let directory = locked.directory
    let hasOpened = Monitor(false)
    let hasEnded = Monitor(false)
    try await withLocked(directory + held.rawValue) {
      Thread {
        // Throws after the lock was held for too long.
        try? ResponseStore.open(directory: directory, options: .init(capacityByteCount: 16 << 20)).close()
        hasEnded.update { $0 = true }
      }.start()
      // Opening is in progress once the directory is open in this process.
      waitUntil { hasFileOpen(directory) || hasEnded.withLock { $0 } }
      let other = fixture.directory
      Thread {
        try? ResponseStore.open(directory: other, options: quietOptions(capacity: 16 << 20)).close()
        hasOpened.update { $0 = true }
      }.start()
      // The locked open times out after five seconds; the other one has completed long before.
      waitUntil { hasOpened.withLock { $0 } || hasEnded.withLock { $0 } }
      #expect(hasOpened.withLock { $0 })
    }
    _ = hasEnded.wait { $0 ? true : nil }
    try fixture.open()
    #expect(fixture.body("http://a.example/") != nil)
  }

  private func hasFileOpen(_ path: String) -> Bool {
    ((try? FileManager.default.contentsOfDirectory(atPath: "/proc/self/fd")) ?? []).contains {
      (try? FileManager.default.destinationOfSymbolicLink(atPath: "/proc/self/fd/" + $0)) == path
    }
  }

  @Test("A forked child holds none of its parent's locks, so that failed data can be replaced while the child lives")
  func forkedChild() async throws {
    let fixture = try StoreFixture()
    fixture.store.store(fixture.response("http://a.example/"))
    fixture.drain()
    fixture.close()
    await #expect(processExitsWith: .success) { [directory = fixture.directory as String] in
      var store: ResponseStore? = try .open(directory: directory, options: quietOptions(capacity: 16 << 20))
      var ends: [CInt] = [-1, -1]
      guard pipe(&ends) == 0 else { exit(3) }
      let child = forkNow()
      if child == 0 {
        _ = write(ends[1], "x", 1)
        while true { pause() }
      }
      // `fork` returns to the parent before its handlers have run in the child.
      var byte: UInt8 = 0
      guard read(ends[0], &byte, 1) == 1 else { exit(4) }
      defer {
        kill(child, SIGKILL)
        waitpid(child, nil, 0)
      }
      for name in try FileManager.default.contentsOfDirectory(atPath: "/proc/\(child)/fd") {
        let path = try? FileManager.default.destinationOfSymbolicLink(atPath: "/proc/\(child)/fd/" + name)
        for locked in ["/users.lock", "", "/data-1/" + "LMDBURLCache.removals", "/data-1"]
        where path == directory + locked {
          kill(child, SIGKILL)
          exit(2)
        }
      }
      store?.fail()
      store?.close()
      store = nil
      let reopened = try ResponseStore.open(directory: directory, options: quietOptions(capacity: 16 << 20))
      reopened.store(childResponse("http://b.example/"))
      while reopened.writePending() {}
      reopened.close()
    }
    try fixture.open()
    #expect(fixture.body("http://a.example/") == nil)
    #expect(fixture.body("http://b.example/") != nil)
  }
}

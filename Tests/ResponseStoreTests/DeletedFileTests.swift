import CDiskFaults
import CacheActivity
import Foundation
import Glibc
import LMDB
import ResponseStore
import Synchronization
import Testing

/// A program that deletes old files has been in the directory.
@Suite("Deleted files", .endsFixtures)
struct DeletedFileTests {
  private static let url = "http://a.example/"

  /// The files of a directory in use, and whether the store can go on without them.
  enum Deleted: String, CaseIterable, Codable {
    case marker = "LMDBURLCache.store"
    case counters = "LMDBURLCache.counters"
    case index = "data-1/LMDBURLCache.index"
    case users = "users.lock"
    case lock = "data-1/lock.mdb"
    case removals = "data-1/LMDBURLCache.removals"
    case data = "data-1/data.mdb"
    case bothLocks = "users.lock data-1/lock.mdb"
    case usersAndData = "users.lock data-1/data.mdb"
    case allButData =
      "LMDBURLCache.store LMDBURLCache.counters users.lock data-1/lock.mdb data-1/LMDBURLCache.removals "
    case allFiles =
      "LMDBURLCache.store LMDBURLCache.counters users.lock data-1/lock.mdb data-1/LMDBURLCache.removals data-1/data.mdb"

    /// Whether the responses stay.
    var isHarmless: Bool { [.marker, .counters, .index].contains(self) }

    /// Whether the processes cannot share the lock of their users. The first one has to notice that.
    var concernsUsers: Bool { rawValue.contains("users.lock") }

    func delete(in directory: String) {
      for name in rawValue.split(separator: " ") { #expect(unlink(directory + "/" + name) == 0, "\(name)") }
    }
  }

  /// Opens the directory in another process, which stores a response and removes those of a host.
  private func useInOtherProcess(_ directory: String, exitCode: CInt = 0) async {
    await #expect(processExitsWith: .exitCode(exitCode)) { [directory = directory as String] in
      var options = quietOptions(capacity: 16 << 20)
      options.openTimeout = .seconds(20)
      do throws(StoreError) {
        let store = try ResponseStore.open(directory: directory, options: options)
        guard store.lookup(RequestKey(urlString: "http://removed.example/")!) == nil else { exit(2) }
        store.store(childResponse("http://child.example/"))
        while store.writePending() {}
        store.remove(.host("removed.example"))
        guard store.checkInvariants() == [] else { exit(3) }
        store.close()
      } catch {
        print(error)
        exit(4)
      }
    }
  }

  @Test(
    "After files were deleted while a process uses the store, another process opens it, and both agree",
    arguments: Deleted.allCases)
  func inUse(deleted: Deleted) async throws {
    let fixture = try StoreFixture(background: true) { $0.directoryCheckInterval = .zero }
    fixture.store.store(fixture.response(Self.url))
    try fixture.flush()
    deleted.delete(in: fixture.directory)
    // The first process has not noticed, and goes on.
    fixture.store.store(fixture.response("http://late.example/"))
    await useInOtherProcess(fixture.directory)
    if deleted.isHarmless {
      #expect(fixture.body(Self.url) != nil)
    } else {
      // A process notices at the latest when its eviction thread wakes up.
      #expect(waitUntil { fixture.store.hasFailed })
      #expect(fixture.body(Self.url) == nil)
      try fixture.reopen()
      #expect(fixture.body(Self.url) == nil)
      // The first process had files of this generation open while the other one opened the directory.
      #expect(!FileManager.default.fileExists(atPath: fixture.path("data-1")))
    }
    #expect(fixture.body("http://child.example/") != nil)
    fixture.store.store(fixture.response("http://removed.example/"))
    try fixture.flush()
    await useInOtherProcess(fixture.directory, exitCode: 2)
    #expect(FileManager.default.fileExists(atPath: fixture.path("LMDBURLCache.store")))
    fixture.store.remove(.everything)
    try fixture.flush()
    await useInOtherProcess(fixture.directory)
    #expect(fixture.body(Self.url) == nil)
  }

  @Test(
    "A removal in one process holds in the other after files were deleted between the two opens",
    arguments: Deleted.allCases)
  func removal(deleted: Deleted) async throws {
    let fixture = try StoreFixture(background: true) { $0.directoryCheckInterval = .zero }
    fixture.store.store(fixture.response("http://removed.example/"))
    try fixture.flush()
    deleted.delete(in: fixture.directory)
    // The next lookup in any process is a miss, although the files were deleted.
    fixture.store.remove(.host("removed.example"))
    await useInOtherProcess(fixture.directory)
    if fixture.store.hasFailed { try fixture.reopen() }
    #expect(fixture.body("http://removed.example/") == nil)
    #expect(fixture.body("http://child.example/") != nil)
  }

  @Test("A removal does not count as done if the lock file was deleted before the removal was logged")
  func removalMeanwhile() throws {
    let fixture = try StoreFixture()
    fixture.store.store(fixture.response("http://removed.example/"))
    fixture.drain()
    // The removal waits for the lock of the log until the file is deleted.
    let log = open(fixture.dataPath("LMDBURLCache.removals"), O_RDWR | O_CLOEXEC)
    defer { close(log) }
    #expect(flock(log, LOCK_EX) == 0)
    let isRemoving = Atomic(false)
    let number = Mutex<UInt64?>(0)
    let thread = Thread { [store = fixture.store] in
      isRemoving.store(true, ordering: .releasing)
      let result = store.removeDurably([Removal(.host("removed.example"))])
      number.withLock { $0 = result }
    }
    thread.start()
    waitUntil { isRemoving.load(ordering: .acquiring) }
    #expect(unlink(fixture.path("users.lock")) == 0)
    #expect(flock(log, LOCK_UN) == 0)
    waitUntil { thread.isFinished }
    // The caller repeats the removal in the reopened store.
    #expect(number.withLock { $0 } == nil)
    #expect(fixture.store.hasFailed)
    try fixture.reopen()
    #expect(fixture.body("http://removed.example/") == nil)
  }

  @Test("A process that opens a directory whose data.mdb was deleted in use logs that, and begins the next generation")
  func deletedData() async throws {
    let fixture = try StoreFixture(capacity: 4 << 20)
    fixture.store.store(fixture.response(Self.url))
    fixture.drain()
    unlink(fixture.dataPath("data.mdb"))
    await #expect(processExitsWith: .success) { [directory = fixture.directory as String] in
      let logged = LogLines()
      let store = try ResponseStore.open(directory: directory, options: quietOptions(log: logged))
      guard logged.all.contains(where: { $0.contains("data.mdb was deleted while it was in use") }) else { exit(2) }
      store.close()
    }
    #expect(fixture.store.hasFailed)
    try fixture.reopen()
  }

  /// Deletes the data file of the first generation.
  private static func deleteData(_ descriptor: CInt) {
    let path = (try? FileManager.default.destinationOfSymbolicLink(atPath: "/proc/self/fd/\(descriptor)")) ?? ""
    if path.hasSuffix("/data-1/data.mdb") { unlink(path) }
  }

  // In a child process, because the disk deletes files in the whole process.
  @Test("If data.mdb is deleted while a process opens it, the process begins the next generation")
  func deletedWhileOpening() async {
    await #expect(processExitsWith: .success) {
      try withPath { directory in
        let logged = LogLines()
        disk_faults_install(
          { descriptor in
            DeletedFileTests.deleteData(descriptor)
            return disk_faults_real_sync(descriptor)
          }, nil, nil)
        let store = try ResponseStore.open(directory: directory, options: quietOptions(log: logged))
        #expect(logged.all.last?.contains("data.mdb was deleted while it was opened") == true)
        #expect(store.isInPlace)
        store.close()
      }
    }
  }

  @Test("After files were deleted while no process used the store, it opens with its responses, or empty")
  func unused() throws {
    for deleted in Deleted.allCases {
      let fixture = try StoreFixture()
      fixture.store.store(fixture.response(Self.url))
      fixture.drain()
      fixture.close()
      deleted.delete(in: fixture.directory)
      try fixture.open()
      let keeps = deleted.isHarmless || [.users, .lock, .bothLocks].contains(deleted)
      #expect((fixture.body(Self.url) != nil) == keeps, "\(deleted)")
      fixture.store.store(fixture.response("http://b.example/"))
      fixture.drain()
      #expect(fixture.body("http://b.example/") != nil)
      #expect(FileManager.default.fileExists(atPath: fixture.path("LMDBURLCache.store")))
    }
  }

  @Test("While a process does not notice that users.lock was deleted, another one cannot open the directory")
  func unnoticed() async throws {
    let fixture = try StoreFixture()
    fixture.store.store(fixture.response(Self.url))
    fixture.drain()
    unlink(fixture.path("users.lock"))
    unlink(fixture.dataPath("lock.mdb"))
    for _ in 0..<2 {
      await #expect(processExitsWith: .success) { [directory = fixture.directory as String] in
        var options = quietOptions(capacity: 16 << 20)
        options.openTimeout = .milliseconds(20)
        for inspects in [false, true] {
          options.opensExistingOnly = inspects
          do throws(StoreError) {
            _ = try ResponseStore.open(directory: directory, options: options)
            exit(2)
          } catch {
            let isExpected = error.code == .busy || inspects && error.code == .unusableDirectory
            if !isExpected { exit(3) }
          }
        }
      }
    }
    #expect(fixture.body(Self.url) != nil)
    fixture.store.failIfDirectoryMoved()
    #expect(fixture.store.hasFailed)
    try fixture.reopen()
    #expect(fixture.body(Self.url) == nil)
  }

  @Test("A running process restores the marker, also in a directory that was opened before it was deleted")
  func marker() throws {
    let fixture = try StoreFixture { $0.directoryCheckInterval = .zero }
    unlink(fixture.path("LMDBURLCache.store"))
    fixture.store.maintain()
    #expect(FileManager.default.fileExists(atPath: fixture.path("LMDBURLCache.store")))
  }
}

import CDiskFaults
import Foundation
import Glibc
import HTTPCaching
import LMDB
import ResponseStore
import Testing

@Suite("Failed stores", .endsFixtures)
struct StoreFailureTests {
  static let url = "http://a.example/"

  /// Returns a store with one response and then corrupt counters.
  private func damagedFixture(
    background: Bool = false, configure: (inout ResponseStore.Options) -> Void = { _ in }
  ) throws -> StoreFixture {
    let fixture = try StoreFixture(background: background, configure: configure)
    fixture.store.store(fixture.response(Self.url))
    try fixture.store.flush()
    try fixture.store.putMetadata([UInt8](repeating: 0xFF, count: 64), named: "counters")
    return fixture
  }

  private func mode(_ path: String) -> mode_t? {
    var status = stat()
    return lstat(path, &status) == 0 ? status.st_mode & 0o7777 : nil
  }

  private func expectPrivate(_ directory: String) throws {
    #expect(mode(directory) == 0o700)
    for name in try FileManager.default.subpathsOfDirectory(atPath: directory) {
      #expect(
        mode(directory + "/" + name) == (name.hasPrefix("data-") && !name.contains("/") ? 0o700 : 0o600), "\(name)")
    }
  }

  @Test("After an error of the disk in a meta page, the data stays, and removals before it is opened again count")
  func metaPage() async throws {
    let fixture = try StoreFixture()
    fixture.close()
    await #expect(processExitsWith: .success) { [directory = fixture.directory as String] in
      let (kept, removed) = (childResponse("http://a.example/kept"), childResponse("http://a.example/removed"))
      let store = try ResponseStore.open(directory: directory, options: quietOptions(capacity: 16 << 20))
      for response in [kept, removed] { store.store(response) }
      try store.flush()
      MetaPages.failWrites(toFile: directory + "/data-1/data.mdb")
      store.store(childResponse("http://a.example/lost"))
      store.writePending()
      guard store.lookup(kept.key) == nil, store.hasFailed else { exit(2) }
      store.remove(removed.key)
      disk_faults_install(nil, nil, nil)
      let reopened = try ResponseStore.open(directory: directory, options: quietOptions(capacity: 16 << 20))
      guard reopened.lookup(kept.key) != nil else { exit(3) }
      guard reopened.lookup(removed.key) == nil else { exit(4) }
      while reopened.writePending() {}
      guard reopened.entryCount == 1 else { exit(5) }
      reopened.close()
    }
    try fixture.open()
  }

  @Test(
    "The directory can be reopened while the failed store is in use and misses lookups", arguments: [false, true])
  func reopening(background: Bool) throws {
    let fixture = try damagedFixture(background: background)
    let old = fixture.store
    var token = old.removalToken
    #expect(!old.hasFailed)
    #expect(old.entryCount == 0)
    #expect(old.hasFailed)
    #expect(old.lookup(fixture.key(Self.url)) == nil)
    try fixture.open()
    let reopened = fixture.store
    #expect(reopened !== old)
    #expect(reopened.lookup(fixture.key(Self.url)) == nil)
    reopened.store(fixture.response(Self.url))
    try reopened.flush()
    #expect(reopened.lookup(fixture.key(Self.url)) != nil)
    #expect(old.lookup(fixture.key(Self.url)) == nil)
    old.store(fixture.response("http://b.example/"))
    old.remove(.everything)
    #expect(throws: StoreError.self) { try old.flush() }
    #expect(old.entryCount == 0)
    #expect(!old.writePending())
    #expect(!old.maintain())
    #expect(reopened.lookup(fixture.key(Self.url)) != nil)
    // Counts continue. Removals in the new store are not compared with copies from the old one.
    #expect(reopened.statistics.writes == 2)
    #expect(
      reopened.effectOfRemovals(
        on: fixture.key(Self.url), storedAt: fixture.clock.now, fields: { [:] }, since: &token) == .removed)
    old.close()
    #expect(reopened.lookup(fixture.key(Self.url)) != nil)
    try expectPrivate(fixture.directory)
    #expect(fixture.logged.all.count { $0.contains("The store failed") } == 1)
  }

  @Test("After a failure any in-flight response may be removed, because other processes cannot record removals")
  func inFlight() throws {
    let fixture = try damagedFixture()
    let store = fixture.store
    var token = store.removalToken
    #expect(store.possibleEffectOfRemovals(on: fixture.key(Self.url), since: &token) == .none)
    store.fail()
    #expect(store.possibleEffectOfRemovals(on: fixture.key(Self.url), since: &token) == .removed)
    try fixture.open()
  }

  @Test("A response stays readable while it is borrowed from failed data, and the next generation is in use meanwhile")
  func borrowed() throws {
    let fixture = try StoreFixture()
    fixture.store.store(fixture.response(Self.url))
    fixture.drain()
    let old = fixture.store
    old.withResponse(fixture.key(Self.url)) { response in
      old.fail()
      #expect(throws: Never.self) { try fixture.open() }
      #expect(fixture.store !== old)
      #expect(fixture.body(Self.url) == nil)
      fixture.store.store(fixture.response(Self.url))
      fixture.drain()
      #expect(fixture.body(Self.url) != nil)
      response.forEachPiece { #expect($0.byteCount == 4) }
    }
    #expect(old.lookup(fixture.key(Self.url)) == nil)
    #expect(FileManager.default.fileExists(atPath: fixture.path("data-2/data.mdb")))
    #expect(!FileManager.default.fileExists(atPath: fixture.path("data-1")))
  }

  @Test("Two processes use the next generation at once, while one of them still reads the failed data")
  func twoProcesses() async throws {
    let fixture = try StoreFixture(background: true)
    fixture.store.store(fixture.response(Self.url))
    try fixture.store.flush()
    let directory = fixture.directory
    let signal = directory + ".signal"
    defer { unlink(signal) }
    async let child: Void = {
      await #expect(processExitsWith: .success) { [directory = directory as String, signal = signal as String] in
        let old = try ResponseStore.open(directory: directory, options: quietOptions(capacity: 16 << 20))
        let mine = childResponse("http://child.example/")
        let code: CInt? = old.withResponse(childResponse(Self.url).key) { response in
          close(Glibc.open(signal, O_CREAT | O_WRONLY, 0o600))
          while access(signal, F_OK) == 0 { usleep(1000) }
          guard old.hasFailed, old.lookup(mine.key) == nil else { return 2 }
          guard let new = try? ResponseStore.open(directory: directory, options: quietOptions(capacity: 16 << 20))
          else {
            return 3
          }
          guard new.lookup(childResponse("http://parent.example/").key) != nil else { return 4 }
          new.store(mine)
          while new.writePending() {}
          guard new.lookup(mine.key) != nil else { return 5 }
          response.forEachPiece { _ in }
          new.close()
          return 0
        }
        exit(code ?? 1)
      }
    }()
    while access(signal, F_OK) != 0 { try await Task.sleep(for: .milliseconds(2)) }
    fixture.store.fail()
    try fixture.open()
    fixture.store.store(fixture.response("http://parent.example/"))
    try fixture.store.flush()
    #expect(fixture.body("http://parent.example/") != nil)
    unlink(signal)
    await child
    #expect(fixture.body("http://child.example/") != nil)
  }

  @Test("A permit of an ended generation stores nothing into the next one, and its removals are not compared")
  func permits() throws {
    let fixture = try StoreFixture()
    fixture.store.remove(fixture.key(Self.url))
    var token = fixture.store.removalToken
    fixture.store.fail()
    fixture.close()
    try fixture.open()
    for _ in 0..<2 { fixture.store.remove(fixture.key("http://other.example/")) }
    fixture.store.store(fixture.response(Self.url), askedAt: token)
    #expect(fixture.body(Self.url) == nil)
    #expect(fixture.store.possibleEffectOfRemovals(on: fixture.key(Self.url), since: &token) == .removed)
  }

  @Test("A removal fails in a store whose generation another process has ended, so that it is repeated in the next one")
  func removalInEndedGeneration() async throws {
    let fixture = try StoreFixture()
    let old = fixture.store
    await #expect(processExitsWith: .success) { [directory = fixture.directory as String] in
      let store = try ResponseStore.open(directory: directory, options: quietOptions(capacity: 16 << 20))
      store.fail()
      let next = try ResponseStore.open(directory: directory, options: quietOptions(capacity: 16 << 20))
      next.store(childResponse(Self.url))
      while next.writePending() {}
      next.close()
    }
    #expect(throws: StoreError.self) { try old.removeOrThrow(Removal(.everything)) }
    #expect(old.hasFailed)
    try fixture.open()
    #expect(fixture.body(Self.url) != nil)
    try fixture.store.removeOrThrow(Removal(.everything))
    #expect(fixture.body(Self.url) == nil)
  }

  @Test("A process that was killed while it created a generation leaves a directory in which the next one creates it")
  func unfinishedGeneration() throws {
    let fixture = try StoreFixture()
    fixture.store.fail()
    // Another process, which has not noticed, keeps the directory in use.
    let other = Glibc.open(fixture.path("users.lock"), O_RDWR | O_CLOEXEC)
    defer { close(other) }
    #expect(flock(other, LOCK_SH | LOCK_NB) == 0)
    fixture.close()
    #expect(mkdir(fixture.path("data-2"), 0o700) == 0)
    try Data(count: 5000).write(to: URL(fileURLWithPath: fixture.path("data-2/data.mdb")))
    try fixture.open()
    fixture.store.store(fixture.response(Self.url))
    fixture.drain()
    #expect(fixture.body(Self.url) != nil)
    #expect(FileManager.default.fileExists(atPath: fixture.path("data-3/data.mdb")))
    #expect(!FileManager.default.fileExists(atPath: fixture.path("data-2")))
  }

  enum Move: String, CaseIterable {
    case directoryDeleted, directoryRenamed, dataDeleted, dataReplaced
  }

  @Test(
    "A store fails if its directory or data file is moved or replaced, and reopening recreates it",
    arguments: Move.allCases)
  func moved(move: Move) throws {
    let fixture = try StoreFixture { $0.directoryCheckInterval = .zero }
    fixture.store.store(fixture.response(Self.url))
    fixture.drain()
    let old = fixture.store
    let elsewhere = fixture.directory + ".elsewhere"
    let manager = FileManager.default
    // The directory may not exist.
    defer { try? manager.removeItem(atPath: elsewhere) }
    switch move {
    case .directoryDeleted: try manager.removeItem(atPath: fixture.directory)
    case .directoryRenamed: try manager.moveItem(atPath: fixture.directory, toPath: elsewhere)
    case .dataDeleted: try manager.removeItem(atPath: fixture.dataPath("data.mdb"))
    case .dataReplaced: try Data().write(to: URL(fileURLWithPath: fixture.dataPath("data.mdb")), options: .atomic)
    }
    #expect(!old.hasFailed)
    #expect(!old.maintain())
    #expect(old.hasFailed)
    #expect(old.lookup(fixture.key(Self.url)) == nil)
    try fixture.open()
    #expect(fixture.store !== old)
    #expect(fixture.body(Self.url) == nil)
    fixture.store.store(fixture.response(Self.url))
    fixture.drain()
    try fixture.reopen()
    #expect(fixture.body(Self.url) != nil)
    if move != .dataReplaced { try expectPrivate(fixture.directory) }
    guard move == .directoryRenamed else { return }
    // The moved directory is still a valid store.
    let there = try ResponseStore.open(directory: elsewhere, options: fixture.options)
    #expect(there.lookup(fixture.key(Self.url)) != nil)
    #expect(there.checkInvariants() == [])
    there.close()
  }

  @Test("A removal and a commit detect a deleted directory, too", arguments: [true, false])
  func noticed(byRemoval: Bool) throws {
    let fixture = try StoreFixture()
    fixture.store.store(fixture.response(Self.url))
    fixture.drain()
    try FileManager.default.removeItem(atPath: fixture.directory)
    if byRemoval {
      fixture.store.remove(fixture.key("http://b.example/"))
    } else {
      fixture.store.store(fixture.response("http://b.example/"))
      #expect(!fixture.store.hasFailed)
      fixture.store.writePending()
    }
    #expect(fixture.store.hasFailed)
    try fixture.open()
    #expect(fixture.body(Self.url) == nil)
  }

  @Test("Corrupt counters found at open recreate the store at once")
  func openingDamaged() throws {
    let fixture = try damagedFixture()
    try fixture.reopen()
    #expect(fixture.body(Self.url) == nil)
    fixture.store.store(fixture.response(Self.url))
    fixture.drain()
    #expect(fixture.body(Self.url) != nil)
    #expect(fixture.logged.all.contains { $0.contains("The store starts empty") })
  }

  @Test("Failing a store does not affect a new store in the same directory")
  func otherInPlace() throws {
    let fixture = try StoreFixture()
    let old = fixture.store
    try FileManager.default.removeItem(atPath: fixture.directory)
    try fixture.open()
    #expect(fixture.store !== old)
    fixture.store.store(fixture.response(Self.url))
    fixture.drain()
    old.fail()
    #expect(fixture.body(Self.url) != nil)
    try fixture.reopen()
    #expect(fixture.body(Self.url) != nil)
  }
}

/// Errors of writes to the meta pages of a data file.
private enum MetaPages {
  nonisolated(unsafe) private static var inode: ino_t = 0

  static func failWrites(toFile path: String) {
    var status = stat()
    guard stat(path, &status) == 0 else { exit(9) }
    inode = status.st_ino
    disk_faults_install(
      nil,
      { descriptor, bytes, count, offset in
        var status = stat()
        guard offset < 2 * off_t(getpagesize()), fstat(descriptor, &status) == 0, status.st_ino == MetaPages.inode
        else {
          return disk_faults_real_write(descriptor, bytes, count, offset)
        }
        errno = EIO
        return -1
      }, nil)
  }
}

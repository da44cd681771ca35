import Foundation
import Glibc
import HTTPCaching
import LMDB
import Testing

@testable import ResponseStore

@Suite("A store that was given up")
struct GivingUpTests {
  static let url = "http://a.example/"

  /// A store with one response, whose numbers are then damaged.
  private func damagedFixture(
    background: Bool = false, configure: (inout ResponseStore.Options) -> Void = { _ in }
  ) throws -> StoreFixture {
    let fixture = try StoreFixture(background: background, configure: configure)
    fixture.store.store(fixture.response(Self.url))
    try fixture.store.flush()
    let file = fixture.store.file
    try file.write { (transaction) throws(LMDBError) in
      _ = try file.meta.put([UInt8](repeating: 0xFF, count: 64), for: MetaKey.counters, in: transaction)
    }
    return fixture
  }

  private func mode(_ path: String) -> mode_t? {
    var status = stat()
    return lstat(path, &status) == 0 ? status.st_mode & 0o7777 : nil
  }

  private func expectPrivate(_ directory: String) throws {
    #expect(mode(directory) == 0o700)
    for name in try FileManager.default.contentsOfDirectory(atPath: directory) {
      #expect(mode(directory + "/" + name) == 0o600, "\(name)")
    }
  }

  @Test("The directory is opened anew while the old store is held, which goes on missing", arguments: [false, true])
  func openingAnew(background: Bool) throws {
    let fixture = try damagedFixture(background: background)
    defer { fixture.finish() }
    let old = fixture.store
    var snapshot = old.snapshot
    #expect(!old.isGivenUp)
    #expect(old.entryCount == 0)
    #expect(old.isGivenUp)
    #expect(old.lookup(fixture.key(Self.url)) == nil)
    try fixture.open()
    let anew = fixture.store
    #expect(anew !== old)
    #expect(anew.lookup(fixture.key(Self.url)) == nil)
    anew.store(fixture.response(Self.url))
    try anew.flush()
    #expect(anew.lookup(fixture.key(Self.url)) != nil)
    #expect(old.lookup(fixture.key(Self.url)) == nil)
    old.store(fixture.response("http://b.example/"))
    old.removeAll()
    #expect(throws: StoreError.self) { try old.flush() }
    #expect(old.entryCount == 0)
    #expect(!old.writePending())
    #expect(!old.maintain())
    #expect(anew.lookup(fixture.key(Self.url)) != nil)
    // Counts go on; what was copied from the old store is not compared with removals in the new one.
    #expect(anew.statistics.stores == 2)
    #expect(anew.wasRemoved(fixture.key(Self.url), storedAt: fixture.clock.now, groups: { [] }, since: &snapshot))
    old.close()
    #expect(anew.lookup(fixture.key(Self.url)) != nil)
    try expectPrivate(fixture.directory)
    #expect(fixture.logged.all.count { $0.contains("is given up") } == 1)
  }

  @Test("What is under way may be removed once the data was given up: others cannot note what they remove")
  func underWay() throws {
    let fixture = try damagedFixture()
    defer { fixture.finish() }
    let store = fixture.store
    var token = store.snapshot
    #expect(!store.mayBeRemoved(URL(string: Self.url), partition: "", since: &token))
    store.condemn("a test said so")
    #expect(store.mayBeRemoved(URL(string: Self.url), partition: "", since: &token))
    try fixture.open()
  }

  @Test("As long as another process has not let go of the data, it is not begun anew")
  func others() throws {
    let fixture = try damagedFixture()
    defer { fixture.finish() }
    let other = Glibc.open(fixture.path("users.lock"), O_RDWR | O_CLOEXEC)
    #expect(flock(other, LOCK_SH | LOCK_NB) == 0)
    #expect(fixture.store.entryCount == 0)
    #expect(throws: StoreError.self) { try fixture.store.openAnew(options: fixture.options) }
    #expect(!fixture.store.mayHaveSuccessor)
    close(other)
    let anew = try fixture.store.openAnew(options: fixture.options)
    #expect(fixture.store.mayHaveSuccessor)
    #expect(try fixture.store.openAnew(options: fixture.options) === anew)
    #expect(anew.entryCount == 0)
    anew.store(fixture.response(Self.url))
    anew.close()
    anew.close()
    try fixture.open()
    #expect(fixture.body(Self.url) != nil)
  }

  @Test("A response that is lent out keeps the data open; the next try succeeds")
  func lent() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    fixture.store.store(fixture.response(Self.url))
    fixture.drain()
    let old = fixture.store
    old.withResponse(fixture.key(Self.url)) { response in
      old.condemn("as a test wants it")
      #expect(throws: StoreError.self) { try old.openAnew(options: fixture.options) }
      response.forEachPiece { #expect($0.byteCount == 4) }
    }
    try fixture.open()
    #expect(fixture.store !== old)
    #expect(fixture.body(Self.url) == nil)
  }

  @Test("Threads let go of the data by themselves, where that is wanted")
  func lettingGo() throws {
    let fixture = try damagedFixture(background: true) { $0.letsGoWhenGivenUp = true }
    defer { fixture.finish() }
    #expect(fixture.store.entryCount == 0)
    let users = Glibc.open(fixture.path("users.lock"), O_RDWR | O_CLOEXEC)
    defer { close(users) }
    while flock(users, LOCK_EX | LOCK_NB) != 0 { usleep(1000) }
    flock(users, LOCK_UN)
    #expect(fixture.store.lookup(fixture.key(Self.url)) == nil)
    try fixture.open()
    fixture.store.store(fixture.response(Self.url))
    #expect(fixture.body(Self.url) != nil)
  }

  enum Move: String, CaseIterable {
    case directoryDeleted, directoryRenamed, dataDeleted, dataReplaced
  }

  @Test("A directory or data that is moved away is noticed, and made anew", arguments: Move.allCases)
  func moved(move: Move) throws {
    let fixture = try StoreFixture { $0.directoryCheckInterval = .zero }
    defer { fixture.finish() }
    fixture.store.store(fixture.response(Self.url))
    fixture.drain()
    let old = fixture.store
    let elsewhere = fixture.directory + ".elsewhere"
    let manager = FileManager.default
    // It may not have been made.
    defer { try? manager.removeItem(atPath: elsewhere) }
    switch move {
    case .directoryDeleted: try manager.removeItem(atPath: fixture.directory)
    case .directoryRenamed: try manager.moveItem(atPath: fixture.directory, toPath: elsewhere)
    case .dataDeleted: try manager.removeItem(atPath: fixture.path("data.mdb"))
    case .dataReplaced: try Data().write(to: URL(fileURLWithPath: fixture.path("data.mdb")), options: .atomic)
    }
    #expect(!old.isGivenUp)
    #expect(!old.maintain())
    #expect(old.isGivenUp)
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
    // What was moved is good where it is.
    let there = try ResponseStore.open(directory: elsewhere, options: fixture.options)
    #expect(there.lookup(fixture.key(Self.url)) != nil)
    #expect(there.checkInvariants() == [])
    there.close()
  }

  @Test("A removal and a commit notice it too", arguments: [true, false])
  func noticed(byRemoval: Bool) throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    fixture.store.store(fixture.response(Self.url))
    fixture.drain()
    try FileManager.default.removeItem(atPath: fixture.directory)
    if byRemoval {
      fixture.store.remove(fixture.key("http://b.example/"))
    } else {
      fixture.store.store(fixture.response("http://b.example/"))
      #expect(!fixture.store.isGivenUp)
      fixture.store.writePending()
    }
    #expect(fixture.store.isGivenUp)
    try fixture.open()
    #expect(fixture.body(Self.url) == nil)
  }

  @Test("Numbers that are found damaged while the store is opened begin it anew at once")
  func openingDamaged() throws {
    let fixture = try damagedFixture()
    defer { fixture.finish() }
    try fixture.reopen()
    #expect(fixture.body(Self.url) == nil)
    fixture.store.store(fixture.response(Self.url))
    fixture.drain()
    #expect(fixture.body(Self.url) != nil)
    #expect(fixture.logged.all.contains { $0.contains("A new store is begun") })
  }

  @Test("Giving up does not touch another store in the same place")
  func otherInPlace() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    let old = fixture.store
    try FileManager.default.removeItem(atPath: fixture.directory)
    try fixture.open()
    #expect(fixture.store !== old)
    fixture.store.store(fixture.response(Self.url))
    fixture.drain()
    old.condemn("as a test wants it")
    #expect(fixture.body(Self.url) != nil)
    try fixture.reopen()
    #expect(fixture.body(Self.url) != nil)
  }
}

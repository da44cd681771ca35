import Foundation
import Glibc
import HTTPCaching
import LMDB
import ResponseStore
import Testing

@Suite("Flush on a failing disk", .endsFixtures)
struct FlushTests {
  /// Calls `body` with a store that has one durable response, on a disk whose syncs can fail.
  private func withStore(
    background: Bool = false, _ body: (StoreFixture, FailingDisk) throws -> Void
  ) throws {
    let fixture = try StoreFixture(background: background)
    fixture.store.store(fixture.response(url(0)))
    try fixture.store.flush()
    let disk = try FailingDisk(path: fixture.dataPath("data.mdb"))
    defer { disk.remove() }
    try body(fixture, disk)
  }

  private func url(_ number: Int) -> String { "http://a.example/\(number)" }

  @Test("A flush reports an earlier dropped write once, and the next flush succeeds")
  func dropped() throws {
    try withStore { fixture, disk in
      let store = fixture.store
      disk.failNextSyncs(1)
      store.store(fixture.response(url(1)))
      fixture.drain()
      #expect(disk.failuresToCome == 0)
      #expect(fixture.body(url(1)) == nil && store.statistics.droppedWrites == 1)
      #expect { try store.flush() } throws: { ($0 as? StoreError)?.code == .storage }
      try store.flush()
      store.store(fixture.response(url(2)))
      try store.flush()
      #expect(fixture.body(url(0)) != nil && fixture.body(url(2)) != nil)
    }
  }

  // MARK: Syncs that lost a meta page

  @Test("Flushed responses survive a power failure, also after a failed sync that lost earlier pages")
  func lostMetaPage() throws {
    try withStore { fixture, disk in
      let store = fixture.store
      store.store(fixture.response(url(1)))
      // The meta page of this commit is synced with the next commit, which fails.
      fixture.drain()
      store.store(fixture.response(url(2)))
      disk.failNextSyncs(1)
      fixture.drain()
      #expect(fixture.body(url(1)) != nil && fixture.body(url(2)) == nil)
      #expect(throws: StoreError.self) { try store.flush() }
      try store.flush()
      try expectSafe(disk, fixture, [0, 1])
    }
  }

  @Test("Commits after a failed sync overwrite no page that recovery after a power failure needs")
  func overwrites() throws {
    try withStore { fixture, disk in
      let store = fixture.store
      func storeAll(_ round: Int) {
        for number in 0..<20 {
          store.store(fixture.response(url(number), body: pseudorandomData(3000, seed: UInt64(round * 20 + number))))
        }
        fixture.drain()
      }
      for round in 0..<4 { storeAll(round) }
      disk.keepImages()
      disk.failNextSyncs(1)
      for round in 4..<12 { storeAll(round) }
      #expect(disk.images.count >= 8)
      var emptyCount = 0
      for image in disk.images {
        try withImage(image, fixture) { store in
          #expect(store.checkInvariants() == [])
          // After the failure the older responses are deleted, because the newer ones could not replace them.
          guard store.entryCount > 0 else { return emptyCount += 1 }
          for number in 0..<20 {
            let body = store.lookup(fixture.key(url(number)))?.body
            let right = (0..<12).map { pseudorandomData(3000, seed: UInt64($0 * 20 + number)) }
            // A corrupt response counts as a miss.
            #expect(body.map { right.contains($0) } == true, "\(number)")
          }
        }
      }
      #expect(emptyCount <= 1)
    }
  }

  /// Simulates a power failure and expects to find these responses.
  private func expectSafe(
    _ disk: FailingDisk, _ fixture: StoreFixture, _ numbers: [Int], sourceLocation: SourceLocation = #_sourceLocation
  ) throws {
    try withImage(disk.safeBytes, fixture) { store in
      for number in numbers {
        #expect(store.lookup(fixture.key(url(number))) != nil, "\(number)", sourceLocation: sourceLocation)
      }
      #expect(store.checkInvariants() == [], sourceLocation: sourceLocation)
    }
  }

  /// Opens a store on a copy of the directory with `bytes` as its data file.
  private func withImage(_ bytes: [UInt8], _ fixture: StoreFixture, _ body: (ResponseStore) throws -> Void) throws {
    let copy = fixture.directory + ".copy"
    try FileManager.default.copyItem(atPath: fixture.directory, toPath: copy)
    defer { try? FileManager.default.removeItem(atPath: copy) }
    for name in ["data-1/lock.mdb", "users.lock"] { unlink(copy + "/" + name) }
    try Data(bytes).write(to: URL(fileURLWithPath: copy + "/data-1/data.mdb"))
    chmod(copy + "/data-1/data.mdb", 0o600)
    let store = try ResponseStore.open(directory: copy, options: fixture.options)
    defer { store.close() }
    try body(store)
  }
}

import Foundation
import HTTPCaching
import Testing

@testable import ResponseStore

/// What a lookup finds after a response could not be written in the place of an older one.
@Suite("A write that fails")
struct FailedWriteTests {
  private static let url = "http://a.example/"

  /// A store whose first response is safe, on a disk whose syncs can fail.
  private func withStore(
    background: Bool = false, _ body: (StoreFixture, FailingDisk) throws -> Void
  ) throws {
    let fixture = try StoreFixture(background: background)
    defer { fixture.finish() }
    fixture.store.store(fixture.response(Self.url, body: Data("first".utf8)))
    try fixture.store.flush()
    let disk = try FailingDisk(path: fixture.path("data.mdb"))
    defer { disk.remove() }
    try body(fixture, disk)
  }

  private func write(_ text: String, _ fixture: StoreFixture, byteCount: Int = 0) {
    fixture.store.store(fixture.response(Self.url, body: Data(text.utf8) + Data(count: byteCount)))
    fixture.store.writePending()
  }

  // Issue 14, item 2.
  @Test("The older response does not come back, and is deleted once the disk works", arguments: [0, 1 << 20])
  func deletedLater(byteCount: Int) throws {
    try withStore { fixture, disk in
      disk.failNextSyncs(3)
      write("second", fixture, byteCount: byteCount)
      #expect(fixture.store.statistics.droppedStores == 1)
      #expect(fixture.body(Self.url) == nil)
      // Fails again, and is no reason to go on at once.
      for _ in 0..<2 { #expect(!fixture.store.writePending()) }
      #expect(disk.failuresToCome == 0)
      #expect(fixture.body(Self.url) == nil)
      #expect(throws: StoreError.self) { try fixture.store.flush() }
      #expect(fixture.body(Self.url) == nil && fixture.store.entryCount == 0)
      try fixture.store.flush()
      #expect(fixture.store.staging.isEmpty && fixture.store.statistics.queuedByteCount == 0)
    }
  }

  @Test("A newer response takes its place, before the disk works and after", arguments: [false, true])
  func newer(isStoredFirst: Bool) throws {
    try withStore { fixture, disk in
      disk.failNextSyncs(isStoredFirst ? 2 : 1)
      write("second", fixture)
      if isStoredFirst { write("third", fixture) }
      #expect(fixture.body(Self.url) == nil && disk.failuresToCome == 0)
      write("fourth", fixture)
      #expect(fixture.body(Self.url) == Data("fourth".utf8))
      fixture.drain()
      #expect(fixture.body(Self.url) == Data("fourth".utf8) && fixture.store.entryCount == 1)
    }
  }

  @Test("A newer response that waits already is found, and nothing is deleted behind it")
  func newerWaits() throws {
    try withStore { fixture, disk in
      let other = fixture.response("http://b.example/", body: Data(count: 2000))
      fixture.store.store(fixture.response(Self.url, body: Data("second".utf8)))
      let batch = fixture.store.queue.withLock { $0.takeStores(byteLimit: .max, countLimit: .max) }
      fixture.store.store(fixture.response(Self.url, body: Data("third".utf8)))
      fixture.store.store(other)
      disk.failNextSyncs(1)
      #expect(!fixture.store.carryOut(.init(stores: batch), byteLimit: .max))
      fixture.store.discardWhatStays(behind: batch)
      fixture.store.staging.remove(batch)
      var written = batch
      fixture.store.queue.update { $0.finish(&written, byteCount: batch.reduce(0) { $0 + $1.byteCount }) }
      #expect(fixture.body(Self.url) == Data("third".utf8))
      fixture.drain()
      #expect(fixture.body(Self.url) == Data("third".utf8) && fixture.store.entryCount == 2)
    }
  }

  @Test("Where nothing older is stored, the note to delete it goes with the next commit")
  func nothingOlder() throws {
    try withStore { fixture, disk in
      disk.failNextSyncs(1)
      fixture.store.store(fixture.response("http://b.example/"))
      fixture.store.writePending()
      #expect(fixture.body("http://b.example/") == nil)
      fixture.drain()
      #expect(fixture.store.staging.isEmpty && fixture.store.statistics.queuedByteCount == 0)
      #expect(fixture.body(Self.url) == Data("first".utf8) && fixture.store.entryCount == 1)
    }
  }

  // Issue 14, item 2.
  @Test("An older response that is on disk and not in the index does not come back")
  func notInIndex() throws {
    try withStore { fixture, disk in
      let index = try #require(fixture.store.file.index.current)
      let tag = IndexEntry.tag(of: fixture.store.file.keyDigest(of: fixture.key(Self.url).bytes))
      let slot = try #require((0..<index.allSlotCount).first { IndexEntry.tag(inFacts: index.facts($0)) == tag })
      let entry = index.entry(in: slot)
      index.remove(tag: tag, rowID: entry.rowID)
      disk.failNextSyncs(1)
      write("second", fixture)
      #expect(index.insert(entry))
      #expect(fixture.body(Self.url) == nil)
      fixture.drain()
      #expect(fixture.body(Self.url) == nil && fixture.store.entryCount == 0)
    }
  }

  @Test("The writer tries again by itself, and at once for a flush")
  func background() throws {
    try withStore(background: true) { fixture, disk in
      disk.failNextSyncs(2)
      fixture.store.store(fixture.response(Self.url, body: Data("second".utf8)))
      #expect(throws: StoreError.self) { try fixture.store.flush() }
      #expect(fixture.body(Self.url) == nil)
      // The second failure may be that of a flush's own sync, which it tells.
      for _ in 0..<2 { try? fixture.store.flush() }
      try fixture.store.flush()
      #expect(disk.failuresToCome == 0)
      #expect(fixture.body(Self.url) == nil && fixture.store.entryCount == 0)
      fixture.store.store(fixture.response(Self.url, body: Data("third".utf8)))
      try fixture.store.flush()
      #expect(fixture.body(Self.url) == Data("third".utf8))
    }
  }
}

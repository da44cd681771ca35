import Foundation
import HTTPCaching
import Testing

@testable import ResponseStore

/// Lookups after the write of a newer response has failed.
@Suite("Failed writes")
struct FailedWriteTests {
  private static let url = "http://a.example/"

  /// Calls `body` with a store whose first response is durable, on a disk whose syncs can fail.
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

  @Test(
    "After a failed write the older response is not found, and is deleted when the disk works again",
    arguments: [0, 1 << 20])
  func deletedLater(byteCount: Int) throws {
    try withStore { fixture, disk in
      disk.failNextSyncs(3)
      write("second", fixture, byteCount: byteCount)
      #expect(fixture.store.statistics.droppedWrites == 1)
      #expect(fixture.body(Self.url) == nil)
      // The deletion fails again; the writer does not repeat it at once.
      for _ in 0..<2 { #expect(!fixture.store.writePending()) }
      #expect(disk.failuresToCome == 0)
      #expect(fixture.body(Self.url) == nil)
      #expect(throws: StoreError.self) { try fixture.store.flush() }
      #expect(fixture.body(Self.url) == nil && fixture.store.entryCount == 0)
      try fixture.store.flush()
      #expect(fixture.store.context.pendingWrites.isEmpty && fixture.store.statistics.queuedByteCount == 0)
    }
  }

  @Test("If removals cannot be applied, the large response that is written next is kept")
  func largeAfterRemoval() throws {
    try withStore { fixture, disk in
      let body = pseudorandomData(3 << 20, seed: 1)
      fixture.store.store(fixture.response("http://b.example/", body: body))
      disk.failNextSyncs(2)
      fixture.store.remove(fixture.key("http://c.example/"))
      #expect(disk.failuresToCome == 0)
      try fixture.store.flush()
      #expect(fixture.body("http://b.example/") == body)
      #expect(fixture.store.statistics.droppedWrites == 0)
    }
  }

  @Test("If the disk fails while the index grows, no response is evicted, and the index grows for the next ones")
  func indexGrowth() throws {
    let fixture = try StoreFixture(capacity: 256 << 20, background: true)
    defer { fixture.finish() }
    func store(_ numbers: Range<Int>) {
      for number in numbers {
        fixture.store.store(fixture.response("http://a.example/\(number)", body: Data(count: 300)))
      }
    }
    store(0..<2000)
    try fixture.store.flush()
    let disk = try FailingDisk(path: fixture.path("data.mdb"))
    defer { disk.remove() }
    // Those of the removal, of its repetition, and of the growth.
    disk.failNextSyncs(3)
    fixture.store.remove(fixture.key("http://b.example/"))
    store(2000..<3000)
    try fixture.store.flush()
    #expect(disk.failuresToCome == 0)
    #expect(fixture.store.statistics.evictions == 0 && fixture.store.entryCount == 3000)
  }

  @Test("A removal whose sync fails is synced again, and is durable then")
  func removalLog() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    fixture.store.store(fixture.response(Self.url))
    try fixture.store.flush()
    let disk = try FailingDisk(path: fixture.path(RemovalLog.name))
    defer { disk.remove() }
    disk.failNextSyncs(2)
    let number = try #require(fixture.store.remover.remove(.everything))
    #expect(disk.failuresToCome == 0 && !fixture.store.hasFailed && fixture.body(Self.url) == nil)
    let offset =
      RemovalLog.headerByteCount + Int(number) % fixture.store.context.removalLog.frameCount * RemovalFrame.byteCount
    let frame = disk.safeBytes[offset...].prefix(RemovalFrame.byteCount)
    #expect(frame.withUnsafeBytes { RemovalFrame.number(in: $0) } == number)
  }

  @Test(
    "After a failed write a newer response replaces the older one, before and after the disk works again",
    arguments: [false, true])
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

  @Test("After a failed write a newer pending write is found and is not deleted")
  func newerWaits() throws {
    try withStore { fixture, disk in
      let other = fixture.response("http://b.example/", body: Data(count: 2000))
      fixture.store.store(fixture.response(Self.url, body: Data("second".utf8)))
      let batch = fixture.store.context.queue.withLock { $0.takeWrites(byteLimit: .max, countLimit: .max) }
      fixture.store.store(fixture.response(Self.url, body: Data("third".utf8)))
      fixture.store.store(other)
      disk.failNextSyncs(1)
      #expect(!fixture.store.writer.process(.init(writes: batch), byteLimit: .max))
      fixture.store.context.pendingWrites.remove(batch)
      var written = batch
      fixture.store.context.queue.update { $0.finish(&written, byteCount: batch.reduce(0) { $0 + $1.byteCount }) }
      #expect(fixture.body(Self.url) == Data("third".utf8))
      fixture.drain()
      #expect(fixture.body(Self.url) == Data("third".utf8) && fixture.store.entryCount == 2)
    }
  }

  @Test("If nothing older is stored, the pending deletion ends with the next commit")
  func nothingOlder() throws {
    try withStore { fixture, disk in
      disk.failNextSyncs(1)
      fixture.store.store(fixture.response("http://b.example/"))
      fixture.store.writePending()
      #expect(fixture.body("http://b.example/") == nil)
      fixture.drain()
      #expect(fixture.store.context.pendingWrites.isEmpty && fixture.store.statistics.queuedByteCount == 0)
      #expect(fixture.body(Self.url) == Data("first".utf8) && fixture.store.entryCount == 1)
    }
  }

  @Test("After a failed write an older response that the index lacks is not found")
  func notInIndex() throws {
    try withStore { fixture, disk in
      let index = try #require(fixture.store.context.database.index.current)
      let tag = IndexEntry.tag(of: fixture.store.context.database.keyDigest(of: fixture.key(Self.url).bytes))
      let cell = try #require((0..<index.allCellCount).first { IndexEntry.tag(inTagWord: index.tagWord($0)) == tag })
      let entry = index.entry(in: cell)
      index.remove(tag: tag, rowID: entry.rowID)
      disk.failNextSyncs(1)
      write("second", fixture)
      #expect(index.insert(entry))
      #expect(fixture.body(Self.url) == nil)
      fixture.drain()
      #expect(fixture.body(Self.url) == nil && fixture.store.entryCount == 0)
    }
  }

  @Test("The writer repeats a failed deletion by itself, and at once for a flush")
  func background() throws {
    try withStore(background: true) { fixture, disk in
      disk.failNextSyncs(2)
      fixture.store.store(fixture.response(Self.url, body: Data("second".utf8)))
      #expect(throws: StoreError.self) { try fixture.store.flush() }
      #expect(fixture.body(Self.url) == nil)
      // The second failure may be that of a flush's own sync, and that flush throws.
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

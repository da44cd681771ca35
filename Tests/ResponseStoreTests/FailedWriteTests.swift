import Foundation
import HTTPCaching
import ResponseStore
import Testing

/// Lookups after the write of a newer response has failed.
@Suite("Failed writes", .endsFixtures)
struct FailedWriteTests {
  private static let url = "http://a.example/"

  /// Calls `body` with a store whose first response is durable, on a disk whose syncs can fail.
  private func withStore(
    background: Bool = false, _ body: (StoreFixture, FailingDisk) throws -> Void
  ) throws {
    let fixture = try StoreFixture(background: background)
    fixture.store.store(fixture.response(Self.url, body: Data("first".utf8)))
    try fixture.store.flush()
    let disk = try FailingDisk(path: fixture.dataPath("data.mdb"))
    defer { disk.remove() }
    try body(fixture, disk)
  }

  private func write(_ text: String, _ fixture: StoreFixture, byteCount: Int = 0) {
    fixture.store.store(fixture.response(Self.url, body: Data(text.utf8) + Data(count: byteCount)))
    fixture.store.writePending()
  }

  @Test(
    "The older response of a write that is not stored is deleted with any size of the queue",
    arguments: [.min, -1, 0, 1, .max])
  func queueSize(byteCount: Int) throws {
    let fixture = try StoreFixture { $0.queueByteCount = byteCount }
    let response = fixture.response(Self.url)
    fixture.store.store(response)
    fixture.drain()
    #expect(fixture.body(Self.url) != nil)
    fixture.store.discard(response.response, for: response.key, by: nil)
    fixture.drain()
    #expect(fixture.body(Self.url) == nil)
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
      #expect(!fixture.store.hasPendingWrites && fixture.store.statistics.queuedByteCount == 0)
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

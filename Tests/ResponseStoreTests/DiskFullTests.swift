import CacheModel
import Foundation
import Glibc
import HTTPCaching
import ResponseStore
import Testing

/// A small file system in memory.
private struct SmallDisk: Codable, Sendable {
  let path: String

  /// Returns nil if this process has no permission to mount file systems.
  init?(byteCount: Int) {
    path = FileManager.default.temporaryDirectory.appendingPathComponent("disk-\(UUID().uuidString)").path
    guard mkdir(path, 0o700) == 0 else { return nil }
    guard mount("tmpfs", path, "tmpfs", 0, "size=\(byteCount)") == 0 else {
      rmdir(path)
      return nil
    }
  }

  static let isPermitted: Bool = {
    guard let disk = SmallDisk(byteCount: 1 << 20) else { return false }
    disk.remove()
    return true
  }()

  func remove() {
    umount2(path, 2)
    rmdir(path)
  }

  /// Fills the disk except for `byteCount` bytes.
  func fill(leaving byteCount: Int = 0) {
    let descriptor = open(path + "/filler", O_WRONLY | O_CREAT | O_APPEND, 0o600)
    defer { close(descriptor) }
    let block = [UInt8](repeating: 1, count: 4096)
    while write(descriptor, block, block.count) == block.count {}
    var status = stat()
    guard byteCount > 0, fstat(descriptor, &status) == 0 else { return }
    ftruncate(descriptor, status.st_size - off_t(byteCount))
  }

  func freeSpace() {
    unlink(path + "/filler")
  }
}

@Suite(
  "Full disk", .endsFixtures, .enabled(if: SmallDisk.isPermitted, "this process may not mount a file system of its own")
)
struct DiskFullTests {
  private func withStore(_ body: (SmallDisk, StoreFixture) throws -> Void) throws {
    let disk = try #require(SmallDisk(byteCount: 12 << 20))
    FixtureScope.atEnd { disk.remove() }
    let fixture = try StoreFixture(capacity: 8 << 20, directory: disk.path + "/cache")
    for number in 0..<50 {
      fixture.store.store(fixture.response("http://a.example/\(number)", body: body10000(number)))
    }
    fixture.drain()
    try body(disk, fixture)
    disk.freeSpace()
  }

  private func body10000(_ number: Int) -> Data { pseudorandomData(10_000, seed: UInt64(number)) }

  @Test("On a full disk reads continue and writes are dropped and counted, until space is available")
  func stores() throws {
    try withStore { disk, fixture in
      disk.fill()
      let before = fixture.store.statistics
      for number in 100..<200 {
        fixture.store.store(fixture.response("http://a.example/\(number)", body: body10000(number)))
        fixture.store.writePending()
      }
      #expect(fixture.store.statistics.droppedWrites > before.droppedWrites)
      #expect(
        fixture.store.statistics.droppedWrites + fixture.store.statistics.writes
          == before.droppedWrites + before.writes + 100)
      for number in 0..<50 { #expect(fixture.body("http://a.example/\(number)") == body10000(number)) }
      #expect(fixture.logged.all.count == 1)
      disk.freeSpace()
      fixture.store.store(fixture.response("http://a.example/x", body: pseudorandomData(500_000, seed: 1)))
      fixture.drain()
      #expect(fixture.body("http://a.example/x") == pseudorandomData(500_000, seed: 1))
    }
  }

  @Test("A removal takes effect on a full disk, and also after reopening", arguments: [false, true])
  func removal(isReopened: Bool) throws {
    try withStore { disk, fixture in
      disk.fill()
      fixture.store.remove(.urlPrefix(URL(string: "http://a.example/1")!)!)
      for round in 0..<2 {
        for number in 0..<50 {
          let isRemoved = "\(number)".hasPrefix("1")
          #expect((fixture.body("http://a.example/\(number)") == nil) == isRemoved, "\(number) in round \(round)")
        }
        if isReopened, round == 0 { try fixture.reopen() }
      }
      fixture.store.remove(.everything)
      for number in 0..<50 { #expect(fixture.body("http://a.example/\(number)") == nil) }
    }
  }

  @Test("More removals than the log holds take effect on a full disk, one by one, and the rest stays readable")
  func manyRemovals() throws {
    try withStore { disk, fixture in
      let count = 4 * fixture.store.removalFrameCount
      for number in 0..<count {
        fixture.store.store(fixture.response("http://b.example/\(number)", body: pseudorandomData(300, seed: 1)))
      }
      fixture.drain()
      disk.fill()
      for number in 0..<count {
        fixture.store.remove(RequestKey(urlString: "http://b.example/\(number)")!)
        #expect(fixture.body("http://b.example/\(number)") == nil)
        fixture.store.store(fixture.response("http://c.example/\(number)", body: body10000(number)))
      }
      fixture.store.remove(.host("b.example"))
      for number in 0..<50 { #expect(fixture.body("http://a.example/\(number)") == body10000(number)) }
      #expect(!fixture.store.hasFailed)
    }
  }

  @Test("A store opens on a full disk, also with another capacity, and its responses are readable", arguments: [8, 4])
  func opening(capacityMebibyteCount: Int) throws {
    try withStore { disk, fixture in
      disk.fill()
      fixture.options.capacityByteCount = capacityMebibyteCount << 20
      try fixture.reopen()
      for number in 0..<50 { #expect(fixture.body("http://a.example/\(number)") == body10000(number)) }
    }
  }

  @Test("On a full disk, more concurrent lookups than ever before do not crash the process")
  func readers() async throws {
    let disk = try #require(SmallDisk(byteCount: 12 << 20))
    defer { disk.remove() }
    // A mapped page of the lock file without a disk block would cause SIGBUS. The first page has slots for 62 readers.
    await #expect(processExitsWith: .success) { [disk = disk as SmallDisk] in
      let store = try ResponseStore.open(directory: disk.path + "/cache", options: quietOptions(capacity: 8 << 20))
      store.store(childResponse("http://a.example/"))
      while store.writePending() {}
      disk.fill()
      let (areReading, mayEnd) = (DispatchGroup(), DispatchSemaphore(value: 0))
      for _ in 0..<200 {
        areReading.enter()
        Thread {
          _ = store.withResponse(RequestKey(urlString: "http://a.example/")!) { _ in
            areReading.leave()
            mayEnd.wait()
          }
        }.start()
      }
      areReading.wait()
      guard store.lookup(RequestKey(urlString: "http://a.example/")!) != nil else { exit(2) }
      for _ in 0..<200 { mayEnd.signal() }
      store.close()
    }
  }

  @Test("Opening a store throws if the disk has no space for the files that it maps")
  func noSpaceToOpen() throws {
    let disk = try #require(SmallDisk(byteCount: 4 << 20))
    FixtureScope.atEnd { disk.remove() }
    disk.fill(leaving: 40 << 10)
    #expect {
      _ = try ResponseStore.open(directory: disk.path + "/cache", options: quietOptions(capacity: 8 << 20))
    } throws: {
      guard let error = $0 as? StoreError else { return false }
      return error.code == .storage && error.reason.contains("full")
    }
    disk.freeSpace()
    let fixture = try StoreFixture(capacity: 2 << 20, directory: disk.path + "/cache")
    fixture.store.store(fixture.response("http://a.example/"))
  }
}

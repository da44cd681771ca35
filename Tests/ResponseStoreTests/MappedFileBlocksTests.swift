import CacheModel
import Foundation
import Glibc
import LMDB
import ResponseStore
import SystemFiles
import Testing

/// On a full disk, a write to a mapped page that needs another block would end the process with `SIGBUS`.
@Suite("Blocks of mapped files on a full disk", .endsFixtures)
struct MappedFileBlocksTests {
  @Test("ext4: no signal ends a process", .enabled(if: TestFileSystem.Kind.ext4.isUsable, "ext4 cannot be mounted"))
  func ext4() async throws { try await check(.ext4) }

  @Test("XFS: no signal ends a process", .enabled(if: TestFileSystem.Kind.xfs.isUsable, "XFS cannot be mounted"))
  func xfs() async throws { try await check(.xfs) }

  @Test(
    "Btrfs: no signal ends a process",
    .enabled(if: TestFileSystem.Kind.btrfs.isUsable, "Btrfs of Linux 6.17 or later cannot be mounted"))
  func btrfs() async throws { try await check(.btrfs) }

  @Test("tmpfs: no signal ends a process", .enabled(if: TestFileSystem.Kind.tmpfs.isUsable, "tmpfs cannot be mounted"))
  func tmpfs() async throws { try await check(.tmpfs) }

  /// Uses a new directory, one that was copied, and the copy, each while the disk is full.
  private func check(_ kind: TestFileSystem.Kind) async throws {
    let disk = try #require(TestFileSystem(kind))
    defer { disk.remove() }
    let (original, copy) = (disk.path + "/original", disk.path + "/copy")
    try #require(disk.makeDirectory(original))
    await #expect(processExitsWith: .success, "A new directory") {
      [disk = disk as TestFileSystem, original = original as String] in
      try use(original, on: disk)
    }
    disk.freeSpace()
    try #require(disk.copy(original, to: copy))
    disk.synchronize()
    await #expect(processExitsWith: .success, "A directory that is opened while the disk is full") {
      [disk = disk as TestFileSystem, original = original as String] in
      disk.fill()
      do {
        try use(original, on: disk, isFull: true)
      } catch let error as StoreError {
        guard error.reason.contains("space") || error.reason.contains("full") else { throw error }
      }
    }
    disk.freeSpace()
    for directory in [original, copy] {
      await #expect(processExitsWith: .success, "\(directory)") {
        [disk = disk as TestFileSystem, directory = directory as String] in
        try use(directory, on: disk)
      }
      disk.freeSpace()
      try await FixtureScope.run {
        let fixture = try StoreFixture(capacity: 8 << 20, directory: directory)
        for number in 1..<50 { #expect(fixture.body("http://a.example/\(number)") != nil) }
        #expect(fixture.body("http://a.example/0") == nil)
        #expect(fixture.logged.all == [])
      }
    }
  }
}

/// Stores, fills the disk, and then looks up, removes and opens again.
///
/// - Parameter isFull: Whether the disk is full from the beginning, so that writes are dropped.
private func use(_ directory: String, on disk: TestFileSystem, isFull: Bool = false) throws {
  var options = quietOptions(capacity: 8 << 20)
  options.openTimeout = .seconds(10)
  let keys = (0..<50).map { RequestKey(urlString: "http://a.example/\($0)")! }
  var store = try ResponseStore.open(directory: directory, options: options)
  for number in 1..<50 {
    store.store(childResponse("http://a.example/\(number)", body: pseudorandomData(5000, seed: UInt64(number))))
  }
  while store.writePending() {}
  while store.maintain() {}
  for round in 0..<4 {
    if round == 1 { disk.fill() }
    disk.synchronize()
    // A use that is counted changes the index, and a hit the counters.
    for key in keys.dropFirst() where store.lookup(key) == nil && !isFull { exit(2) }
    store.remove(keys[0])
    disk.synchronize()
    guard !store.hasFailed else { exit(3) }
    if round == 2 {
      store.close()
      store = try ResponseStore.open(directory: directory, options: options)
    }
  }
  store.close()
}

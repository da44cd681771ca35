import CRawLMDB
import Foundation
import LMDBURLCache
import ResponseStore

/// The time of opening, the heap that an open store uses, and the time of `currentDiskUsage`.
struct Opening {
  let report: Report
  let scratch: Scratch

  func run() throws {
    for count in report.isQuick ? [1_000, 50_000] : [1_000, 1_000_000] {
      try measure(Fixture(count: count, bodyByteCount: 1 << 10))
    }
  }

  private static var heapByteCount: Double { Double(raw_heap_byte_count()) }

  private func measure(_ fixture: Fixture) throws {
    let peer = try StorePeer(folder: scratch.folder("open"), fixture: fixture)
    try peer.store(0..<fixture.count)
    peer.close()
    var times: [Double] = []
    var heap: [Double] = []
    for _ in 0..<5 {
      let before = Self.heapByteCount
      var opened: ResponseStore?
      let elapsed = try nanoseconds {
        opened = try StorePeer.open(peer.folder, capacityByteCount: StorePeer.capacity(fixture))
      }
      guard let store = opened else { throw BenchError("the store did not open") }
      times.append(elapsed / 1e6)
      // Look up every entry, so that the heap includes all memory that grows with the entries.
      for key in peer.keys where store.lookup(key) == nil { throw BenchError("an entry is missing after opening") }
      heap.append((Self.heapByteCount - before) / Double(fixture.count))
      store.close()
    }
    report.add("open", "open", fixture.name, "ResponseStore", unit: "ms", times)
    report.add("open", "heap per entry", fixture.name, "ResponseStore", unit: "bytes", heap)

    let sqlite = try SQLitePeer(folder: scratch.folder("open-sqlite"), fixture: fixture)
    try sqlite.store(0..<fixture.count)
    sqlite.close()
    let folder = scratch.path + "/open-sqlite"
    let again = try (0..<5).map { _ -> Double in
      var opened: SQLitePeer?
      let elapsed = try nanoseconds {
        opened = try SQLitePeer(folder: folder, fixture: Fixture(count: 1, bodyByteCount: 1 << 10))
      }
      opened?.close()
      return elapsed / 1e6
    }
    report.add("open", "open", fixture.name, "SQLite", unit: "ms", again)

    let cache = try LMDBURLCache(
      directory: URL(fileURLWithPath: peer.folder), memoryCapacity: 0, diskCapacity: StorePeer.capacity(fixture))
    let usage = (0..<5).map { _ in
      nanoseconds { for _ in 0..<1000 where cache.currentDiskUsage == 0 { fatalError("no bytes on disk") } } / 1000
    }
    report.add("open", "currentDiskUsage", fixture.name, "LMDBURLCache", unit: "ns", usage)
  }
}

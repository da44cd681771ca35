import CRawLMDB
import Foundation
import LMDBURLCache
import ResponseStore

/// The number of responses of each size that a full store keeps on disk, and that a full memory tier keeps.
struct Sizes {
  let report: Report
  let scratch: Scratch

  func run() throws {
    let sizes = [256, 1 << 10, 2 << 10, 3 << 10, 4 << 10, 8 << 10, 16 << 10, 64 << 10, 256 << 10]
    for size in sizes {
      let fixture = Fixture(count: .max, bodyByteCount: size, isScattered: true)
      try onDisk(fixture)
      try inMemory(fixture)
    }
  }

  private func add(_ measure: String, _ fixture: Fixture, _ peer: String, _ count: Int, byteCount: Int) {
    report.add(
      "sizes", measure, Fixture.name(ofByteCount: fixture.bodyByteCount), peer, unit: "entries",
      [Double(count) / Double(byteCount) * 1e9], lessIsBetter: false)
  }

  private func onDisk(_ fixture: Fixture) throws {
    let folder = try scratch.folder("sizes")
    let capacity = report.isQuick ? 64 << 20 : 256 << 20
    let store = try ResponseStore.open(directory: folder, options: .init(capacityByteCount: capacity))
    var next = 0
    repeat {
      for _ in 0..<1000 {
        store.store(fixture.response(next))
        next += 1
      }
      try store.flush()
    } while store.statistics.evictions == 0
    add("entries in 1 GB on disk", fixture, "ResponseStore", store.entryCount, byteCount: store.diskByteCount)
    store.close()
  }

  private func inMemory(_ fixture: Fixture) throws {
    let capacity = 32 << 20
    let before = raw_heap_byte_count()
    let cache = try LMDBURLCache(
      directory: URL(fileURLWithPath: scratch.folder("sizes")), memoryCapacity: capacity, diskCapacity: 0)
    let count = 2 * capacity / (fixture.bodyByteCount + 1000)
    for index in 0..<count {
      cache.storeCachedResponse(
        FoundationPeer.cachedResponse(fixture, index), for: FoundationPeer.request(fixture.url(index)))
    }
    let kept = cache.statistics.memoryEntryCount
    guard kept > 0, kept < count else { throw BenchError("the memory tier is not full") }
    let heap = Int(raw_heap_byte_count()) - Int(before)
    add("entries in 1 GB of memory", fixture, "LMDBURLCache, memory", kept, byteCount: heap)
    withExtendedLifetime(cache) {}
  }
}

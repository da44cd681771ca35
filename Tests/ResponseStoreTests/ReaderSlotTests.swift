import CacheModel
import Foundation
import Glibc
import LMDB
import ResponseStore
import Synchronization
import Testing

/// Nests `depth` read transactions, each with its own reader slot, and calls `body` in the innermost one.
private func nest(_ depth: Int, in environment: LMDBEnvironment, _ body: () -> Void) throws(LMDBError) {
  guard depth > 0 else { return body() }
  try environment.read { (_) throws(LMDBError) in try nest(depth - 1, in: environment, body) }
}

@Suite("Reader slots of a store", .endsFixtures)
struct ReaderSlotTests {
  private static let smallest = ResponseStore.minimumCapacityByteCount

  @Test("Lookups of more concurrent threads than there are slots all find the response")
  func crowd() throws {
    let fixture = try StoreFixture(capacity: Self.smallest)
    fixture.store.store(fixture.response("http://a.example/"))
    fixture.drain()
    let (store, key) = (fixture.store, fixture.key("http://a.example/"))
    // This many threads hold a slot at the same time. The others wait for slots, for up to a second.
    let together = fixture.store.environment.information.maximumReaders - 10
    let holders = Monitor((count: 0, mayEnd: false))
    let misses = Monitor(0)
    let done = DispatchGroup()
    func startLookup(holdingSlot: Bool) {
      done.enter()
      let thread = Thread {
        let found: Void? = store.withResponse(key) { _ in
          guard holdingSlot else { return }
          holders.update { $0.count += 1 }
          _ = holders.wait { $0.mayEnd ? true : nil }
        }
        if found == nil {
          holders.update { $0.count += 1 }
          misses.update { $0 += 1 }
        }
        done.leave()
      }
      thread.stackSize = 1 << 20
      thread.start()
    }
    for _ in 0..<together { startLookup(holdingSlot: true) }
    _ = holders.wait { $0.count == together ? true : nil }
    for number in together..<together + 200 {
      startLookup(holdingSlot: false)
      if number == together + 50 { holders.update { $0.mayEnd = true } }
    }
    done.wait()
    #expect(misses.withLock { $0 } == 0)
    #expect(fixture.logged.all == [])
  }

  @Test("A store without recent lookups releases all its slots to other processes")
  func released() async throws {
    let fixture = try StoreFixture(capacity: Self.smallest) { $0.idleReadTimeout = .zero }
    fixture.store.store(fixture.response("http://a.example/"))
    fixture.drain()
    try nest(16, in: fixture.store.environment) {}
    // The second call releases slots that were unused since the first call.
    for _ in 0..<2 { fixture.store.maintain() }
    let count = fixture.store.environment.information.maximumReaders
    await #expect(processExitsWith: .success) { [directory = fixture.directory as String, count = count as Int] in
      let environment = try LMDBEnvironment.open(
        directory: directory + "/data-1", options: .init(mapByteCount: 1 << 20))
      try nest(count - 1, in: environment) {}
    }
    #expect(fixture.body("http://a.example/") != nil)
  }

  @Test("A removal needs no reader slot, whether the store is open or cannot be opened for lack of one")
  func removal() async throws {
    let fixture = try StoreFixture(capacity: Self.smallest)
    for name in ["a", "b", "c"] { fixture.store.store(fixture.response("http://\(name).example/")) }
    fixture.drain()
    fixture.close()
    let turns = Turns(directory: fixture.directory)
    defer { turns.remove() }
    let findings = LogLines()
    let directory = fixture.directory
    async let parent: Void = onThread {
      turns.waitForChild()
      do throws(StoreError) {
        _ = try ResponseStore.open(directory: directory, options: .existing)
        findings.append("opened")
      } catch {
        if error.cause?.code != .readersFull { findings.append("\(error)") }
      }
      do throws(StoreError) {
        try ResponseStore.remove(Removal(.host("a.example")), fromStoreInUseAt: directory)
      } catch {
        findings.append("\(error)")
      }
      turns.parentIsReady()
    }
    await #expect(processExitsWith: .success) { [directory = directory as String, turns = turns as Turns] in
      let store = try ResponseStore.open(directory: directory, options: quietOptions(capacity: Self.smallest))
      let environment = store.environment
      try nest(environment.information.maximumReaders, in: environment) {
        turns.childIsReady()
        turns.waitForParent()
        store.remove(.host("b.example"))
      }
      guard !store.hasFailed else { exit(2) }
      for name in ["a", "b"] where store.lookup(RequestKey(urlString: "http://\(name).example/")!) != nil { exit(3) }
      guard store.lookup(RequestKey(urlString: "http://c.example/")!) != nil else { exit(4) }
      store.close()
    }
    await parent
    #expect(findings.all == [])
    try fixture.open()
    fixture.drain()
    #expect(fixture.store.entryCount == 1)
  }
}

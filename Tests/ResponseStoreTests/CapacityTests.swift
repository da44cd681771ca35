import Foundation
import HTTPCaching
import LMDB
import ResponseStore
import Testing

@Suite("Capacity as an upper bound", .endsFixtures)
struct CapacityTests {
  /// Returns a size between 500 bytes and `largest`, with a log-uniform distribution.
  private func size(_ random: inout SeededGenerator, largest: Double) -> Int {
    Int(exp(Double.random(in: log(500)...log(largest), using: &random)))
  }

  @Test(
    "Writing several times the capacity stays within the bound at every commit and drops nothing",
    arguments: [(1 << 20, 32e3), (2 << 20, 64e3), (4 << 20, 256e3)])
  func churn(capacity: Int, largest: Double) throws {
    let fixture = try StoreFixture(capacity: capacity)
    var random = SeededGenerator(seed: UInt64(capacity))
    var written = 0
    var number = 0
    var maximum = 0
    while written < 4 * capacity {
      let body = pseudorandomData(size(&random, largest: largest), seed: UInt64(number))
      // Every fourth response replaces one that may still be stored.
      let name = number % 4 == 3 ? number - Int.random(in: 1...20, using: &random) : number
      fixture.store.store(fixture.response("http://a.example/\(name)", body: body))
      if number % 8 == 0 {
        while fixture.store.writePending() {
          maximum = max(maximum, fixture.store.diskByteCount)
          #expect(fixture.store.diskByteCount <= capacity + capacity / 10)
        }
        while fixture.store.maintain() {}
      }
      fixture.clock.advance(by: 0.01)
      written += body.count
      number += 1
    }
    fixture.drain()
    let statistics = fixture.store.statistics
    #expect(statistics.droppedWrites == 0)
    #expect(statistics.writes + statistics.supersededWrites == number)
    #expect(statistics.entryCount > 0)
    // Most of a capacity that is not tiny is used.
    let usedPercentage = capacity < 4 << 20 ? 20 : 65
    #expect(statistics.payloadByteCount > capacity / 100 * usedPercentage)
    #expect(maximum > capacity / 2)
  }
}

extension CapacityTests {
  @Test("A much lower capacity evicts in bulk, stays within the bound and keeps used records")
  func bulk() throws {
    let fixture = try StoreFixture(capacity: 64 << 20)
    let count = 400
    for number in 0..<count {
      fixture.store.store(
        fixture.response("http://a.example/\(number)", body: pseudorandomData(80_000, seed: UInt64(number))))
    }
    fixture.drain()
    #expect(fixture.store.entryCount == count)
    let used = stride(from: 0, to: count, by: 20)
    for number in used { for _ in 0..<4 { #expect(fixture.body("http://a.example/\(number)") != nil) } }
    let before = fixture.store.statistics.commits
    fixture.store.capacityByteCount = 16 << 20
    #expect(fixture.store.diskByteCount <= (16 << 20) / 10 * 11)
    let statistics = fixture.store.statistics
    #expect(statistics.entryCount < 200 && statistics.entryCount > 120)
    #expect(statistics.removals[.overCapacity] == count - statistics.entryCount)
    #expect(statistics.commits - before < 100, "evicting records one by one would take many more commits")
    for number in used { #expect(fixture.body("http://a.example/\(number)") != nil, "\(number) was looked up") }
  }

  @Test("A capacity that another process raises or lowers is applied, and a check accepts what was stored since")
  func setByAnotherProcess() async throws {
    let fixture = try StoreFixture(capacity: 2 << 20)
    fixture.store.store(fixture.response("http://a.example/"))
    fixture.drain()
    await #expect(processExitsWith: .success) { [directory = fixture.directory as String] in
      let store = try ResponseStore.open(directory: directory, options: quietOptions(capacity: 16 << 20))
      for number in 0..<100 {
        store.store(childResponse("http://b.example/\(number)", body: pseudorandomData(80_000, seed: 1)))
      }
      try store.flush()
      store.close()
    }
    #expect(fixture.store.checkInvariants() == [])
    #expect(fixture.store.capacityByteCount == 16 << 20)
    #expect(fixture.store.diskByteCount > 4 << 20)
    await #expect(processExitsWith: .success) { [directory = fixture.directory as String] in
      let store = try ResponseStore.open(directory: directory, options: quietOptions(capacity: 4 << 20))
      // Any process that has the directory open may evict the excess.
      guard store.capacityByteCount == 4 << 20, store.entryCount > 20 else { exit(2) }
    }
    fixture.drain()
    #expect(fixture.store.capacityByteCount == 4 << 20)
    #expect(fixture.store.diskByteCount <= (4 << 20) / 10 * 11)
  }

  private func fill(_ fixture: StoreFixture, count: Int, size: Int = 20_000) {
    for number in 0..<count {
      fixture.store.store(fixture.response("http://a.example/\(number)", body: pseudorandomData(size, seed: 1)))
      fixture.clock.advance(by: 0.01)
    }
    fixture.drain()
  }

  @Test("An oversized file stays within the bound regardless of the responses stored")
  func churnInAnOversizedFile() throws {
    let (seed, times, size, capacity) = (1 as UInt64, 2, 12_000, 2 << 20)
    let fixture = try StoreFixture(capacity: times * capacity)
    let bound = capacity + capacity / 10
    fill(fixture, count: times * capacity / (size + 700), size: size)
    let before = fixture.store.diskByteCount
    #expect(before > 3 * times * capacity / 4)
    fixture.store.capacityByteCount = capacity
    #expect(try fixture.indexByteCount() <= capacity / 32 + 24 << 10)
    #expect(fixture.store.indexRecordCount == fixture.store.entryCount)
    var maximum = fixture.store.diskByteCount
    var random = SeededGenerator(seed: seed)
    for number in 0..<200 {
      // Every third response replaces one that may still be stored.
      let name = number % 3 == 2 ? Int.random(in: max(0, number - 200)..<number, using: &random) : number
      let body = pseudorandomData(self.size(&random, largest: 128e3), seed: UInt64(number))
      fixture.store.store(fixture.response("http://b.example/\(name)", body: body))
      fixture.clock.advance(by: 0.01)
      guard number % 4 == 3 else { continue }
      while fixture.store.writePending() { maximum = max(maximum, fixture.store.diskByteCount) }
      // The eviction thread often runs later than the writes.
      if number % 32 == 31 {
        while fixture.store.maintain() { maximum = max(maximum, fixture.store.diskByteCount) }
      }
    }
    #expect(maximum <= bound)
    #expect(fixture.store.statistics.payloadByteCount > capacity / 2)
    #expect(fixture.store.statistics.droppedWrites == 0)
    // After reopening, the file is still longer than its map.
    fixture.options.capacityByteCount = capacity
    try fixture.reopen()
    fill(fixture, count: 200, size: size)
    #expect(fixture.store.diskByteCount <= bound)
    #expect(fixture.store.statistics.droppedWrites == 0)
  }

  @Test(
    "With an oversized file or map, a reader that never ends causes dropped writes but not a larger file",
    arguments: [900, 20])
  func stuckReaderInAnOversizedFile(filled: Int) throws {
    let capacity = 4 << 20
    let fixture = try StoreFixture(capacity: 4 * capacity)
    fill(fixture, count: filled, size: 15_000)
    fixture.store.capacityByteCount = capacity
    var maximum = 0
    // This snapshot pins all pages freed from now on.
    try fixture.store.environment.read { _ in
      // Before a write is dropped, the writer waits a moment for the reader.
      var number = 0
      while fixture.store.statistics.droppedWrites < 3, number < 1000 {
        fixture.store.store(fixture.response("http://b.example/\(number)", body: pseudorandomData(30_000, seed: 1)))
        while fixture.store.writePending() { maximum = max(maximum, fixture.store.diskByteCount) }
        number += 1
      }
    }
    #expect(maximum <= capacity + capacity / 10)
    #expect(fixture.store.statistics.droppedWrites == 3)
    #expect(fixture.logged.all.contains { $0.contains("The database or its index is full") })
    #expect(!fixture.logged.all.contains { $0.contains("The disk is full") })
    #expect(fixture.store.entryCount > 20)
    fixture.store.store(fixture.response("http://b.example/last", body: pseudorandomData(30_000, seed: 1)))
    fixture.drain()
    #expect(fixture.body("http://b.example/last") != nil)
  }

  @Test("A lower capacity at open is applied in bounded background steps, while lookups and writes continue")
  func lowerAtOpeningInBackground() throws {
    let fixture = try StoreFixture(capacity: 16 << 20)
    fill(fixture, count: 3000, size: 2500)
    let count = fixture.store.entryCount
    fixture.close()
    fixture.options.capacityByteCount = 4 << 20
    try fixture.open()
    let store = fixture.store
    let bound = (4 << 20) / 10 * 11
    #expect(store.entryCount == count, "opening does not evict")
    #expect(store.statistics.evictions == 0)
    #expect(store.statistics.excessByteCount > bound / 2)
    #expect(store.checkInvariants() == [], "a pending capacity is no violation")
    var steps = 0
    var maximum = 0
    var isShrinking = true
    while isShrinking {
      let before = store.statistics.evictions
      isShrinking = store.maintain()
      maximum = max(maximum, store.statistics.evictions - before)
      steps += 1
      guard steps < 40 else { continue }
      // A write evicts about as much as it adds.
      let stored = store.statistics.evictions
      store.store(fixture.response("http://b.example/\(steps)", body: pseudorandomData(2500, seed: 1)))
      #expect(store.writePending())
      #expect(store.statistics.evictions - stored <= 256)
      #expect(fixture.body("http://b.example/\(steps)") != nil)
    }
    #expect(steps > 5)
    #expect(maximum <= 1024)
    #expect(store.diskByteCount <= bound)
    #expect(store.statistics.excessByteCount == 0)
    #expect(store.statistics.droppedWrites == 0)
  }

  @Test("With a capacity far below the size of the data file, the store works; the next lone opening replaces the file")
  func oversizedFile() throws {
    let fixture = try StoreFixture(capacity: 1 << 30)
    fixture.store.store(fixture.response("http://a.example/", body: Data(count: 30 << 20)))
    fixture.drain()
    fixture.store.remove(fixture.key("http://a.example/"))
    fixture.drain()
    // LMDB's free list takes two thirds of this capacity, or the removal log and the lock file take that much.
    let capacity = 1 << 20
    fixture.store.capacityByteCount = capacity
    let minimum = fixture.store.maximumDataByteCount
    #expect(fixture.logged.all.contains { $0.contains("too low") && $0.contains("\(minimum) bytes") })
    storeMany(fixture)
    #expect(fixture.store.entryCount > 200)
    #expect(fixture.store.statistics.excessByteCount > 0)
    #expect(fixture.store.allocatedDataByteCount <= minimum)
    fixture.options.capacityByteCount = capacity
    try fixture.reopen()
    #expect(fixture.logged.all.contains { $0.contains("The store starts empty") })
    #expect(fixture.store.entryCount == 0)
    storeMany(fixture)
    #expect(fixture.store.entryCount > 200)
    #expect(fixture.store.diskByteCount <= capacity + capacity / 10)
    #expect(fixture.store.statistics.droppedWrites == 0)
  }

  private func storeMany(_ fixture: StoreFixture) {
    for number in 0..<600 {
      fixture.store.store(fixture.response("http://a.example/\(number)", body: pseudorandomData(1000, seed: 1)))
      if number % 20 == 0 { fixture.drain() }
    }
    fixture.drain()
  }

  @Test("The largest body is stored; a larger body or a huge header is dropped and counted")
  func largest() throws {
    let fixture = try StoreFixture(capacity: 4 << 20)
    let largest = fixture.store.maximumBodyByteCount
    #expect(largest > 1 << 20)
    fill(fixture, count: 100)
    let body = pseudorandomData(largest, seed: 9)
    fixture.store.store(fixture.response("http://a.example/largest", body: body))
    fixture.drain()
    #expect(fixture.body("http://a.example/largest") == body)
    #expect(fixture.store.statistics.droppedWrites == 0)
    fixture.store.store(fixture.response("http://a.example/more", body: pseudorandomData(largest + 1, seed: 9)))
    let long = HeaderFields([("X-Long", String(repeating: "l", count: 1 << 20))])
    fixture.store.store(fixture.response("http://a.example/head", fields: long))
    var attached = fixture.response("http://a.example/attachment")
    attached.attachment = [UInt8](repeating: 1, count: 1 << 20)
    fixture.store.store(attached)
    fixture.drain()
    #expect(fixture.store.statistics.droppedWrites == 3)
    #expect(fixture.body("http://a.example/more") == nil)
    #expect(fixture.body("http://a.example/largest") == body)
  }
}

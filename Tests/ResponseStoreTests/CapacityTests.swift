import Foundation
import HTTPCaching
import Testing

@testable import ResponseStore

@Suite("The capacity is a bound")
struct CapacityTests {
  /// Sizes log-uniform between 500 bytes and the largest.
  private func size(_ random: inout SplitMix64, largest: Double) -> Int {
    Int(exp(Double.random(in: log(500)...log(largest), using: &random)))
  }

  @Test(
    "Churn over several capacities keeps the bound at every commit, and drops nothing",
    arguments: [
      (1 << 20, 32e3), (2 << 20, 64e3), (4 << 20, 256e3), (4 << 20, 1e3), (8 << 20, 256e3), (64 << 20, 256e3),
    ])
  func churn(capacity: Int, largest: Double) throws {
    let fixture = try StoreFixture(capacity: capacity)
    defer { fixture.finish() }
    var random = SplitMix64(state: UInt64(capacity))
    let total = capacity >= 64 << 20 ? capacity * 5 / 2 : capacity * 6
    var written = 0
    var number = 0
    var most = 0
    while written < total {
      let body = pseudorandomData(size(&random, largest: largest), seed: UInt64(number))
      // Every fourth replaces something that is still there.
      let name = number % 4 == 3 ? number - Int.random(in: 1...20, using: &random) : number
      fixture.store.store(fixture.response("http://a.example/\(name)", body: body))
      if number % 8 == 0 {
        while fixture.store.writePending() {
          most = max(most, fixture.store.diskByteCount)
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
    #expect(statistics.droppedStores == 0)
    #expect(statistics.stores + statistics.supersededStores == number)
    #expect(statistics.entryCount > 0)
    // Most of the capacity is put to use, when it is not tiny. Small records share pages, and eviction takes some of each page.
    let usedPercentage = capacity < 4 << 20 ? 20 : largest < 4e3 ? 30 : 65
    #expect(statistics.payloadByteCount > capacity / 100 * usedPercentage)
    #expect(most > capacity / 2)
  }
}

extension CapacityTests {
  @Test("A much lower capacity evicts in bulk: within the bound, and keeps what is used")
  func bulk() throws {
    // Where syncing costs nothing, if there is such a place.
    let memory = FileManager.default.isWritableFile(atPath: "/dev/shm") ? "/dev/shm/store-\(UUID().uuidString)" : nil
    let fixture = try StoreFixture(capacity: 320 << 20, directory: memory)
    defer { fixture.finish() }
    let count = 2000
    for number in 0..<count {
      fixture.store.store(
        fixture.response("http://a.example/\(number)", body: pseudorandomData(80_000, seed: UInt64(number))))
    }
    fixture.drain()
    #expect(fixture.store.entryCount == count)
    let used = stride(from: 0, to: count, by: 20)
    for number in used { for _ in 0..<4 { #expect(fixture.body("http://a.example/\(number)") != nil) } }
    let before = fixture.store.statistics.commits
    fixture.store.capacityByteCount = 64 << 20
    #expect(fixture.store.diskByteCount <= (64 << 20) / 10 * 11)
    let statistics = fixture.store.statistics
    #expect(statistics.entryCount < 800 && statistics.entryCount > 500)
    #expect(statistics.removals[.overCapacity] == count - statistics.entryCount)
    #expect(statistics.commits - before < 200, "one by one it would take a commit for every few")
    for number in used { #expect(fixture.body("http://a.example/\(number)") != nil, "\(number) is used") }
  }

  @Test("A capacity that cannot be set now takes effect later, and its setter returns")
  func setBesideAStoppedWriter() throws {
    let fixture = try StoreFixture(capacity: 8 << 20, background: true) { $0.stallTimeout = .milliseconds(300) }
    defer { fixture.finish() }
    let store = fixture.store
    for number in 0..<100 {
      store.store(fixture.response("http://a.example/\(number)", body: pseudorandomData(40_000, seed: 1)))
    }
    try store.flush()
    try store.file.environment.write { _ in
      // As with another process's lock: nobody else can write before this one ends.
      store.capacityByteCount = 2 << 20
      #expect(fixture.logged.all.contains { $0.contains("takes effect when") })
    }
    // The next one comes after the first, which goes on now.
    store.capacityByteCount = 3 << 20
    #expect(store.capacityByteCount == 3 << 20)
    #expect(store.diskByteCount <= (3 << 20) + (3 << 20) / 10)
    #expect(store.statistics.evictions > 0)
  }

  private func fill(_ fixture: StoreFixture, count: Int, size: Int = 20_000) {
    for number in 0..<count {
      fixture.store.store(fixture.response("http://a.example/\(number)", body: pseudorandomData(size, seed: 1)))
      fixture.clock.advance(by: 0.01)
    }
    fixture.drain()
  }

  @Test("A capacity that is changed holds at once, down and up", arguments: [20_000, 2500])
  func changed(size: Int) throws {
    let fixture = try StoreFixture(capacity: 8 << 20)
    defer { fixture.finish() }
    let count = 6_000_000 / (size + 1700)
    fill(fixture, count: count, size: size)
    #expect(fixture.store.diskByteCount > 5 << 20)
    var evictions = fixture.store.statistics.evictions
    for (round, capacity) in [4 << 20, 2 << 20, 1 << 20].enumerated() {
      fixture.store.capacityByteCount = capacity
      #expect(fixture.store.diskByteCount <= capacity + capacity / 10)
      if round == 0 { #expect(fixture.body("http://a.example/\(count - 1)") != nil) }
      #expect(fixture.store.statistics.evictions > evictions)
      evictions = fixture.store.statistics.evictions
      for number in 0..<30 {
        fixture.store.store(fixture.response("http://b.example/\(number)", body: pseudorandomData(20_000, seed: 1)))
        fixture.store.writePending()
        #expect(fixture.store.diskByteCount <= capacity + capacity / 10)
      }
    }
    fixture.store.capacityByteCount = 16 << 20
    fill(fixture, count: 2 * count, size: size)
    #expect(fixture.store.entryCount >= 2 * count)
    #expect(fixture.store.statistics.droppedStores == 0)
  }

  @Test(
    "A file from a time of a larger capacity stays within the bound, whatever is stored then",
    arguments: [(1, 2, 12_000), (2, 4, 900)] as [(UInt64, Int, Int)])
  func churnInALongerFile(_ seed: UInt64, times: Int, size: Int) throws {
    let capacity = 4 << 20
    let memory = FileManager.default.isWritableFile(atPath: "/dev/shm") ? "/dev/shm/store-\(UUID().uuidString)" : nil
    let fixture = try StoreFixture(capacity: times * capacity, directory: memory)
    defer { fixture.finish() }
    let bound = capacity + capacity / 10
    fill(fixture, count: times * capacity / (size + 700), size: size)
    let before = fixture.store.diskByteCount
    #expect(before > 3 * times * capacity / 4)
    fixture.store.capacityByteCount = capacity
    let index = try #require(fixture.store.file.index.current)
    #expect(index.byteCount <= StorageFormat.indexByteCount(capacityByteCount: capacity))
    #expect(index.recordCount == fixture.store.entryCount)
    var most = fixture.store.diskByteCount
    var random = SplitMix64(state: seed)
    for number in 0..<400 {
      // Every third replaces something that may still be there.
      let name = number % 3 == 2 ? Int.random(in: max(0, number - 200)..<number, using: &random) : number
      let body = pseudorandomData(self.size(&random, largest: 128e3), seed: UInt64(number))
      fixture.store.store(fixture.response("http://b.example/\(name)", body: body))
      fixture.clock.advance(by: 0.01)
      guard number % 4 == 3 else { continue }
      while fixture.store.writePending() { most = max(most, fixture.store.diskByteCount) }
      // The eviction thread is often late.
      if number % 32 == 31 {
        while fixture.store.maintain() { most = max(most, fixture.store.diskByteCount) }
      }
    }
    #expect(most <= bound)
    #expect(fixture.store.statistics.payloadByteCount > capacity / 2)
    #expect(fixture.store.statistics.droppedStores == 0)
    // Closed and opened, the file is still longer than its map.
    fixture.options.capacityByteCount = capacity
    try fixture.reopen()
    fill(fixture, count: 200, size: size)
    #expect(fixture.store.diskByteCount <= bound)
    #expect(fixture.store.statistics.droppedStores == 0)
  }

  @Test(
    "A reader that does not end costs stores, not the bound, in a file or a map from a time of a larger capacity",
    arguments: [(900, 24), (20, 150)])
  func stuckReaderInALongerFile(filled: Int, count: Int) throws {
    let capacity = 4 << 20
    let fixture = try StoreFixture(capacity: 4 * capacity)
    defer { fixture.finish() }
    fill(fixture, count: filled, size: 15_000)
    fixture.store.capacityByteCount = capacity
    var most = 0
    // A snapshot that pins every page which is freed from now on.
    try fixture.store.file.environment.read { _ in
      for number in 0..<count {
        fixture.store.store(fixture.response("http://b.example/\(number)", body: pseudorandomData(30_000, seed: 1)))
        while fixture.store.writePending() { most = max(most, fixture.store.diskByteCount) }
      }
    }
    #expect(most <= capacity + capacity / 10)
    #expect(fixture.store.statistics.droppedStores > 0)
    #expect(fixture.store.entryCount > 20)
    fixture.store.store(fixture.response("http://b.example/last", body: pseudorandomData(30_000, seed: 1)))
    fixture.drain()
    #expect(fixture.body("http://b.example/last") != nil)
  }

  @Test("A lower capacity at opening is applied behind, in bounded steps, and lookups and stores go on meanwhile")
  func lowerAtOpeningBehind() throws {
    let fixture = try StoreFixture(capacity: 32 << 20)
    defer { fixture.finish() }
    fill(fixture, count: 6000, size: 2500)
    let count = fixture.store.entryCount
    fixture.close()
    fixture.options.capacityByteCount = 8 << 20
    try fixture.open()
    let store = fixture.store
    let bound = (8 << 20) / 10 * 11
    #expect(store.entryCount == count, "opening evicts nothing")
    #expect(store.statistics.evictions == 0)
    #expect(store.statistics.excessByteCount > bound / 2)
    #expect(store.checkInvariants() == [], "what is on its way is no violation")
    var steps = 0
    var most = 0
    var isShrinking = true
    while isShrinking {
      let before = store.statistics.evictions
      isShrinking = store.maintain()
      most = max(most, store.statistics.evictions - before)
      steps += 1
      guard steps < 40 else { continue }
      // A store's own turn evicts about what it adds, too.
      let stored = store.statistics.evictions
      store.store(fixture.response("http://b.example/\(steps)", body: pseudorandomData(2500, seed: 1)))
      #expect(store.writePending())
      #expect(store.statistics.evictions - stored <= 256)
      #expect(fixture.body("http://b.example/\(steps)") != nil)
    }
    #expect(steps > 10)
    #expect(most <= 1024)
    #expect(store.diskByteCount <= bound)
    #expect(store.statistics.excessByteCount == 0)
    #expect(store.statistics.droppedStores == 0)
  }

  @Test("What moves on is no stall, also while nothing is committed")
  func progressIsNoStall() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    let monitor = Monitor(0)
    let rounds = fixture.store.waitUnlessStalled(monitor, timeout: .milliseconds(1)) { count -> Int? in
      fixture.store.noteProgress()
      count += 1
      return count > 20 ? count : nil
    }
    #expect(rounds == 21)
    #expect(fixture.store.waitUnlessStalled(monitor, timeout: .milliseconds(1)) { _ -> Int? in nil } == nil)
  }

  @Test("Removals that are still to be worked off are counted")
  func pendingRemovals() throws {
    let fixture = try StoreFixture()
    defer { fixture.finish() }
    fill(fixture, count: 400, size: 300)
    #expect(fixture.store.statistics.pendingRemovalCount == 0)
    fixture.store.removeAll()
    #expect(fixture.store.statistics.pendingRemovalCount == 1)
    fixture.drain()
    #expect(fixture.store.statistics.pendingRemovalCount == 0)
    #expect(fixture.store.entryCount == 0)
  }

  @Test("A lower capacity at opening keeps the newest entries")
  func lowerAtOpening() throws {
    let fixture = try StoreFixture(capacity: 16 << 20)
    defer { fixture.finish() }
    fill(fixture, count: 600)
    fixture.close()
    fixture.options.capacityByteCount = 4 << 20
    try fixture.open()
    fixture.drain()
    #expect(fixture.logged.all == [])
    #expect(fixture.body("http://a.example/599") != nil)
    #expect(fixture.store.diskByteCount <= (4 << 20) / 10 * 11)
    for number in 0..<300 {
      fixture.store.store(fixture.response("http://b.example/\(number)", body: pseudorandomData(20_000, seed: 1)))
      fixture.store.writePending()
      #expect(fixture.store.diskByteCount <= (4 << 20) / 10 * 11)
    }
  }

  @Test("The largest body is stored; one byte more, or a head without end, is dropped and counted")
  func largest() throws {
    let fixture = try StoreFixture(capacity: 4 << 20)
    defer { fixture.finish() }
    let largest = fixture.store.largestBodyByteCount
    #expect(largest > 1 << 20)
    fill(fixture, count: 100)
    let body = pseudorandomData(largest, seed: 9)
    fixture.store.store(fixture.response("http://a.example/largest", body: body))
    fixture.drain()
    #expect(fixture.body("http://a.example/largest") == body)
    #expect(fixture.store.statistics.droppedStores == 0)
    fixture.store.store(fixture.response("http://a.example/more", body: pseudorandomData(largest + 1, seed: 9)))
    let long = HTTPFields([("X-Long", String(repeating: "l", count: 1 << 20))])
    fixture.store.store(fixture.response("http://a.example/head", fields: long))
    var attached = fixture.response("http://a.example/attachment")
    attached.attachment = [UInt8](repeating: 1, count: 1 << 20)
    fixture.store.store(attached)
    fixture.drain()
    #expect(fixture.store.statistics.droppedStores == 3)
    #expect(fixture.body("http://a.example/more") == nil)
    #expect(fixture.body("http://a.example/largest") == body)
  }

  @Test("A body over many transactions is readable throughout, and gone when it is removed on the way")
  func manyTransactions() throws {
    let fixture = try StoreFixture(capacity: 8 << 20)
    defer { fixture.finish() }
    let body = pseudorandomData(3 << 20, seed: 3)
    for round in 0..<4 {
      fixture.store.store(fixture.response("http://a.example/\(round)", body: body))
      #expect(fixture.body("http://a.example/\(round)") == body)
      fixture.drain()
      #expect(fixture.body("http://a.example/\(round)") == body)
    }
    fixture.store.store(fixture.response("http://a.example/x", body: body))
    fixture.store.remove(fixture.key("http://a.example/x"))
    fixture.drain()
    #expect(fixture.body("http://a.example/x") == nil)
    #expect(fixture.store.statistics.droppedStores == 1)
  }

  @Test("A reader that does not end costs stores, not the whole store")
  func stuckReader() throws {
    let fixture = try StoreFixture(capacity: 4 << 20)
    defer { fixture.finish() }
    fill(fixture, count: 120)
    let store = fixture.store
    let before = store.entryCount
    try store.file.environment.read { _ in
      for number in 0..<80 {
        store.store(fixture.response("http://b.example/\(number)", body: pseudorandomData(20_000, seed: 1)))
        store.writePending()
      }
    }
    #expect(store.statistics.droppedStores > 0)
    #expect(store.entryCount > before / 4)
    fill(fixture, count: 200)
    #expect(fixture.body("http://a.example/199") != nil)
  }

  @Test("An absurd capacity is taken for a large one")
  func absurd() throws {
    let fixture = try StoreFixture(capacity: 16 << 20)
    defer { fixture.finish() }
    let limits = Limits(capacityByteCount: .max, chunkByteCount: 65_520, pageByteCount: 4096)
    #expect(limits.livePageCount > 1 << 30)
    #expect(limits.batchByteCount == 4 << 20)
  }
}
